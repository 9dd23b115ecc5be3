"""The ONNX export and the float engine, on operators made up for the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qbcompiler.errors import ArgumentError, InternalError
from qbcompiler.frontend import export, load_model, parse
from qbcompiler.frontend.export import Reduction, export_graph, to_onnx
from qbcompiler.ir import Attrs, DType, Graph, NoAttrs, Node, TensorType, Value
from qbcompiler.ops import OnnxEmitter, OpSpec, Registry
from qbcompiler.runtime.float_engine import FloatEngine


@dataclass(frozen=True, slots=True)
class ScaleAttrs(Attrs):
    by: float = 2.0


class Scale(OpSpec[ScaleAttrs]):
    name = "Scale"
    attrs_type = ScaleAttrs

    def infer(self, attrs: ScaleAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        assert inputs[0] is not None
        return [inputs[0].type]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        dtype = graph.value(node.inputs[0]).type.dtype.numpy
        assert isinstance(node.attrs, ScaleAttrs)
        factor = to.const(np.asarray(node.attrs.by, dtype=dtype))
        middle = to.temp()
        to.emit("Mul", [node.inputs[0], factor], [middle])
        to.emit("Identity", [middle], [node.outputs[0]])


class Product(OpSpec[NoAttrs]):
    name = "Product"
    attrs_type = NoAttrs

    def infer(self, attrs: NoAttrs, inputs: Sequence[Value | None]) -> list[TensorType]:
        a, b = inputs
        assert a is not None and b is not None
        return [a.type.with_shape((*a.shape[:-1], b.shape[-1]))]

    def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
        to.emit("MatMul", node.inputs, node.outputs)


class Broken(OpSpec[NoAttrs]):
    name = "Broken"
    attrs_type = NoAttrs


REGISTRY = Registry([Scale(), Product(), Broken()])
F32 = DType.FLOAT32


def two_layers(width: int = 40) -> Graph:
    g = Graph(name="g")
    g.add_input("x", TensorType(F32, (2, width)))
    weight = np.random.default_rng(0).normal(size=(width, width)).astype(np.float32)
    g.add_value("w", TensorType(F32, (width, width)), weight)
    g.add_value("h", TensorType(F32, (2, width)))
    g.add_value("y", TensorType(F32, (2, width)))
    g.add_node(Node("a", "Scale", ["x"], ["h"], ScaleAttrs(3.0)))
    g.add_node(Node("b", "Product", ["h", "w"], ["y"], NoAttrs()))
    g.outputs = ["y"]
    return g


def x_of(g: Graph, name: str = "x") -> dict[str, Any]:
    shape = g.value(name).shape
    return {name: np.random.default_rng(1).normal(size=shape).astype(np.float32)}


def test_the_exported_model_is_valid_and_deterministic() -> None:
    g = two_layers()
    data = _bytes(g)
    assert data == _bytes(two_layers())
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["x"]
    assert [o.name for o in model.graph.output] == ["y"]
    assert model.opset_import[0].version == 21


def _bytes(g: Graph) -> bytes:
    return export_graph(g, registry=REGISTRY).proto.SerializeToString(deterministic=True)


def test_large_constants_are_detached_and_shared() -> None:
    g = two_layers()
    model = export_graph(g, detach=True, registry=REGISTRY)
    assert list(model.detached) == ["w"]
    assert np.shares_memory(model.detached["w"], g.value("w").data)
    assert len(model.proto.SerializeToString()) < 1000


def test_any_value_can_be_asked_for() -> None:
    g = two_layers()
    feed = x_of(g)
    engine = FloatEngine(g, ["y", "h", "x", "w", "h"], registry=REGISTRY)
    out = engine.run(feed)
    assert list(out) == ["y", "h", "x", "w"] == list(engine.output_names)
    np.testing.assert_array_equal(out["x"], feed["x"])
    np.testing.assert_array_equal(out["w"], g.value("w").data)
    np.testing.assert_allclose(out["h"], feed["x"] * 3, rtol=1e-6)
    np.testing.assert_allclose(out["y"], out["h"] @ out["w"], rtol=1e-4, atol=1e-4)


def test_only_needed_layers_are_exported() -> None:
    model = export_graph(two_layers(), ["h"], registry=REGISTRY)
    assert [n.op_type for n in model.proto.graph.node] == ["Mul", "Identity"]


def test_reductions_over_all_and_along_an_axis() -> None:
    g = two_layers()
    feed = x_of(g)
    engine = FloatEngine(
        g, [], reductions=["h", Reduction("y", 1), Reduction("x", -1)], registry=REGISTRY
    )
    out = engine.run(feed)
    plain = FloatEngine(g, ["h", "y"], registry=REGISTRY).run(feed)
    assert list(out) == [
        "h::min",
        "h::max",
        "y::axis1::min",
        "y::axis1::max",
        "x::axis-1::min",
        "x::axis-1::max",
    ]
    assert out["h::min"] == plain["h"].min() and out["h::max"] == plain["h"].max()
    # the session may fuse differently around other outputs
    np.testing.assert_allclose(out["y::axis1::max"], plain["y"].max(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(out["x::axis-1::min"], feed["x"].min(axis=0))


def test_reductions_of_every_output() -> None:
    g = two_layers()
    out = FloatEngine(g, ["h", "y"], reductions=True, registry=REGISTRY).run(x_of(g))
    assert list(out) == ["h::min", "h::max", "y::min", "y::max"]
    assert all(v.shape == () for v in out.values())


def test_half_precision_is_reduced_in_single() -> None:
    g = Graph()
    g.add_input("x", TensorType(DType.FLOAT16, (3,)))
    g.add_value("y", TensorType(DType.FLOAT16, (3,)))
    g.add_node(Node("a", "Scale", ["x"], ["y"], ScaleAttrs()))
    g.outputs = ["y"]
    out = FloatEngine(g, reductions=True, registry=REGISTRY).run(
        {"x": np.asarray([1, 2, -3], np.float16)}
    )
    assert out["y::min"] == -6 and out["y::max"] == 4 and out["y::min"].dtype == np.float32


def test_reducing_along_the_only_axis_changes_nothing() -> None:
    g = Graph()
    g.add_input("x", TensorType(F32, (3,)))
    g.outputs = ["x"]
    out = FloatEngine(g, [], reductions=[Reduction("x", 0)]).run(
        {"x": np.asarray([1, 2, -3], np.float32)}
    )
    np.testing.assert_array_equal(out["x::axis0::min"], [1, 2, -3])


def test_an_output_may_be_an_input_or_a_constant() -> None:
    g = two_layers()
    g.outputs = ["x", "w", "y"]
    model = export_graph(g, registry=REGISTRY).proto
    assert [o.name for o in model.graph.output] == ["x", "w", "y"]
    assert set(FloatEngine(g, registry=REGISTRY).run(x_of(g))) == {"x", "w", "y"}


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"z": np.zeros(1)}, "the model has no input 'z'"),
        ({"x": np.zeros((2, 4), np.float32)}, "input 'x' must be float32[2,40], got float32[2,4]"),
        ({"x": np.zeros((2, 40))}, "input 'x' must be float32[2,40], got float64[2,40]"),
    ],
)
def test_wrong_inputs_are_named(feed: dict[str, Any], message: str) -> None:
    engine = FloatEngine(two_layers(), registry=REGISTRY)
    with pytest.raises(ArgumentError) as err:
        engine.run(feed)
    assert err.value.message == message


def test_unknown_values_and_operators_are_our_faults() -> None:
    with pytest.raises(InternalError, match="no such value"):
        export_graph(two_layers(), ["nope"], registry=REGISTRY)
    g = two_layers()
    g.add_value("z", TensorType(F32, (2, 40)))
    g.add_node(Node("c", "Broken", ["y"], ["z"], NoAttrs()))
    with pytest.raises(InternalError, match=r"layer 'c' \(Broken\) cannot be written"):
        export_graph(g, ["z"], registry=REGISTRY)


def test_attributes_of_every_kind() -> None:
    class Every(OpSpec[NoAttrs]):
        name = "Every"
        attrs_type = NoAttrs

        def export(self, node: Node, graph: Graph, to: OnnxEmitter) -> None:
            to.emit(
                "Foo",
                node.inputs,
                node.outputs,
                domain="my.domain",
                i=np.int64(3),
                b=True,
                f=0.5,
                s="text",
                t=np.arange(3),
                d=DType.FLOAT16,
                ints=[1, 2],
                floats=[1, 0.5],
                none=None,
                empty=[],
            )

    g = Graph()
    g.add_input("x", TensorType(F32, (2,)))
    g.add_value("y", TensorType(F32, (2,)))
    g.add_node(Node("a", "Every", ["x"], ["y"], NoAttrs()))
    g.outputs = ["y"]
    model = export_graph(g, registry=Registry([Every()])).proto
    node = model.graph.node[0]
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    tensor = found.pop("t")
    assert onnx.numpy_helper.to_array(tensor).tolist() == [0, 1, 2]
    assert found == {
        "i": 3,
        "b": 1,
        "f": 0.5,
        "s": b"text",
        "d": onnx.TensorProto.FLOAT16,
        "ints": [1, 2],
        "floats": [1.0, 0.5],
        "empty": [],
    }
    assert {o.domain: o.version for o in model.opset_import} == {"": 21, "my.domain": 1}


def test_saving_beyond_the_protobuf_limit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(export, "PROTOBUF_LIMIT", 1)
    monkeypatch.setattr(export, "default_registry", lambda: REGISTRY)
    g = two_layers()
    files = export.save_onnx(g, tmp_path / "m.onnx")
    assert [f.name for f in files] == ["m.onnx", "m.onnx.data"]
    model = onnx.load(tmp_path / "m.onnx")
    weight = next(t for t in model.graph.initializer if t.name == "w")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), g.value("w").data)


def test_nodes_are_named_after_the_layers(digits_vit: Path) -> None:
    graph = parse(load_model(digits_vit), input_shapes={})
    names = [n.name for n in to_onnx(graph).graph.node]
    assert len(set(names)) == len(names)
    layers = [n.name for n in graph.nodes]
    assert set(layers) <= set(names)
    # a layer of several nodes: the first has its name, the others the operator's behind it
    extra = [n for n in names if n not in layers]
    assert extra and all(any(n.startswith(f"{layer}/") for layer in layers) for n in extra)
