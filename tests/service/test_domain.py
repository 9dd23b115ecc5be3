from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbcompiler.errors import ERROR_CLASSES
from service.domain import (
    ACTIVE,
    INPUT_FAULT_CODES,
    TERMINAL,
    TRANSITIONS,
    BuildSpec,
    CalibrationInput,
    Failure,
    FileRef,
    IdKind,
    JobKind,
    ModelFormat,
    ModelInput,
    Role,
    State,
    TransitionError,
    build_key,
    can_move,
    check_move,
    id_pattern,
    is_id,
    manifest_digest,
    new_id,
)

SPEC = BuildSpec(
    kind=JobKind.COMPILE,
    engine="qbcompiler",
    engine_version="1",
    model=ModelInput(ModelFormat.ONNX, "a" * 64, (FileRef("m.onnx", "a" * 64, 10),)),
    calibration=CalibrationInput("b" * 64, FileRef("c.tar", "c" * 64, 5), "", 3),
    target_device="regulus-rb",
    inference_scheme="single",
    config_preset="classification",
    compile_config={"calibration": {"mode": 1}},
    resolved_config={"calibration": {"mode": 1, "percentile": 0.9999}},
    input_shapes={"x": (1, 3, 8, 8)},
)


def test_ids_are_typed_and_sort_by_time() -> None:
    ids = [new_id(IdKind.JOB) for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(re.fullmatch(id_pattern(IdKind.JOB), i) for i in ids)
    assert [i[4:12] for i in ids] == sorted(i[4:12] for i in ids)
    assert is_id(ids[0], IdKind.JOB)
    assert not is_id(ids[0], IdKind.MODEL)
    assert not is_id(ids[0] + "\n", IdKind.JOB)


def test_terminal_states_have_no_successor_and_every_state_can_end() -> None:
    assert {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT} == TERMINAL
    assert {State.QUEUED, State.RUNNING} == ACTIVE
    for state in ACTIVE:
        assert TRANSITIONS[state] >= TERMINAL
    assert set(TRANSITIONS) == set(State)


@given(st.sampled_from(list(State)), st.sampled_from(list(State)))
def test_check_move_agrees_with_the_table(before: State, after: State) -> None:
    if can_move(before, after):
        check_move(before, after)
        assert before in ACTIVE
    else:
        with pytest.raises(TransitionError, match=f"{before.value} to {after.value}"):
            check_move(before, after)


@given(st.lists(st.sampled_from(list(State)), max_size=12))
def test_no_walk_leaves_a_terminal_state(wishes: list[State]) -> None:
    state = State.QUEUED
    seen_end = None
    for wish in wishes:
        if can_move(state, wish):
            state = wish
            if state in TERMINAL and seen_end is None:
                seen_end = state
    if seen_end is not None:
        assert state is seen_end


def test_spec_survives_json() -> None:
    assert BuildSpec.from_json(SPEC.to_json()) == SPEC
    parse = replace(SPEC, kind=JobKind.PARSE, calibration=None, target_device=None)
    assert BuildSpec.from_json(parse.to_json()) == parse


@pytest.mark.parametrize(
    "change",
    [
        {"kind": JobKind.PARSE},
        {"engine": "other"},
        {"engine_version": "2"},
        {"model": ModelInput(ModelFormat.ONNX, "d" * 64, SPEC.model.files)},
        {"model": ModelInput(ModelFormat.MBLT, "a" * 64, SPEC.model.files)},
        {"calibration": None},
        {"calibration": replace(SPEC.calibration, digest="e" * 64)},  # type: ignore[type-var]
        {"calibration": replace(SPEC.calibration, entry="list.txt")},  # type: ignore[type-var]
        {"use_random_calib": True},
        {"target_device": "aries-rb"},
        {"inference_scheme": "multi"},
        {"config_preset": None},
        {"resolved_config": {"calibration": {"mode": 0, "percentile": 0.9999}}},
        {"cpu_offload": True},
        {"input_shapes": {"x": (1, 3, 8, 9)}},
    ],
)
def test_whatever_can_change_a_byte_changes_the_key(change: dict[str, object]) -> None:
    assert build_key(replace(SPEC, **change)) != build_key(SPEC)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        # how the caller spelled the configuration
        {"compile_config": {}},
        # names of files, and where the pack is
        {"model": ModelInput(ModelFormat.ONNX, "a" * 64, (FileRef("other.onnx", "a" * 64, 10),))},
        {"calibration": replace(SPEC.calibration, archive=FileRef("c.tar", "f" * 64, 9))},  # type: ignore[type-var]
    ],
)
def test_what_changes_no_byte_leaves_the_key(change: dict[str, object]) -> None:
    assert build_key(replace(SPEC, **change)) == build_key(SPEC)  # type: ignore[arg-type]


def test_the_key_does_not_depend_on_the_order_of_a_map() -> None:
    one = replace(SPEC, resolved_config={"a": 1, "b": {"c": 2.5, "d": [1, 2]}})
    two = replace(SPEC, resolved_config={"b": {"d": [1, 2], "c": 2.5}, "a": 1})
    assert build_key(one) == build_key(two)


def test_the_key_is_pinned() -> None:
    # a change of this value makes every cached build unreachable: raise KEY_VERSION with it
    assert build_key(SPEC) == "8322b25443aed4eb8ca1f3c49d1e6d590c99e911461bb1d12f2bb5ad49f9a7ba"


def test_manifest_of_one_file_is_the_files_own_digest() -> None:
    one = FileRef("a.npy", "a" * 64, 1)
    two = FileRef("b.npy", "b" * 64, 2)
    assert manifest_digest([one]) == one.sha256
    assert manifest_digest([one, two]) != manifest_digest([two, one])
    assert manifest_digest([one, two]) != manifest_digest([replace(one, path="c.npy"), two])


def test_input_faults_are_the_compilers_codes_for_its_input() -> None:
    of_input = {code for code, cls in ERROR_CLASSES.items() if cls.exit_code in (2, 3)}
    assert of_input == INPUT_FAULT_CODES


def test_failure_survives_json() -> None:
    failure = Failure("CONFIG_ERROR", "no", {"key": "x"}, "try y")
    assert Failure.from_json(failure.to_json()) == failure
    assert failure.is_input_fault
    assert not failure.retryable
    assert Failure("WORKER_LOST", "gone").retryable


def test_roles_cover_those_below() -> None:
    assert Role.ADMIN.covers(Role.READER)
    assert Role.BUILDER.covers(Role.BUILDER)
    assert not Role.READER.covers(Role.BUILDER)
