"""Parsing: bound shapes, folding, functions, control flow, names, and invalid models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qbcompiler.errors import (
    ArgumentError,
    ModelLoadError,
    QbCompilerError,
    ResourceLimitError,
    UnsupportedDynamicShapeError,
    UnsupportedOperatorError,
)
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import DType, Graph, dump, verify
from qbcompiler.ops import default_registry
from qbcompiler.ops.onnx_layer import OnnxAttrs
from qbcompiler.runtime.float_engine import FloatEngine

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def info(name: str, shape: Sequence[Any] | None, kind: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    value_info: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    outs = [onnx.ValueInfoProto(name=o) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        outs,
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
        value_info=value_info,
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def parsed(model: onnx.ModelProto, passes: bool = False, **shapes: tuple[int, ...]) -> Graph:
    graph = parse(load_model(model), input_shapes=shapes, passes=passes)
    verify(graph, "final", default_registry().infer)
    return graph


def layers(graph: Graph) -> list[str]:
    return [n.attrs.op_type if isinstance(n.attrs, OnnxAttrs) else n.op for n in graph.nodes]


def same(model: onnx.ModelProto, graph: Graph, rtol: float = 1e-4, **feed: Any) -> None:
    """The graph gives what ONNX Runtime gives for the source model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    want = session.run(names, feed)
    got = FloatEngine(graph).run({k: v for k, v in feed.items() if k in graph.inputs})
    assert list(got) == names
    for name, expected in zip(names, want, strict=True):
        assert got[name].dtype == expected.dtype and got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=rtol, atol=1e-6)


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# -- binding shapes ------------------------------------------------------------------------------


def relu(*shape: Any) -> onnx.ModelProto:
    return model_of([node("Relu", ["x"], ["y"])], [info("x", shape)], ["y"])


@pytest.mark.parametrize("batch", ["N", None, "?", -1, 0, "-1"])
def test_the_batch_defaults_to_one(batch: Any) -> None:
    model = relu(batch, 3, 4)
    if isinstance(batch, int):
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    assert parsed(model).values["x"].shape == (1, 3, 4)


def test_given_shapes_bind_dimensions_and_their_symbols() -> None:
    model = model_of(
        [node("Add", ["a", "b"], ["y"])],
        [info("a", ["N", 3, "H", "W"]), info("b", ["N", 3, "H", "W"])],
        ["y"],
    )
    graph = parsed(model, a=(2, 3, 8, 9))
    assert graph.values["b"].shape == graph.values["y"].shape == (2, 3, 8, 9)


def test_a_zero_dimension_can_be_asked_for() -> None:
    assert parsed(relu("N", 3), x=(0, 3)).values["y"].shape == (0, 3)


OPEN: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "symbol": (
        (1, 3, "height", "width"),
        "axis 2 of input 'x' (1,3,height,width) is the symbol 'height'",
        "bind it with --input-shape x=1,3,H,W (inputShapeDict in a configuration file)",
    ),
    "unnamed": (
        ("N", 3, None, 5),
        "axis 2 of input 'x' (N,3,?,5) has no size",
        "bind it with --input-shape x=1,3,H,5 (inputShapeDict in a configuration file)",
    ),
    "vector": (
        ("n",),
        "axis 0 of input 'x' (n) is the symbol 'n'",
        "bind it with --input-shape x=1 (inputShapeDict in a configuration file)",
    ),
}


@pytest.mark.parametrize("kind", OPEN)
def test_an_open_dimension_is_named_with_the_way_out(kind: str) -> None:
    shape, message, hint = OPEN[kind]
    with pytest.raises(UnsupportedDynamicShapeError) as err:
        parsed(relu(*shape))
    assert err.value.message == message and err.value.hint == hint
    assert err.value.details["input"] == "x"


def test_an_input_without_a_shape() -> None:
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", None)], ["y"])
    with pytest.raises(UnsupportedDynamicShapeError) as err:
        parsed(model)
    assert err.value.message == "input 'x' declares no shape"
    assert parsed(model, x=(2, 5)).values["y"].shape == (2, 5)


WRONG_SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "unknown": ({"image": (1, 3)}, "the model has no input 'image' to give a shape to"),
    "rank": (
        {"images": (1, 3)},
        "input 'images' has 4 dimensions (N,3,H,W), the shape 1x3 has 2",
    ),
    "fixed": (
        {"images": (1, 4, 8, 8)},
        "axis 1 of input 'images' is fixed to 3 by the model, the shape 1x4x8x8 has 4",
    ),
    "negative": (
        {"images": (1, 3, -8, 8)},
        "the shape 1x3x-8x8 for input 'images' has a negative dimension",
    ),
    "contradiction": (
        {"images": (1, 3, 8, 8), "mask": (1, 9)},
        "dimension 'H' is 8 for input 'images' and 9 for input 'mask'",
    ),
}


@pytest.mark.parametrize("kind", WRONG_SHAPES)
def test_wrong_shapes(kind: str) -> None:
    model = model_of(
        [node("Relu", ["images"], ["y"])],
        [info("images", ["N", 3, "H", "W"]), info("mask", ["N", "H"])],
        ["y"],
    )
    shapes, message = WRONG_SHAPES[kind]
    with pytest.raises(ArgumentError) as err:
        parsed(model, **shapes)
    assert err.value.message == message
    if kind == "unknown":
        assert err.value.hint == "did you mean 'images'? its inputs are images, mask"


def test_image_channels_are_checked() -> None:
    source = load_model(relu("N", 3, 8, 8))
    parse(source, input_shapes={}, image_channels=3)
    with pytest.raises(ArgumentError, match="imageChannels is 1, but input 'x' is 1,3,8,8"):
        parse(source, input_shapes={}, image_channels=1)


def test_stale_shapes_in_the_file_are_not_believed() -> None:
    model = model_of(
        [node("Relu", ["x"], ["h"]), node("Tanh", ["h"], ["y"])],
        [info("x", ["N", 3, "H", "W"])],
        [info("y", [7, 7])],
        value_info=[info("h", [1, 3, 99, 99])],
    )
    graph = parsed(model, x=(1, 3, 4, 5))
    assert graph.values["h"].shape == graph.values["y"].shape == (1, 3, 4, 5)


# -- names ---------------------------------------------------------------------------------------


def test_names_are_kept() -> None:
    model = model_of(
        [
            node("Conv", ["image", "w0"], ["c/out"], name="backbone/conv0"),
            node("Relu", ["c/out"], ["features"], name="backbone/relu0"),
            node("Flatten", ["features"], ["logits"]),
        ],
        [info("image", ["N", 3, 8, 8])],
        ["logits", "features"],
        {"w0": random(4, 3, 3, 3)},
    )
    graph = parsed(model, passes=True)
    assert dump(graph) == (
        "graph g(\n"
        "  %image: float32[1,3,8,8]\n"
        ") {\n"
        "  %c/out: float32[1,4,6,6] = Convolution(%image, @w0:float32[4,3,3,3])"
        " {strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], groups=1}\n"
        "  %features: float32[1,4,6,6] = Relu(%c/out)\n"
        "  %logits: float32[1,144] = Reshape(%features) {shape=[1, 144]}\n"
        "  return %logits, %features\n"
        "}\n"
    )
    assert [n.name for n in graph.nodes] == ["backbone/conv0", "backbone/relu0", "Flatten_2"]
    assert [n.source for n in graph.nodes] == [
        ("backbone/conv0",),
        ("backbone/relu0",),
        ("Flatten_2",),
    ]


def test_outputs_that_are_inputs_constants_copies_and_duplicates() -> None:
    model = model_of(
        [
            node("Identity", ["x"], ["same"]),
            node("Relu", ["x"], ["r"]),
            node("Identity", ["r"], ["s"]),
            node("Identity", ["s"], ["t"]),
            node("Constant", [], ["c"], value_float=2.0),
        ],
        [info("x", [1, 4])],
        [info(n, [1, 4]) for n in ("same", "r", "s", "t")] + [info("c", [])],
    )
    graph = parsed(model, passes=True)
    assert graph.outputs == ["same", "r", "s", "t", "c"]
    same(model, graph, x=random(1, 4))


def test_nodes_of_one_name_and_none() -> None:
    model = model_of(
        [
            node("Relu", ["x"], ["a"], name="n"),
            node("Tanh", ["a"], ["b"], name="n"),
            node("Abs", ["b"], ["c"]),
            node("Abs", ["c"], ["d"]),
        ],
        [info("x", [1, 4])],
        ["d"],
    )
    assert [n.name for n in parsed(model).nodes] == ["n", "n_1", "Abs_2", "Abs_3"]


def test_the_result_is_the_same_every_time() -> None:
    model = relu("N", 3, 8, 8)
    assert dump(parsed(model)) == dump(parsed(model))
    source = load_model(model)
    first = parse(source, input_shapes={"x": (1, 3, 8, 8)})
    assert dump(first) == dump(parse(source, input_shapes={"x": (1, 3, 8, 8)}))


# -- folding -------------------------------------------------------------------------------------


def test_shape_arithmetic_folds_away() -> None:
    model = model_of(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["n1"]),
            node("Concat", ["n1", "rest"], ["target"], axis=0),
            node("Cast", ["target"], ["t32"], to=TensorProto.INT32),
            node("Cast", ["t32"], ["t64"], to=I64),
            node("Reshape", ["x", "t64"], ["y"]),
        ],
        [info("x", ["N", 3, 4])],
        ["y"],
        {"zero": np.int64(0), "axes": np.int64([0]), "rest": np.int64([-1])},
    )
    graph = parsed(model, x=(2, 3, 4))
    assert layers(graph) == ["Reshape"]
    same(model, graph, x=random(2, 3, 4))


def test_weights_come_as_constants_initializers_inputs_and_through_identity() -> None:
    w = random(4, 4)
    model = model_of(
        [
            node("Constant", [], ["w1"], value=numpy_helper.from_array(w, "v")),
            node("Identity", ["w1"], ["w2"]),
            node("Identity", ["w2"], ["w3"]),
            node("MatMul", ["x", "w3"], ["a"]),
            node("Transpose", ["w4"], ["w5"], perm=[1, 0]),
            node("MatMul", ["a", "w5"], ["y"]),
        ],
        [info("x", ["N", 4]), info("w4", [4, 4])],
        ["y"],
        {"w4": random(4, 4, seed=1)},
    )
    graph = parsed(model, passes=True)
    assert graph.inputs == ["x"] and layers(graph) == ["MatMul", "MatMul"]
    same(model, graph, x=random(1, 4))


def test_half_precision_weights_and_activations() -> None:
    half = TensorProto.FLOAT16
    model = model_of(
        [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])],
        [info("x", [2, 8], half)],
        [info("y", [2, 8], half)],
        {"w": random(8, 8).astype(np.float16)},
    )
    graph = parsed(model, passes=True)
    assert graph.values["y"].type.dtype is DType.FLOAT16
    same(model, graph, rtol=1e-2, x=random(2, 8).astype(np.float16))


def test_quantize_and_dequantize_layers_keep_their_scales() -> None:
    model = model_of(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("DequantizeLinear", ["wq", "ws"], ["w"], axis=0),
            node("Conv", ["d", "w"], ["y"]),
        ],
        [info("x", [1, 2, 5, 5])],
        [info("y", [1, 3, 3, 3])],
        {
            "s": np.float32(0.05),
            "z": np.uint8(128),
            "wq": np.random.default_rng(0).integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
            "ws": np.float32([0.1, 0.2, 0.3]),
        },
    )
    graph = parsed(model)
    assert layers(graph) == ["QuantizeLinear", "DequantizeLinear", "Convolution"]
    assert graph.values["s"].data is not None and graph.values["s"].data == np.float32(0.05)
    same(model, graph, x=random(1, 2, 5, 5))


def test_weights_stored_as_integers_become_real_ones() -> None:
    stored = np.random.default_rng(0).integers(-127, 128, (1024, 1024)).astype(np.int8)
    model = model_of(
        [
            node("Cast", ["w8"], ["w"], to=F),
            node("Mul", ["w", "s"], ["ws"]),
            node("MatMul", ["x", "ws"], ["y"]),
        ],
        [info("x", [1, 1024])],
        [info("y", [1, 1024])],
        {"w8": stored, "s": random(1, 1024) * 0.01},
    )
    graph = parsed(model)
    assert layers(graph) == ["MatMul"]
    same(model, graph, rtol=1e-3, x=random(1, 1024))


@pytest.mark.parametrize(("op", "idle"), [("Max", -np.inf), ("Min", np.inf)])
def test_comparing_with_an_infinity_that_never_wins_is_nothing(op: str, idle: float) -> None:
    model = model_of(
        [node(op, ["x", "c"], ["m"]), node("Relu", ["m"], ["y"])],
        [info("x", [2, 4])],
        [info("y", [2, 4])],
        {"c": np.float32([idle])},
    )
    assert layers(parsed(model)) == ["Relu"]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([-idle]), "c"))
    assert layers(parsed(model))[0] == op


def test_random_numbers_are_not_folded() -> None:
    model = model_of(
        [
            node("RandomUniformLike", ["c"], ["r"], seed=1.0),
            node("Add", ["x", "r"], ["y"]),
        ],
        [info("x", [4])],
        ["y"],
        {"c": np.zeros(4, np.float32)},
    )
    assert "RandomUniformLike" in layers(parsed(model, passes=True))


def test_large_constants_are_not_made() -> None:
    model = model_of(
        [
            node("Tile", ["c", "times"], ["t"]),
            node("Add", ["x", "t"], ["y"]),
        ],
        [info("x", [1024, 2048])],
        ["y"],
        {"c": np.ones((1, 2), np.float32), "times": np.int64([1024, 1024])},
    )
    graph = parsed(model, passes=True)
    assert sum(v.type.nbytes for v in graph.constants()) < 1 << 20


@pytest.mark.parametrize(
    "op", ["Pad", "Tile", "OneHot", "EyeLike", "Resize", "ConstantOfShape", "Range"]
)
def test_a_small_file_cannot_ask_for_much_memory(op: str) -> None:
    """Operators that make much of little are not evaluated at compile time."""
    import resource

    million = np.int64(1_000_000)
    nodes, constants = {
        "Pad": ([node("Pad", ["c", "p"], ["big"])], {"p": np.int64([0, 0, 10**5, 10**5])}),
        "Tile": ([node("Tile", ["c", "p"], ["big"])], {"p": np.int64([10**5, 10**5])}),
        "OneHot": (
            [node("OneHot", ["i", "n", "v"], ["big"])],
            {"i": np.arange(10**4), "n": million, "v": np.float32([0, 1])},
        ),
        "EyeLike": (
            [
                node("ConstantOfShape", ["p"], ["like"]),
                node("EyeLike", ["like"], ["big"]),
            ],
            {"p": np.int64([10**4, 10**4])},
        ),
        "Resize": (
            [node("Resize", ["c", "", "s"], ["big"])],
            {"s": np.float32([10**5, 10**5])},
        ),
        "ConstantOfShape": (
            [node("ConstantOfShape", ["p"], ["big"])],
            {"p": np.int64([370_000, 370_000])},
        ),
        "Range": (
            [node("Range", ["a", "n", "one"], ["big"])],
            {"a": np.int64(0), "n": np.int64(2 * 10**9), "one": np.int64(1)},
        ),
    }[op]
    model = model_of(
        [*nodes, node("ReduceMax", ["big"], ["m"], keepdims=0), node("Add", ["x", "m"], ["y"])],
        [info("x", [4], I64 if op == "Range" else F)],
        ["y"],
        {"c": np.ones((1, 1), np.float32), **constants},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parse(load_model(model), input_shapes={})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_functions_that_multiply_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbcompiler.frontend.lower.MAX_NODES", 1000)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    functions = [
        helper.make_function("my", "F0", ["a"], ["b"], [node("Relu", ["a"], ["b"])], imports)
    ]
    for i in range(1, 30):
        calls = [
            node(f"F{i - 1}", ["a"], ["c"], domain="my"),
            node(f"F{i - 1}", ["c"], ["b"], domain="my"),
        ]
        functions.append(helper.make_function("my", f"F{i}", ["a"], ["b"], calls, imports))
    model = model_of(
        [node("F29", ["x"], ["y"], domain="my")],
        [info("x", [4])],
        ["y"],
        functions=functions,
        domains=["my"],
    )
    with pytest.raises(ResourceLimitError) as err:
        parsed(model)
    assert err.value.message == "the model unfolds to over 1000 operators"


def test_functions_that_call_themselves_are_stopped() -> None:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    body = [node("F", ["a"], ["b"], domain="my")]
    model = model_of(
        [node("F", ["x"], ["y"], domain="my")],
        [info("x", [4])],
        ["y"],
        functions=[helper.make_function("my", "F", ["a"], ["b"], body, imports)],
        domains=["my"],
    )
    err = invalid_model(model)
    assert err.message == "functions or sub-graphs are nested over 64 deep"


def test_dead_branches_are_not_even_read() -> None:
    model = model_of(
        [
            node("NotAnOperator", ["x"], ["lost"], domain="nowhere"),
            node("Relu", ["x"], ["y"]),
        ],
        [info("x", [4])],
        ["y"],
        domains=["nowhere"],
    )
    assert layers(parsed(model)) == ["Relu"]


# -- functions, control flow, sequences ----------------------------------------------------------


def test_functions_are_inlined_with_their_attributes() -> None:
    body = node("LeakyRelu", ["a"], ["b"])
    body.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    inner = helper.make_function(
        "my", "Leaky", ["a"], ["b"], [body], [helper.make_opsetid("", 21)], ["slope"]
    )
    outer = helper.make_function(
        "my",
        "Twice",
        ["a"],
        ["c"],
        [
            node("Leaky", ["a"], ["b"], domain="my", slope=0.1),
            node("Leaky", ["b"], ["c"], domain="my", slope=0.2),
        ],
        [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)],
    )
    model = model_of(
        [node("Twice", ["x"], ["y"], name="call", domain="my")],
        [info("x", [1, 8])],
        [info("y", [1, 8])],
        functions=[inner, outer],
        domains=["my"],
    )
    graph = parsed(model)
    assert layers(graph) == ["LeakyRelu", "LeakyRelu"]
    assert [n.name for n in graph.nodes] == ["call/Leaky_0/LeakyRelu_0", "call/Leaky_1/LeakyRelu_0"]
    same(model, graph, x=random(1, 8))


def branch(op: str, name: str) -> onnx.GraphProto:
    return helper.make_graph([node(op, ["x"], [name])], op, [], [info(name, [4])])


@pytest.mark.parametrize("size", [4, 5])
def test_a_condition_on_a_shape_takes_its_branch(size: int) -> None:
    model = model_of(
        [
            node("Shape", ["z"], ["s"]),
            node("Equal", ["s", "four"], ["e"]),
            node("Squeeze", ["e"], ["cond"]),
            node(
                "If",
                ["cond"],
                ["y"],
                name="choice",
                then_branch=branch("Relu", "a"),
                else_branch=branch("Tanh", "b"),
            ),
        ],
        [info("x", [4]), info("z", ["n"])],
        [info("y", [4])],
        {"four": np.int64([4])},
    )
    graph = parsed(model, z=(size,))
    assert layers(graph) == ["Relu" if size == 4 else "Tanh"]
    same(model, graph, x=random(4), z=random(size))


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_on_data_keeps_both_branches(condition: bool) -> None:
    model = model_of(
        [
            node("Softsign", ["v"], ["x"]),
            node(
                "If",
                ["cond"],
                ["y"],
                name="choice",
                then_branch=branch("Relu", "a"),
                else_branch=branch("Tanh", "b"),
            ),
            node("Neg", ["y"], ["z"]),
        ],
        [info("v", [4]), info("cond", [], BOOL)],
        [info("z", [4])],
    )
    graph = parsed(model, passes=True)
    kept = graph.node("choice")
    assert isinstance(kept.attrs, OnnxAttrs) and kept.attrs.op_type == "If"
    assert kept.attrs.reason == "its condition depends on the data"
    assert kept.inputs == ["cond", "x", "x"] and len(kept.attrs.captures) == 2
    same(model, graph, v=random(4), cond=np.asarray(condition))


def test_a_branch_that_cannot_run_on_the_bound_shapes_is_not_taken() -> None:
    bad = helper.make_graph([node("MatMul", ["x", "w"], ["b"])], "bad", [], [info("b", [2, 4])])
    good = helper.make_graph([node("Relu", ["x"], ["a"])], "good", [], [info("a", [2, 4])])
    for then, other in ((good, bad), (bad, good)):
        model = model_of(
            [node("If", ["cond"], ["y"], then_branch=then, else_branch=other)],
            [info("x", [2, 4]), info("cond", [], BOOL)],
            [info("y", [2, 4])],
            {"w": random(5, 4)},
        )
        assert layers(parsed(model, passes=True)) == ["Relu"]
    model = model_of(
        [node("If", ["cond"], ["y"], then_branch=bad, else_branch=bad)],
        [info("x", [2, 4]), info("cond", [], BOOL)],
        [info("y", [2, 4])],
        {"w": random(5, 4)},
    )
    with pytest.raises(ModelLoadError, match="Incompatible dimensions"):
        parsed(model)


def loop_body(with_scan: bool, condition: str = "cond_in") -> onnx.GraphProto:
    nodes = [node("Add", ["v", "step"], ["v_out"])]
    outputs = [info("cond_out", [], BOOL), info("v_out", [4])]
    if condition == "cond_in":
        nodes.append(node("Identity", ["cond_in"], ["cond_out"]))
    else:
        nodes += [
            node("ReduceSum", ["v_out"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["cond_out"]),
        ]
    if with_scan:
        nodes.append(node("Mul", ["v_out", "step"], ["row"]))
        outputs.append(info("row", [4]))
    return helper.make_graph(
        nodes,
        "body",
        [info("i", [], I64), info("cond_in", [], BOOL), info("v", [4])],
        outputs,
    )


@pytest.mark.parametrize("with_scan", [False, True])
def test_a_loop_of_known_turns_is_unrolled(with_scan: bool) -> None:
    outputs = ["last", "rows"] if with_scan else ["last"]
    model = model_of(
        [node("Loop", ["trips", "", "x"], outputs, name="loop", body=loop_body(with_scan))],
        [info("x", [4])],
        [info("last", [4])] + ([info("rows", [3, 4])] if with_scan else []),
        {"trips": np.int64(3), "step": random(4, seed=5)},
    )
    graph = parsed(model, passes=True)
    assert "Loop" not in layers(graph)
    same(model, graph, x=random(4))


def test_a_loop_that_stops_by_its_data_is_kept() -> None:
    model = model_of(
        [
            node(
                "Loop",
                ["trips", "go", "x"],
                ["last", "rows"],
                name="loop",
                body=loop_body(True, "data"),
            )
        ],
        [info("x", [4])],
        [info("last", [4]), info("rows", ["n", 4])],
        {
            "trips": np.int64(50),
            "go": np.asarray(True),
            "step": np.ones(4, np.float32),
            "limit": np.float32(20),
        },
    )
    graph = parsed(model, passes=True)
    assert layers(graph) == ["Loop"]
    assert graph.values["rows"].shape == (-1, 4)
    same(model, graph, x=np.zeros(4, np.float32))


def test_a_carried_value_that_grows_gets_an_open_dimension() -> None:
    body = helper.make_graph(
        [
            node("Concat", ["v", "one"], ["v_out"], axis=0),
            node("Identity", ["cond_in"], ["cond_out"]),
        ],
        "body",
        [info("i", [], I64), info("cond_in", [], BOOL), info("v", ["k"])],
        [info("cond_out", [], BOOL), info("v_out", ["m"])],
    )
    model = model_of(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x", [2]), info("n", [], I64)],
        [info("y", ["m"])],
        {"one": np.ones(1, np.float32)},
    )
    graph = parsed(model, passes=True)
    assert graph.values["y"].shape == (-1,)
    same(model, graph, x=random(2), n=np.asarray(3))


def test_a_scan_is_kept_with_its_body_lowered() -> None:
    body = helper.make_graph(
        [
            node("Add", ["s", "row"], ["s_out"]),
            node("Softmax", ["s_out"], ["out"], axis=0),
        ],
        "body",
        [info("s", [3]), info("row", [3])],
        [info("s_out", [3]), info("out", [3])],
    )
    model = model_of(
        [node("Scan", ["init", "x"], ["last", "ys"], body=body, num_scan_inputs=1)],
        [info("init", [3]), info("x", [5, 3])],
        [info("last", [3]), info("ys", [5, 3])],
        opset=11,
    )
    graph = parsed(model)
    assert graph.values["ys"].shape == (5, 3)
    same(model, graph, init=random(3), x=random(5, 3))


def test_sequences_of_known_length_leave_no_trace() -> None:
    model = model_of(
        [
            node("SplitToSequence", ["x", "size"], ["parts"], axis=1),
            node("SequenceLength", ["parts"], ["n"]),
            node("SequenceAt", ["parts", "one"], ["second"]),
            node("SequenceErase", ["parts", "zero"], ["fewer"]),
            node("SequenceInsert", ["fewer", "second"], ["more"]),
            node("ConcatFromSequence", ["more"], ["y"], axis=1),
        ],
        [info("x", [2, 6])],
        [info("y", [2, 6]), info("n", [], I64)],
        {"size": np.int64(2), "one": np.int64(1), "zero": np.int64(0)},
    )
    graph = parsed(model, passes=True)
    assert set(layers(graph)) <= {"Slice", "Concatenate"}
    same(model, graph, x=random(2, 6))


# -- layers that are kept whole ------------------------------------------------------------------


def test_an_operator_that_no_other_takes_is_kept_with_its_attributes() -> None:
    model = model_of(
        [node("LRN", ["x"], ["y"], name="norm", size=3, alpha=0.5)],
        [info("x", [1, 4, 5, 5])],
        [info("y", [1, 4, 5, 5])],
        opset=12,
    )
    graph = parsed(model, passes=True)
    attrs = graph.node("norm").attrs
    assert isinstance(attrs, OnnxAttrs)
    assert (attrs.op_type, attrs.domain, attrs.version) == ("LRN", "", 21)
    assert attrs.attributes == '{"alpha":["float",0.5],"size":["int",3]}'
    same(model, graph, x=random(1, 4, 5, 5))


def test_the_reason_why_no_operator_takes_it_is_kept() -> None:
    model = model_of(
        [node("Conv", ["x", "w"], ["y"], name="dynamic")],
        [info("x", [1, 2, 5, 5]), info("w", [3, 2, 3, 3])],
        [info("y", [1, 3, 3, 3])],
    )
    attrs = parsed(model).node("dynamic").attrs
    assert isinstance(attrs, OnnxAttrs) and "its weights are not constant" in attrs.reason


def test_dimensions_that_depend_on_data_stay_on_the_cpu() -> None:
    model = model_of(
        [
            node("NonZero", ["x"], ["where"]),
            node("Cast", ["where"], ["f"], to=F),
            node("Relu", ["f"], ["y"]),
        ],
        [info("x", [3, 4])],
        [info("y", [2, "n"])],
    )
    graph = parsed(model, passes=True)
    assert all(isinstance(n.attrs, OnnxAttrs) for n in graph.nodes)
    assert graph.values["y"].shape == (2, -1)
    same(model, graph, x=np.asarray([[0, 1, 0, 2]] * 3, np.float32))


def test_an_operator_of_another_domain_that_onnx_runtime_knows() -> None:
    model = model_of(
        [node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")],
        [info("x", [2, 8])],
        [info("y", [2, 8])],
        {"b": random(8)},
        domains=["com.microsoft"],
    )
    graph = parsed(model, passes=True)
    assert graph.values["y"].shape == (2, 8)
    same(model, graph, x=random(2, 8))


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 25])
def test_old_and_new_forms_mean_the_same(opset: int) -> None:
    attr = opset < 13
    constants: dict[str, Any] = {} if attr else {"axes": np.int64([2])}
    squeeze = (
        node("Squeeze", ["m"], ["q"], axes=[2]) if attr else node("Squeeze", ["m", "axes"], ["q"])
    )
    if opset >= 18:
        constants["raxes"] = np.int64([2])
        mean = node("ReduceMean", ["s"], ["m"], keepdims=1)
        mean.input.append("raxes")
    else:
        mean = node("ReduceMean", ["s"], ["m"], axes=[2], keepdims=1)
    model = model_of(
        [
            node("Softmax", ["x"], ["s"], axis=1),
            node("LpNormalization", ["s"], ["l"], axis=1),
            mean,
            squeeze,
        ],
        [info("x", [2, 3, 4])],
        [info("q", [2, 3]), info("l", [2, 3, 4])],
        constants,
        opset=opset,
    )
    if opset > 21:
        model.ir_version = 12
    same(model, parsed(model, passes=True), x=random(2, 3, 4))


OLD_FORMS: dict[str, tuple[int, onnx.NodeProto, tuple[int, ...], dict[str, Any]]] = {
    "slice": (
        9,
        node("Slice", ["x"], ["y"], starts=[1, -2], ends=[9, 99], axes=[0, 2]),
        (4, 3, 5),
        {},
    ),
    "pad": (10, node("Pad", ["x"], ["y"], pads=[0, 1, 2, 0, 0, 1], value=0.5), (2, 3, 4), {}),
    "clip": (10, node("Clip", ["x"], ["y"], min=-0.5, max=0.5), (2, 3), {}),
    "topk": (9, node("TopK", ["x"], ["y", "i"], k=2, axis=1), (2, 5), {}),
    "split": (11, node("Split", ["x"], ["y", "b"], axis=1, split=[2, 3]), (2, 5), {}),
    "split_even": (12, node("Split", ["x"], ["y", "b"], axis=1), (2, 6), {}),
    "upsample7": (
        8,
        node("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 3.0]),
        (1, 2, 3, 3),
        {},
    ),
    "upsample9": (
        9,
        node("Upsample", ["x", "sc"], ["y"], mode="linear"),
        (1, 2, 3, 3),
        {"sc": np.float32([1, 1, 2, 2])},
    ),
    "resize10": (
        10,
        node("Resize", ["x", "sc"], ["y"], mode="nearest"),
        (1, 2, 4, 4),
        {"sc": np.float32([1, 1, 0.5, 0.5])},
    ),
    "unsqueeze": (12, node("Unsqueeze", ["x"], ["y"], axes=[0, 2]), (3, 4), {}),
    "reduce_sum": (12, node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0), (3, 4), {}),
    "log_softmax": (11, node("LogSoftmax", ["x"], ["y"], axis=1), (2, 3, 4), {}),
    "hardmax": (11, node("Hardmax", ["x"], ["y"], axis=1), (2, 3, 4), {}),
    "batch_norm": (
        8,
        node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"]),
        (2, 3, 4),
        {"a": random(3), "b": random(3), "c": random(3), "d": np.ones(3, np.float32)},
    ),
    "dropout": (7, node("Dropout", ["x"], ["y"], ratio=0.3), (2, 3), {}),
    "grid_sample": (
        16,
        node("GridSample", ["x", "grid"], ["y"], mode="bilinear"),
        (1, 2, 4, 4),
        {"grid": random(1, 3, 3, 2) * 0.5},
    ),
    "scatter": (
        9,
        node("Scatter", ["x", "idx", "upd"], ["y"], axis=0),
        (3, 3),
        {"idx": np.int64([[0, 1, 2]]), "upd": np.float32([[1, 2, 3]])},
    ),
}


@pytest.mark.parametrize("kind", OLD_FORMS)
def test_old_forms_are_rewritten(kind: str) -> None:
    opset, old, shape, constants = OLD_FORMS[kind]
    outputs: list[str | onnx.ValueInfoProto] = [
        info(o, None, I64 if o == "i" else F) for o in old.output
    ]
    model = model_of([old], [info("x", shape)], outputs, constants, opset=opset)
    same(model, parsed(model), x=random(*shape))


# -- invalid models ------------------------------------------------------------------------------


def invalid(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (info("x", [2, 3]),),
    outputs: Sequence[str] = ("y",),
    constants: dict[str, Any] | None = None,
    **kwargs: Any,
) -> QbCompilerError:
    return invalid_model(model_of(nodes, inputs, outputs, constants, **kwargs))


def invalid_model(model: onnx.ModelProto) -> QbCompilerError:
    with pytest.raises(QbCompilerError) as err:
        parsed(model)
    return err.value


def test_a_cycle() -> None:
    err = invalid(
        [node("Add", ["x", "b"], ["a"], name="one"), node("Relu", ["a"], ["b"], name="two")],
        outputs=["b"],
    )
    assert isinstance(err, ModelLoadError)
    assert err.message == "the graph has a cycle through node 'one'"


def test_nodes_out_of_order_are_sorted() -> None:
    model = model_of(
        [node("Relu", ["a"], ["y"]), node("Tanh", ["x"], ["a"])], [info("x", [2])], ["y"]
    )
    assert layers(parsed(model)) == ["Tanh", "Relu"]


def test_a_value_made_twice() -> None:
    err = invalid([node("Relu", ["x"], ["y"], name="one"), node("Tanh", ["x"], ["y"], name="two")])
    assert err.message == "value 'y' is made twice, by node 'one' and node 'two'"


def test_a_value_made_nowhere() -> None:
    err = invalid([node("Relu", ["z"], ["y"], name="one")])
    assert err.message == "node 'one' reads 'z', which nothing makes"
    err = invalid([node("Relu", ["x"], ["h"])])
    assert err.message == "the graph's output list reads 'y', which nothing makes"


def test_an_input_or_weight_declared_twice() -> None:
    err = invalid([node("Relu", ["x"], ["y"])], [info("x", [2]), info("x", [2])])
    assert err.message == "input 'x' is declared twice"
    model = model_of([node("Add", ["x", "w"], ["y"])], [info("x", [2])], ["y"], {"w": random(2)})
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ModelLoadError) as twice:
        parsed(model)
    assert twice.value.message == "weight 'w' is defined twice"


def test_types_that_do_not_fit() -> None:
    err = invalid([node("MatMul", ["x", "w"], ["y"], name="mm")], constants={"w": random(4, 5)})
    assert isinstance(err, ModelLoadError)
    assert err.message.startswith("node 'mm' (MatMul) is not valid: ")
    assert "Incompatible dimensions" in err.message


def test_an_unknown_operator_and_an_unknown_domain() -> None:
    err = invalid([node("Frobnicate", ["x"], ["y"], name="odd")])
    assert isinstance(err, UnsupportedOperatorError)
    assert err.message == (
        "node 'odd' (Frobnicate): the type of its output 'y' cannot be determined;"
        " the operator is unknown"
    )
    err = invalid(
        [node("Frobnicate", ["x"], ["y"], name="odd", domain="acme.ai")], domains=["acme.ai"]
    )
    assert err.message == (
        "node 'odd' (acme.ai::Frobnicate): the type of its output 'y' cannot be determined;"
        " operator domain 'acme.ai' is unknown"
    )


def test_inputs_that_are_no_tensors() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", F, [2])
    err = invalid([node("SequenceAt", ["x", "i"], ["y"])], [sequence], constants={"i": np.int64(0)})
    assert err.message == "input 'x' is not a tensor, which is not supported"


def test_an_output_that_is_a_sequence() -> None:
    err = invalid([node("SequenceConstruct", ["x"], ["y"])])
    assert err.message == "output 'y' is a sequence, not a tensor"


def test_weights_with_nan_parse_and_are_told_apart_later() -> None:
    w = random(3, 2)
    w[0, 0] = np.nan
    model = model_of([node("MatMul", ["x", "w"], ["y"])], [info("x", [2, 3])], ["y"], {"w": w})
    graph = parsed(model)
    assert layers(graph) == ["MatMul"]


def test_a_long_chain_takes_linear_time() -> None:
    import time

    def seconds(count: int) -> float:
        names = ["x", *(f"v{i}" for i in range(count))]
        model = model_of(
            [node("Relu" if i % 2 else "Tanh", [names[i]], [names[i + 1]]) for i in range(count)],
            [info("x", [4])],
            [names[-1]],
        )
        source = load_model(model)
        start = time.process_time()
        graph = parse(source, input_shapes={})
        took = time.process_time() - start
        assert len(graph) == count
        return took

    seconds(500)
    small, large = seconds(1_000), seconds(10_000)
    assert large < 10 * small * 2.5
