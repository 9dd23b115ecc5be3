"""The container: deterministic bytes, ordinary tools, and refusal of everything altered."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.errors import ArgumentError, FormatError, OutputWriteError
from qbcompiler.package import writer as writer_module
from qbcompiler.package import zip_layout
from qbcompiler.package.json_io import Fields, dump_json, parse_json
from qbcompiler.package.reader import Container, FormatVersion
from qbcompiler.package.safetensors_io import TensorsReader, tensors_section
from qbcompiler.package.writer import Section, hash_sections, write_container

FORMAT = FormatVersion("toy", 1, 2)


def toy_sections():
    tensors = {
        "a/b": np.arange(7, dtype=np.int8),
        "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
        "empty": np.zeros((0, 5), dtype=np.int32),
        "scalar": np.array(2.5),
        "flags": np.array([True, False]),
        "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    }
    return [
        Section.of_bytes("graph.json", "graph", b'{"layers":[]}'),
        tensors_section("weights.safetensors", tensors),
        Section.of_bytes("empty.bin", "blob", b""),
    ], tensors


def write_toy(path, version=FORMAT, **extra):
    sections, _ = toy_sections()
    return write_container(path, {"format": version.as_dict(), "note": "é", **extra}, sections)


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.bin"
    write_toy(path)
    return path


def read_everything(path):
    with Container(path, FORMAT) as container:
        for name in container.sections:
            container.map(name)
        return TensorsReader(container.map("weights.safetensors"), "weights.safetensors")


def test_round_trip(toy):
    _, tensors = toy_sections()
    with Container(toy, FORMAT) as container:
        assert container.manifest["note"] == "é"
        assert container.read("graph.json", 100) == b'{"layers":[]}'
        reader = TensorsReader(container.map("weights.safetensors"), "weights.safetensors")
    for key, expected in tensors.items():
        got = reader.array(key)
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype and got.shape == expected.shape
    with pytest.raises(ValueError, match="read-only"):
        reader.array("weights")[0, 0] = 1


def test_written_report_is_true(tmp_path):
    written = write_toy(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    assert written.size == len(data)
    assert written.sha256 == hashlib.sha256(data).hexdigest()


def test_equal_bytes_whatever_the_folder_and_the_time(tmp_path, monkeypatch):
    first = write_toy(tmp_path / "one")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep")
    second = write_toy(Path("er") / "two")
    assert first.sha256 == second.sha256


def test_hashes_without_writing_are_those_of_the_file(toy):
    sections, _ = toy_sections()
    with Container(toy, FORMAT) as container:
        assert list(container.sections.values()) == hash_sections(sections)


def test_standard_tools_read_it(toy, tmp_path):
    with zipfile.ZipFile(toy) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[0] == "manifest.json"
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
        manifest = json.loads(archive.read("manifest.json"))
        loaded = safetensors.numpy.load(archive.read("weights.safetensors"))
    assert [s["name"] for s in manifest["sections"]] == names[1:]
    _, tensors = toy_sections()
    assert set(loaded) == set(tensors)
    for key, expected in tensors.items():
        np.testing.assert_array_equal(loaded[key], expected)


def test_data_is_aligned(toy):
    raw = toy.read_bytes()
    with zipfile.ZipFile(toy) as archive:
        for info in archive.infolist():
            name_size = int.from_bytes(
                raw[info.header_offset + 26 : info.header_offset + 28], "little"
            )
            extra_size = int.from_bytes(
                raw[info.header_offset + 28 : info.header_offset + 30], "little"
            )
            assert (info.header_offset + 30 + name_size + extra_size) % 64 == 0


def test_unzip_lists_it(toy):
    try:
        done = subprocess.run(
            ["unzip", "-t", str(toy)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("unzip is not installed")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_single_bit_counts(toy):
    """Each byte of the file is accounted for: any flip is refused, by the reader alone."""
    raw = toy.read_bytes()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        toy.write_bytes(damaged)
        with pytest.raises(FormatError):
            read_everything(toy)


def test_every_truncation_is_refused(toy):
    raw = toy.read_bytes()
    for size in range(len(raw)):
        toy.write_bytes(raw[:size])
        with pytest.raises(FormatError):
            read_everything(toy)
    toy.write_bytes(raw + b"\0")
    with pytest.raises(FormatError):
        read_everything(toy)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_hostile_edits_end_in_format_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("hostile") / "f"
    write_toy(path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        drop = data.draw(st.integers(0, 40))
        raw[at : at + drop] = data.draw(st.binary(max_size=40))
    if bytes(raw) == path.read_bytes():
        return
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught:
        read_everything(path)
    assert caught.value.details["section"]


def test_the_error_names_the_section(toy):
    raw = toy.read_bytes()
    at = raw.index(b'{"layers":[]}')
    toy.write_bytes(raw[:at] + b'{"layers":[1' + raw[at + 12 :])
    with Container(toy, FORMAT) as container, pytest.raises(FormatError, match=r"graph\.json") as e:
        container.read("graph.json", 100)
    assert e.value.details["section"] == "graph.json"


def test_a_newer_major_version_is_refused_by_name(tmp_path):
    write_toy(tmp_path / "x", FormatVersion("toy", 2, 0))
    with pytest.raises(FormatError, match=r"format toy 2\.0; this release reads up to toy 1\.2"):
        Container(tmp_path / "x", FORMAT)
    write_toy(tmp_path / "y", FormatVersion("toy", 1, 9))
    Container(tmp_path / "y", FORMAT).close()
    with pytest.raises(FormatError, match="'toy' file, not other"):
        Container(tmp_path / "y", FormatVersion("other", 1, 0))


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"\x89PNG\r\n" * 50, b"PK\x05\x06" + bytes(18), bytes(range(256)) * 16]
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        Container(path, FORMAT)


def test_a_real_zip_of_someone_else_is_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(FormatError):
        Container(path, FORMAT)


def test_folders_fifos_and_missing_files(tmp_path):
    with pytest.raises(FormatError, match="not a regular file"):
        Container(tmp_path, FORMAT)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a regular file"):
        Container(tmp_path / "pipe", FORMAT)
    with pytest.raises(ArgumentError, match="No such file"):
        Container(tmp_path / "none", FORMAT)


def test_a_bound_is_checked_before_reading(toy):
    with Container(toy, FORMAT) as container, pytest.raises(FormatError, match="exceed the bound"):
        container.read("graph.json", 5)


def test_opening_reads_kilobytes(tmp_path, monkeypatch):
    path = tmp_path / "big"
    size = 300 << 20
    chunk = bytes(1 << 20)
    big = Section("big.bin", "blob", size, lambda: (chunk for _ in range(size >> 20)))
    write_container(path, {"format": FORMAT.as_dict()}, [big])
    seen = []
    real = os.pread

    def counting(handle, count, offset):
        seen.append(count)
        return real(handle, count, offset)

    monkeypatch.setattr(os, "pread", counting)
    Container(path, FORMAT).close()
    assert sum(seen) < 8192


def test_zip64_headers_round_trip_without_writing_four_gigabytes():
    big = 5 << 30
    entries = [zip_layout.Entry("manifest.json", 100, 1, 0)]
    for name, size in [("a.bin", big), ("b.bin", 7), ("c.bin", 0xFFFFFFFF)]:
        entries.append(zip_layout.Entry(name, size, 2, entries[-1].end))
    offset = entries[-1].end
    data = zip_layout.directory(entries, offset)
    file_size = offset + len(data)
    found = zip_layout.locate_directory(data[-zip_layout.TAIL_SIZE :], file_size)
    assert found[0] == offset
    assert zip_layout.parse_directory(data, *found) == entries
    assert all(e.data_offset % 64 == 0 for e in entries)


def test_a_sparse_file_over_four_gigabytes_opens_in_the_zipfile_module(tmp_path):
    """Python's own reader takes our ZIP64 records; the file has holes, so it costs no space."""
    size = (4 << 30) + 123
    first = zip_layout.Entry("manifest.json", 2, 0, 0)
    entries = [first, zip_layout.Entry("a.bin", size, 0, first.end)]
    entries.append(zip_layout.Entry("b.bin", 0, 0, entries[-1].end))
    path = tmp_path / "x"
    with path.open("wb") as file:
        for entry in entries:
            file.seek(entry.offset)
            file.write(zip_layout.local_header(entry))
        file.seek(entries[-1].end)
        file.write(zip_layout.directory(entries, entries[-1].end))
    with zipfile.ZipFile(path) as archive:
        assert [(i.filename, i.file_size) for i in archive.infolist()] == [
            ("manifest.json", 2),
            ("a.bin", size),
            ("b.bin", 0),
        ]
        assert archive.read("b.bin") == b""


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "A", "a//b", ".hidden", "a\\b", "", "é"])
def test_names_that_leave_the_file_cannot_be_written(tmp_path, name):
    with pytest.raises(ValueError, match="not a section name"):
        write_container(tmp_path / "x", {}, [Section.of_bytes(name, "k", b"")])
    assert list(tmp_path.iterdir()) == []


def test_output_errors_leave_nothing_behind(tmp_path, monkeypatch):
    with pytest.raises(OutputWriteError, match="No such file") as caught:
        write_toy(tmp_path / "missing" / "x")
    assert caught.value.details["path"].endswith("missing/x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputWriteError):
        write_toy(tmp_path / "folder")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer_module.os, "fsync", full)
    with pytest.raises(OutputWriteError, match="No space left"):
        write_toy(tmp_path / "x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_keeps_the_old_file(toy):
    before = toy.read_bytes()
    broken = Section("a.bin", "k", 5, lambda: (b"four",))
    with pytest.raises(ValueError, match="4 bytes, not 5"):
        write_container(toy, {}, [broken])
    assert toy.read_bytes() == before
    assert len(list(toy.parent.iterdir())) == 1


# -- JSON ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"{", b"[1,]", b"NaN", b"[Infinity]", b'{"a":1,"a":2}', b"\xff", b"[" * 100_000, b"1" * 5000],
)
def test_bad_json_is_a_format_error(text):
    with pytest.raises(FormatError, match="some section"):
        parse_json(text, "some section")


def test_too_many_items_are_refused_before_parsing():
    with pytest.raises(FormatError, match="more than"):
        parse_json(b"[" + b"0," * 9_000_000 + b"0]", "s")


def test_floats_survive_json_exactly():
    values = [float(np.float32(v)) for v in (0.1, 1e-30, 3.14159, 2.0**-100)]
    assert parse_json(dump_json(values), "s") == values
    with pytest.raises(ValueError, match="JSON"):
        dump_json(float("nan"))


def test_fields_name_the_place():
    fields = Fields({"a": [{"b": 3}]}, "graph.json")
    (inner,) = fields.nested_list("a", 5)
    with pytest.raises(
        FormatError, match=re.escape("graph.json: a[0]: 'b' must be an integer in 0..2")
    ):
        inner.integer("b", 0, 2)
    for bad in (True, "1", 1.0, None, 10**30):
        with pytest.raises(FormatError):
            Fields({"x": bad}, "s").integer("x", 0, 100)


# -- tensors ------------------------------------------------------------------------------


def tensors_bytes(header, data=b""):
    text = dump_json(header)
    return memoryview(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "I8", "shape": [-4], "data_offsets": [0, 4]}},
        {"x": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}},
        {"x": {"dtype": "I8", "shape": [4], "data_offsets": [0]}},
        {"x": {"dtype": "I8", "shape": [2**33, 2**33], "data_offsets": [0, 4]}},
        {"x": [1]},
        [],
    ],
)
def test_hostile_tensor_headers(header):
    with pytest.raises(FormatError, match="w:"):
        TensorsReader(tensors_bytes(header, b"1234"), "w")


def test_huge_empty_shapes_do_not_crash():
    header = {"x": {"dtype": "F64", "shape": [0, 2**39, 2**39, 2**39], "data_offsets": [0, 0]}}
    reader = TensorsReader(tensors_bytes(header), "w")
    with pytest.raises(FormatError, match="'x'"):
        reader.array("x")
    with pytest.raises(FormatError, match="no tensor"):
        reader.array("y")


def test_header_length_beyond_the_section():
    with pytest.raises(FormatError, match="claims"):
        TensorsReader(memoryview((1 << 60).to_bytes(8, "little") + b"{}"), "w")
    with pytest.raises(FormatError, match="shorter"):
        TensorsReader(memoryview(b"123"), "w")


def test_tensors_are_aligned_to_their_elements():
    tensors = {
        "a": np.zeros(3, np.int8),
        "b": np.zeros(3, np.float64),
        "c": np.zeros(1, np.int16),
        "d": np.zeros(5, np.float32),
    }
    section = tensors_section("w.safetensors", tensors)
    raw = b"".join(section.chunks())
    assert len(raw) == section.size
    reader = TensorsReader(memoryview(raw), "w")
    for view in reader.tensors.values():
        assert view.begin % view.dtype.itemsize == 0
    assert (8 + int.from_bytes(raw[:8], "little")) % 64 == 0


def test_what_cannot_be_stored_is_said():
    for tensors in ({"x": np.array(["a"], dtype=object)}, {"__metadata__": np.zeros(1)}):
        with pytest.raises(ValueError, match="cannot be stored"):
            tensors_section("w", tensors)
