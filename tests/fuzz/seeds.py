"""The good input that mutants are made from: small, and the same on every machine."""

from __future__ import annotations

import io
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from PIL import Image

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig, load_preset, preset_names

from ..support.zoo import Net, gru, plain_cnn

__all__ = ["WORDS", "calibration_files", "configs", "models", "packages"]

WORDS = (
    *("x", "y", "w0", "w1", "Conv_0_out0", "", "ai.onnx", "com.microsoft", "Conv", "Reshape"),
    *("If", "Loop", "Scan", "Constant", "ConstantOfShape", "Expand", "Tile", "Range", "Pad"),
    *("Resize", "Gather", "Slice", "Transpose", "QLinearConv", "Einsum", "Squeeze", "Split"),
    *("axes", "axis", "perm", "shape", "value", "kernel_shape", "pads", "strides", "group"),
    *("location", "offset", "length", "../secret", "/etc/passwd", "weights.bin", "equation"),
)


def _branches() -> onnx.ModelProto:
    """A model with sub-graphs, a function, shape arithmetic and external data."""
    net = Net(17)
    x = net.x("x", [1, 3, 8, 8])
    shape = net.op("Shape", x)
    rows = net.op("Gather", shape, net.const(np.int64(0)), axis=0)
    target = net.op(
        "Concat", net.op("Unsqueeze", rows, net.const(np.array([0]))), net.const(np.array([-1])),
        axis=0,
    )  # fmt: skip
    flat = net.op("Reshape", x, target)

    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [1, 192])
        return helper.make_graph([helper.make_node(op, [flat], [f"{name}_out"])], name, [], [out])

    truth = net.const(np.array(True))
    chosen = net.op(
        "If", truth, then_branch=branch("then", "Relu"), else_branch=branch("no", "Abs")
    )
    y = net.op("MatMul", chosen, net.normal(192, 4))
    model = net.done(y=y)
    weight = next(w for w in model.graph.initializer if list(w.dims) == [192, 4])
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "3072")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    return model


def _mixed() -> onnx.ModelProto:
    """A model of many operators with shape and axis attributes."""
    net = Net(17)
    x = net.conv(net.x("x", [1, 4, 8, 8]), 4, 8, 3)
    x = net.op("Resize", x, "", net.const(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    x = net.op("Pad", x, net.const(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    x = net.op("Slice", x, net.const(np.array([1, 1])), net.const(np.array([17, 17])),
               net.const(np.array([2, 3])))  # fmt: skip
    a, b = net.op("Split", x, net.const(np.array([4, 4])), axis=1, outputs=2)
    x = net.op("Concat", net.silu(a), net.op("Transpose", b, perm=[0, 1, 3, 2]), axis=1)
    x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Reshape", x, net.const(np.array([1, 8, -1])))
    x = net.op("Softmax", net.layer_norm(net.linear(x, 64, 16), 16), axis=-1)
    x = net.op("Tile", net.op("ReduceMax", x, axes=[1]), net.const(np.array([1, 2, 1])))
    return net.done(y=net.op("Expand", x, net.const(np.array([1, 2, 16]))))


@lru_cache(maxsize=1)
def models() -> tuple[bytes, ...]:
    """ONNX models."""
    made = (plain_cnn(17), _branches(), _mixed(), gru())
    return tuple(m.SerializeToString() for m in made)


@lru_cache(maxsize=1)
def packages() -> tuple[bytes, bytes]:
    """An MBLT and its MXQ."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mxq_compile(
            models()[0],
            save_path=folder / "m.mxq",
            mblt_save_path=folder / "m.mblt",
            target_device="regulus-rb",
            use_random_calib=True,
            input_shape_dict={"x": (1, 3, 16, 16)},
        )
        return (folder / "m.mblt").read_bytes(), (folder / "m.mxq").read_bytes()


@lru_cache(maxsize=1)
def calibration_files() -> dict[str, bytes]:
    """Samples of each kind, by file name."""
    rng = np.random.default_rng(3)

    def saved(write: Any) -> bytes:
        buffer = io.BytesIO()
        write(buffer)
        return buffer.getvalue()

    image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
    array = rng.normal(size=(1, 3, 16, 16)).astype(np.float32)
    files = {
        "0.npy": saved(lambda f: np.save(f, array)),
        "1.npy": saved(lambda f: np.save(f, array.astype(">f8"))),
        "2.npz": saved(lambda f: np.savez(f, x=array)),
        "3.npz": saved(lambda f: np.savez_compressed(f, x=array)),
        "list.txt": b"0.npy\n1.npy\n",
        "list.json": b'[{"x": "0.npy"}, {"x": "1.npy"}]',
        "4.npy": saved(lambda f: np.save(f, np.array([{"a": 1}], dtype=object), allow_pickle=True)),
        "5.pt": _torch(array),
    }
    for kind in ("png", "jpeg", "bmp", "webp", "tiff"):
        files[f"6.{kind}"] = saved(lambda f, kind=kind: image.save(f, kind))
    return files


def _torch(array: Any) -> bytes:
    """What ``torch.save`` of a tensor writes, in outline: a ZIP with a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.")
        archive.writestr("archive/data/0", array.tobytes())
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def configs() -> tuple[Any, ...]:
    """Configurations as JSON data: every preset's, every field's, and steps of preprocessing."""
    return (
        *(load_preset(name).config for name in preset_names()),
        CompileConfig().model_dump(mode="json", by_alias=True),
        {
            "imageChannels": 3,
            "preprocessing": {
                "apply": True,
                "pipeline": [
                    {"op": "resize", "size": 256},
                    {"op": "centerCrop", "height": 224, "width": 224},
                    {"op": "normalize", "mean": [0.485, 0.456, 0.4], "std": [0.2, 0.2, 0.2]},
                ],
            },
        },
    )
