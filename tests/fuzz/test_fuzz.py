"""A short search with fixed seeds; ``python -m tests.fuzz`` searches for as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import box
from .mutate import damage_bytes, damage_json
from .targets import TARGETS


@pytest.mark.parametrize("name", sorted(n for n, t in TARGETS.items() if t.cases))
def test_mutants_end_in_a_result_or_a_typed_error(name: str) -> None:
    cases = TARGETS[name].cases
    count, findings = box.search(name, 20, cases=cases)
    assert count == cases
    assert not findings, "\n\n".join(
        f"{f.what}\npython -m tests.fuzz --target {name} --seed 20 --case {f.number}\n{f.trace}"
        for f in findings[:3]
    )


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_mutants_are_made_from_is_taken(name: str, tmp_path: Path) -> None:
    """A search among mutants of what is refused anyway would find nothing."""
    for index, data in enumerate(TARGETS[name].good()):
        folder = tmp_path / str(index)
        folder.mkdir()
        TARGETS[name].feed(data, folder)


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    for name in TARGETS:
        first, again = (box.case_of(name, 5, 3, tmp_path) for _ in range(2))
        assert first == again and isinstance(first, bytes)
    made = {damage_bytes(random.Random(n), b"some bytes") for n in range(50)}
    assert len(made) > 40
    assert damage_json(random.Random(1), {"a": [1, 2]}) == damage_json(
        random.Random(1), {"a": [1, 2]}
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hang", "Hang"),
        ("crash", "ended with -11"),
        ("fault", "InternalError"),
        ("allocation", "MemoryError"),
        ("write", "outside the scratch folder"),
        ("read", "outside the scratch folder"),
        ("program", "subprocess.Popen"),
        ("left", "left outside"),
    ],
)
def test_the_search_sees_each_kind_of_failure(name: str, expected: str) -> None:
    count, findings = box.search(f"faulty-{name}", 1, cases=1, case_seconds=1)
    assert count == 1 and len(findings) == 1 and expected in findings[0].what, findings


def test_a_typed_error_is_no_finding_and_the_search_goes_on_after_a_crash() -> None:
    assert box.search("faulty-typed", 1, cases=3) == (3, [])
    count, findings = box.search("faulty-crash", 1, cases=2)
    assert count == 2 and [f.number for f in findings] == [0, 1]
