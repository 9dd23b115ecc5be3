"""Bits by the parts of a transformer block, which are found by how layers are connected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.normalization import NormAttrs
from qbcompiler.ops.rotary import RotaryAttrs
from qbcompiler.ops.shapes import TransposeAttrs
from qbcompiler.ops.slicing import AxisAttrs, SliceAttrs
from qbcompiler.ops.views import HeaderViewAttrs
from qbcompiler.package import read_mxq
from qbcompiler.quantization import QuantSettings
from qbcompiler.quantization.roles import find_roles

from .pass_graphs import Build


def count(graph: Graph) -> Counter[str]:
    return Counter(role for roles in find_roles(graph).values() for role in roles)


def test_minilms_parts_are_found(models_dir: Path) -> None:
    graph = parse(load_model(models_dir / "minilm.onnx"), input_shapes={})
    assert count(graph) == {
        "query": 6, "key": 6, "value": 6, "output": 6, "ffn/up": 6, "ffn/down": 6
    }  # fmt: skip
    roles = find_roles(graph)
    assert roles["/m/encoder/layer.3/attention/self/query/MatMul"] == ("query",)
    assert roles["/m/encoder/layer.5/output/dense/MatMul"] == ("ffn/down",)
    assert roles["/m/encoder/layer.0/attention/output/dense/MatMul"] == ("output",)


def test_projections_that_a_model_stores_as_one_have_a_role_each(digits_vit: Path) -> None:
    graph = parse(load_model(digits_vit), input_shapes={})
    assert count(graph) == {
        "query": 3, "key": 3, "value": 3, "output": 3, "ffn/up": 3, "ffn/down": 3, "head": 1
    }  # fmt: skip
    assert all(len(roles) == 1 for roles in find_roles(graph).values())


def test_one_projection_has_all_the_roles_that_it_serves() -> None:
    b = Build()
    normed = b.op("RmsNormalization", b.x(1, 6, 16), b.positive(16), attrs=NormAttrs(2, 1e-5))
    whole = b.op("MatMul", normed, b.normal(16, 48), out="whole")
    q, k, v = (
        b.op("Slice", whole, attrs=SliceAttrs((0, 0, start), (1, 6, 16), (1, 1, 1)))
        for start in (0, 16, 32)
    )
    heads = [b.op("HeaderView", x, attrs=HeaderViewAttrs(2)) for x in (q, k, v)]
    keys = b.op("Transpose", heads[1], attrs=TransposeAttrs((0, 1, 3, 2)))
    shares = b.op("Softmax", b.op("MatMul", heads[0], keys), attrs=AxisAttrs(3))
    mixed = b.op("HeaderViewRevert", b.op("MatMul", shares, heads[2]))
    graph = b.done(b.op("MatMul", mixed, b.normal(16, 16), out="o"))
    by_output = {graph.node(n).outputs[0]: roles for n, roles in find_roles(graph).items()}
    assert by_output["whole"] == ("query", "key", "value")


def test_a_gated_block_with_rotary_embedding_and_a_mask(digits: Any) -> None:
    b = Build()
    x = b.x(1, 6, 16)
    normed = b.op("RmsNormalization", x, b.positive(16), attrs=NormAttrs(axis=2, epsilon=1e-5))
    made = {n: b.op("MatMul", normed, b.normal(16, 16), out=n) for n in ("q", "k", "v")}
    heads = {n: b.op("HeaderView", v, attrs=HeaderViewAttrs(2)) for n, v in made.items()}
    turned = {
        n: b.op("RotaryEmbedding", heads[n], b.normal(6, 8), b.normal(6, 8), attrs=RotaryAttrs())
        for n in ("q", "k")
    }
    keys = b.op("Transpose", turned["k"], attrs=TransposeAttrs((0, 1, 3, 2)))
    scores = b.op("MultiplyConstant", b.op("MatMul", turned["q"], keys), b.const(0.35))
    masked = b.op("AddingConstant", scores, b.normal(6, 6))
    shares = b.op("Softmax", masked, attrs=AxisAttrs(3))
    mixed = b.op("HeaderViewRevert", b.op("MatMul", shares, heads["v"]))
    x = b.op("Adding", x, b.op("MatMul", mixed, b.normal(16, 16), out="o"))
    normed = b.op("RmsNormalization", x, b.positive(16), attrs=NormAttrs(axis=2, epsilon=1e-5))
    gate = b.op("Swish", b.op("MatMul", normed, b.normal(16, 32), out="gate"))
    up = b.op("MatMul", normed, b.normal(16, 32), out="up")
    down = b.op("MatMul", b.op("Multiply", gate, up), b.normal(32, 16), out="down")
    graph = b.done(b.op("MatMul", b.op("Adding", x, down), b.normal(16, 5), out="head"))
    by_output = {graph.node(n).outputs[0]: roles for n, roles in find_roles(graph).items()}
    assert by_output == {
        "q": ("query",), "k": ("key",), "v": ("value",), "o": ("output",),
        "gate": ("ffn/gate",), "up": ("ffn/up",), "down": ("ffn/down",), "head": ("head",),
    }  # fmt: skip


def test_a_network_without_attention_has_no_roles(digits_cnn: Path) -> None:
    graph = parse(load_model(digits_cnn), input_shapes={})
    assert find_roles(graph) == {}
    b = Build()
    normed = b.op("LayerNormalization", b.x(1, 4, 8), b.positive(8), b.normal(8),
                  attrs=NormAttrs(axis=2, epsilon=1e-5))  # fmt: skip
    up = b.op("Clip", b.op("MatMul", normed, b.normal(8, 16)), attrs=ClipAttrs(0.0, 6.0))
    mlp = b.done(b.op("MatMul", up, b.normal(16, 8)))
    assert find_roles(mlp) == {}


def compiled(
    path: Path,
    digits: Any,
    folder: Path,
    config: dict[str, Any],
    *,
    samples: int = 16,
    **more: Any,
) -> Any:
    folder.mkdir()
    for i, image in enumerate(digits.train_images[:samples]):
        np.save(folder / f"{i:03}.npy", image.transpose(1, 2, 0))
    return mxq_compile(
        path, save_path=folder / "m.mxq", target_device="regulus-rb", calib_data_path=folder,
        compile_config=config, **more,
    )  # fmt: skip


def sqnr(result: Any) -> float:
    return float(result.summary["accuracy"]["outputs"][0]["sqnr_db"])


def test_bits_by_part_reach_the_layers_and_help(
    digits_vit: Path, digits: Any, tmp_path: Path
) -> None:
    plain = compiled(digits_vit, digits, tmp_path / "a", {})
    table = {"activation": {"output": 16, "ffn": 16}, "weight": {"ffn": {"down": 16}, "value": 4}}
    wide = compiled(digits_vit, digits, tmp_path / "b", {"bit": {"transformer": table}})
    assert sqnr(wide) != sqnr(plain)
    with read_mxq(wide.path) as opened:
        layers = {layer.name: layer for layer in opened.body.layers}
        values = opened.body.values
    roles = find_roles(parse(load_model(digits_vit), input_shapes={}))
    for name, own in roles.items():
        weight = layers[name].tensors["weight"]
        bits = values[layers[name].outputs[0]].quant.bits
        assert weight.dtype == (np.int16 if own == ("ffn/down",) else np.int8), name
        if own == ("value",):
            assert np.abs(weight).max() <= 7
        if own[0] in ("output", "ffn/up", "ffn/down"):
            assert bits == 16, name
    names = [n for n, own in roles.items() if own == ("ffn/down",)]
    by_name = {
        "transformer": table, "layerOverrides": {"weight8Bits": names[:1]}
    }  # fmt: skip
    named = compiled(digits_vit, digits, tmp_path / "c", {"bit": by_name})
    with read_mxq(named.path) as opened:
        kept = {layer.name: layer.tensors for layer in opened.body.layers}
    assert kept[names[0]]["weight"].dtype == np.int8
    assert kept[names[1]]["weight"].dtype == np.int16


def test_the_vision_transformer_preset_compiles_and_reads_digits(
    digits_vit: Path, digits: Any, tmp_path: Path
) -> None:
    # few samples say little of weights' rounding: the gain would be within their noise
    preset = compiled(
        digits_vit, digits, tmp_path / "p", {}, samples=128, config_preset="vision_transformer"
    )
    method: dict[str, Any] = {"calibration": {"method": 1}}
    plain = compiled(digits_vit, digits, tmp_path / "q", method, samples=128)
    assert sqnr(preset) > sqnr(plain) + 3.0
    assert not [w for w in preset.summary["warnings"] if "bit.transformer" in w]


def test_a_part_that_the_model_lacks_is_told(digits_cnn: Path, digits: Any, tmp_path: Path) -> None:
    table = {"bit": {"transformer": {"activation": {"query": 16}}}}
    result = compiled(digits_cnn, digits, tmp_path / "x", table)
    assert (
        "bit.transformer: no layer of the model is a transformer's query"
        in result.summary["warnings"]
    )


@pytest.mark.parametrize("section", ["activation", "weight"])
def test_eight_bits_everywhere_is_no_table(section: str, digits_vit: Path) -> None:
    config = CompileConfig.from_data({"bit": {"transformer": {section: {"ffn": 8}}}})
    settings = QuantSettings.from_config(config)
    assert settings.for_graph(parse(load_model(digits_vit), input_shapes={})) is settings
