"""Sample files that are whole, broken or hostile."""

from __future__ import annotations

import io
import struct
import sys
import types
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qbcompiler.calibration import Limits
from qbcompiler.calibration.readers import Content, ReadContext, reader_for
from qbcompiler.errors import CalibrationDataError


def read(path: Path, channels: int | None = None, **limits: Any) -> Content:
    reader = reader_for(path)
    assert reader is not None
    return reader.read(path, ReadContext(path.name, Limits(**limits), channels))


def array(path: Path, channels: int | None = None) -> np.ndarray:
    return next(iter(read(path, channels).tensors.values()))


def npy_header(text: str, version: int = 1) -> bytes:
    body = text.encode("latin1")
    body += b" " * (-(len(body) + 11) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(body))
    return b"\x93NUMPY" + bytes([version, 0]) + size + body


@pytest.mark.parametrize(
    "dtype", ["<f4", ">f4", "<f8", "<f2", "<i8", ">i4", "u1", "?", "<u2", "<u8"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_arrays_come_back(tmp_path: Path, dtype: str, order: str) -> None:
    want = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, dtype=dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", want)
    got = array(tmp_path / "a.npy")
    np.testing.assert_array_equal(got, want)
    assert got.dtype.isnative and got.dtype.name == want.dtype.name


def test_npy_of_rank_zero_and_of_no_element(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32(3))
    assert array(tmp_path / "a.npy").shape == ()
    np.save(tmp_path / "a.npy", np.zeros((3, 0), np.float32))
    assert array(tmp_path / "a.npy").shape == (3, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "corrupt or truncated"),
        (b"\x93NUMPY", "corrupt or truncated"),
        (b"hello world, this is no array", "corrupt or truncated"),
        (npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"), "truncated"),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }") + b"\0" * 15,
            "truncated",
        ),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,), }"),
            "corrupt or truncated",
        ),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
            "above the bound",
        ),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }"),
            "impossible shape",
        ),
        (npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "Python objects"),
        (npy_header("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }"), "complex64"),
        (npy_header("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }"), "<U4"),
        (npy_header("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }"), "datetime"),
        (
            npy_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"),
            "element type",
        ),
        (npy_header("__import__('os').abort()"), "corrupt or truncated"),
        (b"\x93NUMPY\x07\x00" + b"\0" * 100, "version"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b"x" * 64, "corrupt or truncated"),
    ],
)
def test_bad_npy_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.npy"
    path.write_bytes(content)
    with pytest.raises(CalibrationDataError, match=said) as found:
        read(path)
    assert found.value.details["sample"] == "bad.npy"
    assert found.value.message.startswith("calibration sample 'bad.npy': ")


def test_pickled_arrays_are_refused_without_running_anything(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("raise SystemExit('pickle ran')",))

    boxed = np.empty(1, object)
    boxed[0] = Evil()
    np.save(tmp_path / "a.npy", boxed, allow_pickle=True)
    np.savez(tmp_path / "b.npz", x=boxed)
    for name in ("a.npy", "b.npz"):
        with pytest.raises(CalibrationDataError, match="Python objects, which are never loaded"):
            read(tmp_path / name)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_flipped_and_cut_npy_bytes_never_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype=np.float32).reshape(2, 3))
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    path = tmp_path_factory.mktemp("fuzz") / "x.npy"
    path.write_bytes(bytes(raw))
    try:
        content = read(path, max_sample_bytes=1 << 20)
    except CalibrationDataError as exc:
        assert exc.details["sample"] == "x.npy"
    else:
        assert content.tensors[None].nbytes <= 1 << 20


def zipped(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({}, "holds no array"),
        ({"a.txt": b"x"}, "not an array"),
        ({"a.npy": b"x"}, "corrupt or truncated"),
        ({f"{i}.npy": b"" for i in range(1100)}, "1100 entries"),
        (
            {
                "a.npy": npy_header(
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (268435456,), }"
                )
                + bytes(1 << 22)
            },
            "truncated",
        ),
        (
            {
                "a.npy": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }")
                + bytes(1 << 20)
            },
            "goes on after its array",
        ),
    ],
)
def test_bad_npz_files_are_refused(tmp_path: Path, entries: dict[str, bytes], said: str) -> None:
    with pytest.raises(CalibrationDataError, match=said):
        read(zipped(tmp_path / "a.npz", entries))


def test_an_archive_is_bounded_as_a_whole(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **{f"t{i}": np.zeros(1000) for i in range(4)})
    assert len(read(tmp_path / "a.npz", max_sample_bytes=32_000).tensors) == 4
    with pytest.raises(CalibrationDataError, match="exceed 31000 bytes"):
        read(tmp_path / "a.npz", max_sample_bytes=31_000)


def test_not_a_zip(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(CalibrationDataError, match="corrupt or truncated"):
        read(tmp_path / "a.npz")


# -- pictures -----------------------------------------------------------------------------


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (5, 4), **options: Any) -> Path:
    rng = np.random.default_rng(0)
    bands = len(Image.new(mode, (1, 1)).getbands())
    shape = (size[1], size[0]) if bands == 1 else (size[1], size[0], bands)
    pixels = rng.integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels, mode).save(path, **options) if mode not in ("1", "P") else (
        Image.fromarray(pixels).convert(mode).save(path, **options)
    )
    return path


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.webp", "a.tif", "a.tiff", "A.PNG"])
def test_lossless_pictures_come_back_exactly(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    options = {"lossless": True} if name.endswith("webp") else {}
    Image.fromarray(pixels).save(tmp_path / name, **options)
    content = read(tmp_path / name)
    assert content.is_image
    np.testing.assert_array_equal(content.tensors[None], pixels)


def test_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpeg", size=(33, 21))
    np.testing.assert_array_equal(array(path, 3), np.asarray(Image.open(path).convert("RGB")))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_are_converted_as_pillow_does(tmp_path: Path, mode: str, channels: int) -> None:
    path = picture(tmp_path / "a.png", mode)
    want = np.asarray(Image.open(path).convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    got = array(path, channels)
    assert got.shape == (4, 5, channels) and got.dtype == np.uint8
    np.testing.assert_array_equal(got, want.reshape(4, 5, channels))


def test_pictures_that_cannot_be_converted_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(CalibrationDataError, match="more than 8 bits a channel"):
        read(tmp_path / "deep.png", 3)
    with pytest.raises(CalibrationDataError, match="cannot feed an input of 64 channels"):
        read(picture(tmp_path / "a.png"), 64)


def test_pictures_are_bounded_before_decoding(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png", size=(100, 50))
    assert read(path, max_pixels=5000).tensors[None].shape == (50, 100, 3)
    with pytest.raises(CalibrationDataError, match="100x50 pixels, above the bound"):
        read(path, max_pixels=4999)


def png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [12_000, 100_000])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path, side: int) -> None:
    (tmp_path / "bomb.png").write_bytes(png(side, side, bytes(1000)))
    with pytest.raises(CalibrationDataError, match=r"above the bound|too large"):
        read(tmp_path / "bomb.png", 3)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp", "a.tif"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_pictures_are_refused(tmp_path: Path, name: str, share: float) -> None:
    path = picture(tmp_path / name, size=(64, 48))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(CalibrationDataError, match="corrupt or truncated") as found:
        read(path, 3)
    assert found.value.details["sample"] == name


def test_other_formats_under_a_picture_name_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    with pytest.raises(CalibrationDataError, match="corrupt or truncated"):
        read(tmp_path / "a.png", 3)
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.jpg")
    with pytest.raises(CalibrationDataError, match="corrupt or truncated"):
        read(tmp_path / "b.jpg", 3)


def test_the_first_frame_counts_and_exif_rotation_does_not(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 4), (i, i, i)) for i in (10, 20)]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    assert array(tmp_path / "a.tif", 3)[0, 0, 0] == 10
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    picture(tmp_path / "b.jpg", size=(6, 4), exif=exif)
    assert array(tmp_path / "b.jpg", 3).shape == (4, 6, 3)


# -- PyTorch ------------------------------------------------------------------------------


def test_pt_samples_without_pytorch_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(CalibrationDataError, match="needs PyTorch, which is not installed") as e:
        read(tmp_path / "a.pt")
    assert "numpy.save" in (e.value.hint or "")


def test_pt_samples_are_loaded_weights_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch is no test dependency: a module with its interface shows how it is called."""
    calls: list[dict[str, Any]] = []

    class Tensor:
        is_quantized = False
        layout = "strided"

        def __init__(self, data: np.ndarray, dtype: str = "float32") -> None:
            self.data, self.dtype, self.shape = data, dtype, data.shape

        def float(self) -> Tensor:
            return Tensor(self.data.astype(np.float32))

        def detach(self) -> Tensor:
            return self

        def contiguous(self) -> Tensor:
            return self

        def numpy(self) -> np.ndarray:
            if self.dtype == "bfloat16":
                raise TypeError("no such type")
            return self.data

    loaded: list[Any] = []

    def load(path: Path, **options: Any) -> Any:
        calls.append(options)
        if isinstance(loaded[0], Exception):
            raise loaded[0]
        return loaded[0]

    torch = types.SimpleNamespace(Tensor=Tensor, load=load, strided="strided", bfloat16="bfloat16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    path = tmp_path / "a.pt"
    path.write_bytes(b"x")
    want = np.arange(4, dtype=np.float32)
    loaded[:] = [Tensor(want, "bfloat16")]
    np.testing.assert_array_equal(array(path), want)
    assert calls == [{"map_location": "cpu", "weights_only": True}]
    loaded[:] = [{"a": Tensor(want), "b": Tensor(want)}]
    assert list(read(path).tensors) == ["a", "b"]
    for other in ([1, 2], {}, {"a": 3}, {1: Tensor(want)}):
        loaded[:] = [other]
        with pytest.raises(CalibrationDataError, match=f"holds a {type(other).__name__}"):
            read(path)
    loaded[:] = [RuntimeError("Weights only load failed")]
    with pytest.raises(CalibrationDataError, match="Weights only load failed"):
        read(path)
