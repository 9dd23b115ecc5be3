"""Says what a file that is not an ONNX model looks like, for the error message."""

from __future__ import annotations

import io
import zipfile

__all__ = ["looks_like"]

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer; fetch the file itself (git lfs pull)"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it with tf2onnx"),
    (4, b"ORTM", "an ONNX Runtime .ort model; give the .onnx it was made from"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras?); convert it with tf2onnx"),
    (0, b"GGUF", "a GGUF model; export the original model to ONNX"),
    (0, b"ptrt", "a TensorRT engine; give the ONNX model that it was built from"),
    (0, b"ftrt", "a TensorRT engine; give the ONNX model that it was built from"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "an executable"),
    (0, b"MZ", "a Windows executable"),
    (0, b"\x1f\x8b", "a gzip archive; unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it"),
    (0, b"\xfd7zXZ", "an xz archive; unpack it"),
    (0, b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (0, b"BZh", "a bzip2 archive; unpack it"),
    (257, b"ustar", "a tar archive; unpack it"),
)


def looks_like(head: bytes, whole: bytes | memoryview | None = None) -> str | None:
    """Return a phrase for what the bytes look like, None when nothing is recognised.

    Args:
        head: the first bytes, 512 or more when there are that many.
        whole: the whole file, to look into archives.
    """
    if not head:
        return "an empty file"
    for offset, magic, phrase in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return phrase
    if head[:4] == b"PK\x03\x04":
        return _archive(whole)
    if head[0:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle (a PyTorch checkpoint?); export it with torch.onnx.export"
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 28:
        return "a safetensors file, weights without a graph; export the model to ONNX"
    return _text(head)


def _archive(whole: bytes | memoryview | None) -> str:
    names: list[str] = []
    if whole is not None:
        try:
            with zipfile.ZipFile(io.BytesIO(whole)) as archive:
                names = archive.namelist()[:4096]
        except (zipfile.BadZipFile, OSError, ValueError):
            return "a damaged ZIP archive"
    if any(n.endswith(("data.pkl", "constants.pkl")) for n in names):
        return "a PyTorch checkpoint or TorchScript archive; export it with torch.onnx.export"
    if "manifest.json" in names:
        return "an MBLT or MXQ package, not a source model"
    if any(n.endswith("model.weights.h5") for n in names):
        return "a Keras model; convert it with tf2onnx"
    if any(n.endswith(".mlmodel") for n in names):
        return "a Core ML package; export the original model to ONNX"
    if any(n.endswith(".npy") for n in names):
        return "an .npz archive of arrays"
    onnx_names = [n for n in names if n.endswith(".onnx")]
    if onnx_names:
        return f"a ZIP archive that holds {onnx_names[0]!r}; unpack it"
    return "a ZIP archive"


def _text(head: bytes) -> str | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:256]
    lowered = start.lower()
    if lowered.startswith((b"<!doctype html", b"<html")):
        return "an HTML page (a download that went wrong?)"
    if lowered.startswith(b"<?xml"):
        return "an XML file (an OpenVINO model?); export the original model to ONNX"
    if b"\0" in head:
        return None
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as exc:
        # a character cut by the end of the head is no reason to doubt
        if exc.start < len(head) - 4:
            return None
    # short protobufs can be valid UTF-8; a text has few control characters
    if sum(b < 32 and b not in (9, 10, 13) for b in head) > 0:
        return None
    return "a JSON file" if start[:1] in (b"{", b"[") else "a text file"
