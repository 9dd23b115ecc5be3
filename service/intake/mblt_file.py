"""Reads the manifest of an MBLT: what it was parsed from and for, its inputs and outputs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from .onnx_file import ModelFacts, NotAModel

__all__ = ["is_zip", "read_mblt"]

MAX_MANIFEST = 64 << 20
_HINT = "upload the file that a parse wrote, unchanged"


def is_zip(path: Path) -> bool:
    """Say whether a file begins as a ZIP archive does."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def read_mblt(path: Path) -> ModelFacts:
    """Read an MBLT's manifest. The compiler checks the rest of the file before it uses it.

    Raises:
        NotAModel: it is no MBLT, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "manifest.json" not in names:
                raise NotAModel(f"not an MBLT: it looks like {_other(names)}", _HINT)
            info = archive.getinfo("manifest.json")
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_MANIFEST:
                raise NotAModel("the MBLT is damaged: its manifest is not stored as it must be")
            manifest = json.loads(archive.read(info))
    except (zipfile.BadZipFile, ValueError, OSError, RecursionError) as exc:
        if isinstance(exc, NotAModel):
            raise
        raise NotAModel("the MBLT is damaged or cut short", _HINT) from exc
    said = manifest.get("format") if isinstance(manifest, dict) else None
    kind = said.get("name") if isinstance(said, dict) else None
    if kind == "mxq":
        raise NotAModel("an MXQ is a finished package, not a model", "upload the MBLT or the ONNX")
    if kind != "mblt":
        raise NotAModel("not an MBLT: its manifest names another format", _HINT)
    try:
        return _facts(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise NotAModel("the MBLT is damaged: its manifest is not complete", _HINT) from exc


def _facts(manifest: dict[str, Any]) -> ModelFacts:
    source = manifest["source"]
    device = manifest.get("target_device")
    return ModelFacts(
        inputs=[_port(p) for p in manifest["inputs"]],
        outputs=[_port(p) for p in manifest["outputs"]],
        facts={
            "producer": str(source.get("producer", ""))[:1000],
            "opset": {str(k): int(v) for k, v in source.get("opset", {}).items()},
            "source_sha256": str(source["sha256"])[:64],
            "target_device": None if device is None else str(device)[:64],
            "cpu_offload": bool(manifest.get("cpu_offload", False)),
            "compiler": _plain(manifest.get("compiler")),
        },
    )


def _port(port: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(port["name"])[:4096],
        "dtype": str(port["dtype"])[:32],
        "shape": [int(d) for d in port["shape"]],
        "layout": None if port.get("layout") is None else str(port["layout"])[:64],
    }


def _plain(value: Any) -> dict[str, str]:
    return {str(k)[:64]: str(v)[:256] for k, v in value.items()} if isinstance(value, dict) else {}


def _other(names: list[str]) -> str:
    if any(n.endswith(("data.pkl", "constants.pkl")) for n in names):
        return "a PyTorch file; export the model with torch.onnx.export"
    if any(n.endswith(".onnx") for n in names):
        return "a ZIP archive with an ONNX model in it; upload the model itself"
    if any(n.endswith(".npy") for n in names):
        return "an .npz file of arrays; calibration data goes to /v1/calibrations"
    return "a ZIP archive"
