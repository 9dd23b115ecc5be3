"""The NPU body of an MBLT as an MBLT of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError
from .paths import check_input, check_outputs, file_entry

if TYPE_CHECKING:
    from .devices import Device
    from .package import MbltMeta
    from .partition import PartitionedGraph

__all__ = ["extract_body", "write_body"]

StrPath = str | os.PathLike[str]


def write_body(
    path: StrPath, graph: PartitionedGraph, meta: MbltMeta, device: Device | None
) -> dict[str, Any]:
    """Write the body of a partitioned graph; return the file's entry.

    Raises:
        ArgumentError: there is no body.
        OutputWriteError: the file cannot be written.
    """
    from .package import MbltMeta, write_mblt
    from .partition import partition

    if graph.body is None:
        raise ArgumentError("the model has no layer that runs on the NPU")
    own = MbltMeta(
        meta.source_sha256, meta.producer, meta.opset, {**meta.parse_options, "part": "body"}
    )
    written = write_mblt(path, partition(graph.body, device), own)
    return file_entry("body", path, written.sha256, written.size)


def extract_body(mblt_path: StrPath, output_path: StrPath) -> Path:
    """Write the NPU body of an MBLT as an MBLT of its own.

    Its inputs are what the body reads; its calibration data has those names and shapes.

    Raises:
        ArgumentError: the MBLT has no body, or cannot be opened.
        FormatError: the MBLT is damaged.
        OutputWriteError: the output cannot be written.
    """
    from .devices import load_device
    from .package import read_mblt

    check_input(mblt_path, "MBLT")
    check_outputs({"the output": output_path}, [mblt_path])
    with read_mblt(mblt_path) as opened:
        opened.verify()
        if opened.partitioned.body is None:
            raise ArgumentError(
                f"{os.fspath(mblt_path)} has no layer that runs on the NPU",
                details={"path": os.fspath(mblt_path)},
            )
        name = opened.target_device
        device = None if name is None else load_device(name)
        write_body(output_path, opened.partitioned, opened.meta, device)
    return Path(output_path)
