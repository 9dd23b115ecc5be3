"""What a file that is not a model looks like, so that the refusal can say it."""

from __future__ import annotations

__all__ = ["looks_like"]

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer; upload the file that it stands for"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 (Keras) file; convert it to ONNX with tf2onnx"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it to ONNX with tf2onnx"),
    (4, b"ORTM", "an ONNX Runtime .ort file; upload the .onnx that it was made from"),
    (0, b"GGUF", "a GGUF file; export the original model to ONNX"),
    (0, b"\x93NUMPY", "a NumPy array; calibration data goes to /v1/calibrations"),
    (0, b"\x89PNG", "a PNG image; calibration data goes to /v1/calibrations"),
    (0, b"\xff\xd8\xff", "a JPEG image; calibration data goes to /v1/calibrations"),
    (0, b"\x1f\x8b", "a gzip archive; upload the model itself"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive; upload the model itself"),
    (0, b"\xfd7zXZ", "an xz archive; upload the model itself"),
    (0, b"BZh", "a bzip2 archive; upload the model itself"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive; upload the model itself"),
    (257, b"ustar", "a tar archive; upload the model itself"),
    (0, b"\x7fELF", "an executable"),
    (0, b"%PDF", "a PDF document"),
)


def looks_like(head: bytes) -> str | None:
    """Return what the first bytes look like, with the way out, or None."""
    if not head:
        return "an empty file"
    for offset, signature, phrase in _SIGNATURES:
        if head.startswith(signature, offset):
            return phrase
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return "a Python pickle (a PyTorch checkpoint?); export it with torch.onnx.export"
    start = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page; the download that it came from may have failed"
    if start.startswith(b"<?xml"):
        return "an XML file; export the original model to ONNX"
    if start.startswith(b"{"):
        return "a JSON file"
    return None
