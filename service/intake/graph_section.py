"""Reads the graph of a stored MBLT, for people to look at; the weights are never read."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from .mblt_file import MAX_MANIFEST

__all__ = ["GraphUnreadableError", "read_graph"]

MAX_ATTRIBUTE = 2000
"""Characters of one attribute as JSON; a longer one is left out."""
_CHUNK = 1 << 18


class GraphUnreadableError(Exception):
    """The file is no MBLT that this version can read."""


def read_graph(read: Callable[[int, int], Iterator[bytes]], size: int) -> dict[str, Any]:
    """Return name, inputs, outputs and layers of an MBLT.

    A layer has the manifest's facts (place, device, reason, shapes, parameters, macs) and the
    graph's edges and attributes. Weights are not among its inputs.

    Args:
        read: yields the bytes from a start up to a stop.
        size: of the file, bytes.

    Raises:
        GraphUnreadableError: it is no MBLT, or its graph is not as this version writes it.
    """
    try:
        with zipfile.ZipFile(io.BufferedReader(_Ranges(read, size), _CHUNK)) as archive:
            manifest = _section(archive, "manifest.json")
            graph = _section(archive, "graph.json")
        return _joined(manifest, graph)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise GraphUnreadableError(str(exc)) from exc


def _section(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_MANIFEST:
        raise ValueError(f"{name} is not stored as it must be")
    found = json.loads(archive.read(info))
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not an object")
    return found


def _joined(manifest: dict[str, Any], graph: dict[str, Any]) -> dict[str, Any]:
    constants = {value["name"] for value in graph["values"] if "tensor" in value}
    facts = {layer["name"]: layer for layer in manifest["layers"]}
    layers = []
    for layer in graph["layers"]:
        known = facts.get(layer["name"], {})
        layers.append(
            {
                "name": layer["name"],
                "op": layer["op"],
                "source": layer.get("source", []),
                # an optional input that is absent has no name
                "inputs": [x for x in layer["inputs"] if x and x not in constants],
                "outputs": [x for x in layer["outputs"] if x],
                "shapes": known.get("shapes", []),
                "place": known.get("place"),
                "device": known.get("device"),
                "reason": known.get("reason"),
                "parameters": known.get("parameters"),
                "macs": known.get("macs"),
                "attributes": {
                    name: value
                    for name, value in layer.get("attrs", {}).items()
                    if len(json.dumps(value)) <= MAX_ATTRIBUTE
                },
            }
        )
    return {
        "name": graph["name"],
        "target_device": manifest.get("target_device"),
        "inputs": list(graph["inputs"]),
        "outputs": list(graph["outputs"]),
        "layers": layers,
    }


class _Ranges(io.RawIOBase):
    """A file of which only the parts that are read are fetched."""

    def __init__(self, read: Callable[[int, int], Iterator[bytes]], size: int) -> None:
        super().__init__()
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as the file goes."""
        stop = min(self._size, self._at + len(buffer))
        if stop <= self._at:
            return 0
        data = b"".join(self._read(self._at, stop))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
