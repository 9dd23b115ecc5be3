"""Where samples come from: folders, lists, names, order, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler.calibration import InputSpec, Limits, open_dataset
from qbcompiler.calibration.readers import READERS, by_extension
from qbcompiler.calibration.readers.npy import NpyReader
from qbcompiler.errors import CalibrationDataError, CalibrationMissingError
from qbcompiler.ir import DType

VECTOR = InputSpec("x", (1, 4), DType.FLOAT32)
IDS = InputSpec("input_ids", (1, 6), DType.INT64)
MASK = InputSpec("attention/mask:0", (1, 6), DType.INT64)


def save(path: Path, array: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.asarray(array))
    return path


def vector(value: float) -> np.ndarray:
    return np.full((1, 4), value, np.float32)


def values(dataset: Any) -> list[float]:
    return [float(s["x"].flat[0]) for s in dataset]


def test_a_folder_is_read_in_code_point_order_of_relative_paths(tmp_path: Path) -> None:
    for name in ("b.npy", "a/z.npy", "B.npy", "é.npy", "a.npy", "a10.npy", "a9.npy"):
        save(tmp_path / "d" / name, vector(1))
    dataset = open_dataset(tmp_path / "d", [VECTOR])
    assert list(dataset.sample_names) == [
        "B.npy",
        "a.npy",
        "a/z.npy",
        "a10.npy",
        "a9.npy",
        "b.npy",
        "é.npy",
    ]


def test_a_list_a_folder_and_a_copy_have_one_digest(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "one" / f"{i}.npy", vector(i))
        save(tmp_path / "two" / f"other{i}.npy", vector(i))
    (tmp_path / "one" / "list.txt").write_text("2.npy\n\n 0.npy \r\n1.npy\n", encoding="utf-8")
    (tmp_path / "one.json").write_text(json.dumps(["one/1.npy", "one/0.npy", "one/2.npy"]))
    absolute = "\n".join(str(tmp_path / "two" / f"other{i}.npy") for i in range(3))
    (tmp_path / "absolute.txt").write_text("\ufeff" + absolute, encoding="utf-8")
    sources = [
        tmp_path / "one",
        tmp_path / "two",
        tmp_path / "one" / "list.txt",
        tmp_path / "one.json",
        tmp_path / "absolute.txt",
    ]
    assert values(open_dataset(sources[2], [VECTOR])) == [0, 1, 2]
    assert len({open_dataset(s, [VECTOR]).digest() for s in sources}) == 1


def test_the_digest_follows_content_order_and_type(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.npy", vector(0))
    save(tmp_path / "a" / "1.npy", vector(1))
    save(tmp_path / "b" / "0.npy", vector(1))
    save(tmp_path / "b" / "1.npy", vector(0))
    a = open_dataset(tmp_path / "a", [VECTOR]).digest()
    assert a != open_dataset(tmp_path / "b", [VECTOR]).digest()
    half = InputSpec("x", (1, 4), DType.FLOAT16)
    assert a != open_dataset(tmp_path / "a", [half]).digest()
    other = InputSpec("y", (1, 4), DType.FLOAT32)
    assert a != open_dataset(tmp_path / "a", [other]).digest()
    assert (
        a == open_dataset([tmp_path / "b" / "1.npy", tmp_path / "b" / "0.npy"], [VECTOR]).digest()
    )
    # byte order and memory order of the file do not matter
    np.save(tmp_path / "b" / "0.npy", np.asfortranarray(vector(0)).astype(">f4"))
    save(tmp_path / "b" / "1.npy", vector(1).astype(np.float64))
    assert a == open_dataset(tmp_path / "b", [VECTOR]).digest()


def test_files_that_are_no_samples_are_noted_and_hidden_ones_are_not(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", vector(1))
    for name in ("README.md", "labels.md", ".DS_Store", "Thumbs.db", "noending"):
        (tmp_path / name).write_text("x")
    save(tmp_path / "__MACOSX" / "a.npy", vector(2))
    dataset = open_dataset(tmp_path, [VECTOR])
    assert len(dataset) == 1
    assert dataset.warnings == ["3 files are not samples and were ignored: 2 .md, 1 noending"]


def test_several_inputs_from_sub_folders_archives_and_maps(tmp_path: Path) -> None:
    ids, mask = np.arange(6).reshape(1, 6), np.ones((1, 6), np.int32)
    save(tmp_path / "d" / "s0" / "input_ids.npy", ids)
    save(tmp_path / "d" / "s0" / "attention_mask_0.npy", mask)
    np.savez(tmp_path / "d" / "s1.npz", **{"input_ids": ids, "attention/mask:0": mask})
    (tmp_path / "list.json").write_text(
        json.dumps(
            [
                {
                    "input_ids": "d/s0/input_ids.npy",
                    "attention/mask:0": "d/s0/attention_mask_0.npy",
                },
                "d/s1.npz",
            ]
        )
    )
    (tmp_path / "list.txt").write_text("d/s0\nd/s1.npz\n")
    digests = set()
    for source in ("d", "list.json", "list.txt"):
        dataset = open_dataset(tmp_path / source, [IDS, MASK])
        assert len(dataset) == 2
        for sample in dataset:
            assert list(sample) == ["input_ids", "attention/mask:0"]
            assert sample["attention/mask:0"].dtype == np.int64
            np.testing.assert_array_equal(sample["input_ids"], ids)
        digests.add(dataset.digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["input_ids.npy"], "lacks 'attention/mask:0'"),
        (["input_ids.npy", "attention_mask_0.npy", "extra.npy"], "has 'extra'"),
        (["input_ids.npy", "input_ids.npz", "attention_mask_0.npy"], "two files"),
    ],
)
def test_names_of_a_sub_folder_must_be_the_inputs(
    tmp_path: Path, files: list[str], said: str
) -> None:
    for file in files:
        if file.endswith(".npz"):
            np.savez(tmp_path / file, a=np.zeros(1))
            target = tmp_path / "d" / "s" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).rename(target)
        else:
            save(tmp_path / "d" / "s" / file, np.zeros((1, 6), np.int64))
    with pytest.raises(CalibrationDataError, match=said) as found:
        list(open_dataset(tmp_path / "d", [IDS, MASK]))
    assert found.value.details["sample"] == "s"


def test_one_unnamed_tensor_cannot_feed_two_inputs(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.zeros((1, 6), np.int64))
    with pytest.raises(CalibrationDataError, match="one tensor, the model has 2 inputs") as found:
        list(open_dataset(tmp_path, [IDS, MASK]))
    assert found.value.details["sample"] == "a.npy"
    assert "sub-folder" in (found.value.hint or "")


def test_an_archive_for_one_input_may_name_it_as_it_likes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", vector(3))
    assert values(open_dataset(tmp_path, [VECTOR])) == [3]
    np.savez(tmp_path / "a.npz", x=vector(3), y=vector(4))
    with pytest.raises(CalibrationDataError, match="has 'y', no input of the model"):
        list(open_dataset(tmp_path, [VECTOR]))


def test_no_source_is_the_named_error() -> None:
    for nothing in (None, []):
        with pytest.raises(CalibrationMissingError, match=r"^No calibration dataset is provided$"):
            open_dataset(nothing, [VECTOR])


def test_empty_and_missing_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.csv").write_text("1")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "empty.json").write_text("[]")
    for name, said in (
        ("empty", "has no samples"),
        ("other", "has no samples"),
        ("empty.txt", "names no samples"),
        ("empty.json", "names no samples"),
        ("missing", "does not exist"),
        ("other/a.csv", "neither a list nor a sample"),
    ):
        with pytest.raises(CalibrationDataError, match=said):
            open_dataset(tmp_path / name, [VECTOR])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"x": "a.npy"}', "holds a map"),
        ("[3]", "item 0 of the list 'l.json' is a number"),
        ('["a.npy", []]', "item 1 .* is a list"),
        ('[{"x": 3}]', "item 0 .* is a map"),
        ('["missing.npy"]', "does not exist"),
        ('["l.json"]', "unknown type"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_malformed_lists_are_refused(tmp_path: Path, text: str, said: str) -> None:
    save(tmp_path / "a.npy", vector(0))
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(CalibrationDataError, match=said):
        open_dataset(tmp_path / "l.json", [VECTOR])


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(CalibrationDataError, match="not UTF-8"):
        open_dataset(tmp_path / "l.txt", [VECTOR])
    (tmp_path / "l.txt").write_text("a" * 300)
    with pytest.raises(CalibrationDataError, match="has 300 bytes"):
        open_dataset(tmp_path / "l.txt", [VECTOR], limits=Limits(max_list_bytes=200))


def test_confined_data_stays_inside(tmp_path: Path) -> None:
    secret = save(tmp_path / "secret.npy", vector(9))
    folder = tmp_path / "d"
    save(folder / "a.npy", vector(1))
    confined = Limits(confined=True)
    for entry in ("../secret.npy", str(secret), "./../d/../secret.npy"):
        (folder / "l.txt").write_text(entry)
        with pytest.raises(CalibrationDataError, match="leaves the data set"):
            open_dataset(folder / "l.txt", [VECTOR], limits=confined)
    (folder / "l.txt").unlink()
    (folder / "link.npy").symlink_to(secret)
    assert values(open_dataset(folder, [VECTOR])) == [1, 9]
    with pytest.raises(CalibrationDataError, match="symbolic link"):
        open_dataset(folder, [VECTOR], limits=confined)


def test_folder_loops_end(tmp_path: Path) -> None:
    save(tmp_path / "d" / "a.npy", vector(1))
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d", target_is_directory=True)
    assert len(open_dataset(tmp_path / "d", [VECTOR])) == 1


def test_the_number_of_samples_is_bounded(tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / f"{i}.npy", vector(i))
    with pytest.raises(CalibrationDataError, match="has 4 samples") as found:
        open_dataset(tmp_path, [VECTOR], limits=Limits(max_samples=3))
    assert found.value.details["expected"] == "at most 3"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0)
    with pytest.raises(CalibrationDataError, match="cannot be read"):
        open_dataset(folder, [VECTOR])


def test_a_sample_that_changes_during_a_build_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", vector(1))
    dataset = open_dataset(tmp_path, [VECTOR])
    dataset.digest()
    save(path, vector(2))
    with pytest.raises(CalibrationDataError, match="changed since it was first read"):
        dataset[0]


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", vector(1))
    dataset = open_dataset(tmp_path, [VECTOR])
    path.unlink()
    with pytest.raises(CalibrationDataError, match=r"'a\.npy': the file does not exist"):
        dataset[0]


def test_two_readers_for_one_ending_are_a_fault() -> None:
    with pytest.raises(ValueError, match=r"\.npy is claimed by two"):
        by_extension([*READERS, NpyReader()])
