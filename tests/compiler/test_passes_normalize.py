"""Passes that bring what exporters write into the form that other passes look for."""

from __future__ import annotations

import numpy as np
import pytest

from qbcompiler.ir import DType, NoAttrs, Node, TensorType
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.arithmetic_const import ReversibleAttrs
from qbcompiler.ops.onnx_layer import OnnxAttrs
from qbcompiler.ops.reduce import ReduceAttrs
from qbcompiler.ops.shapes import ReshapeAttrs, TransposeAttrs
from qbcompiler.ops.slicing import AxisAttrs
from qbcompiler.passes.cancel_moves import CancelMoves
from qbcompiler.passes.drop_expands import DropExpands
from qbcompiler.passes.drop_guards import DropNanGuards
from qbcompiler.passes.fuse_norm import FuseLayerNorm
from qbcompiler.passes.normalize_reductions import KeepReducedDims, SumToMean
from qbcompiler.passes.sink_reshapes import SinkReshapes

from .pass_graphs import REGISTRY, Build, apply, body, ops, reasons


def reduced(b: Build, x: str, *axes: int, op: str = "ReduceMean", keep: bool = False) -> str:
    return b.op(op, x, attrs=ReduceAttrs(axes, keep))


def test_dropped_dimensions_that_come_back_are_kept() -> None:
    b = Build()
    x = b.x(2, 3, 4)
    g = b.done(b.op("Reshape", reduced(b, x, 1), attrs=ReshapeAttrs((2, 1, 4))))
    (result,) = apply(g, KeepReducedDims())
    assert result.count == 1
    assert body(g) == [
        "%reshape: float32[2,1,4] = ReduceMean(%x) {axes=[1], keepdims=True}",
    ]


def test_another_reader_keeps_its_own_reduction() -> None:
    b = Build()
    m = reduced(b, b.x(2, 3, 4), 1)
    g = b.done(b.op("Reshape", m, attrs=ReshapeAttrs((2, 1, 4))), b.op("Tanh", m))
    apply(g, KeepReducedDims())
    assert ops(g) == ["ReduceMean", "ReduceMean", "Tanh"]


def test_other_reshapes_of_a_reduction_stay() -> None:
    b = Build()
    g = b.done(b.op("Reshape", reduced(b, b.x(2, 3, 4), 1), attrs=ReshapeAttrs((2, 4, 1))))
    (result,) = apply(g, KeepReducedDims())
    assert result.count == 0


@pytest.mark.parametrize("op", ["MultiplyConstant", "DivConstant"])
def test_a_sum_over_its_count_is_a_mean(op: str) -> None:
    b = Build()
    total = reduced(b, b.x(2, 3, 4), 1, 2, op="ReduceSum", keep=True)
    number = 1 / 12 if op == "MultiplyConstant" else 12.0
    attrs = NoAttrs() if op == "MultiplyConstant" else ReversibleAttrs()
    g = b.done(b.op(op, total, b.const(number), attrs=attrs))
    (result,) = apply(g, SumToMean())
    assert result.count == 1 and ops(g) == ["ReduceMean"]


def test_a_sum_over_another_number_or_read_elsewhere_stays() -> None:
    b = Build()
    total = reduced(b, b.x(2, 3, 4), 1, op="ReduceSum")
    g = b.done(b.op("MultiplyConstant", total, b.const(0.25)))
    (result,) = apply(g, SumToMean())
    assert result.count == 0
    b = Build()
    total = reduced(b, b.x(2, 3, 4), 1, op="ReduceSum")
    g = b.done(b.op("MultiplyConstant", total, b.const(1 / 3)), total)
    (result,) = apply(g, SumToMean())
    assert reasons([result]) == ["something else reads the sum"]


def jax_layer_norm(b: Build, x: str, size: int, gamma_inside: bool) -> str:
    """As flax writes it: sums, dropped dimensions, the clamped difference, gamma in the root."""
    shape = (*b.graph.values[x].shape[:-1], 1)
    last = len(shape) - 1

    def mean(v: str) -> str:
        total = reduced(b, v, last, op="ReduceSum")
        return b.op("MultiplyConstant", total, b.const(1 / size))

    m = mean(x)
    variance = b.op("Sub", mean(b.op("Multiply", x, x)), b.op("Multiply", m, m))
    variance = b.op("Clip", variance, attrs=ClipAttrs(0.0, None))
    variance = b.op("Reshape", variance, attrs=ReshapeAttrs(shape))
    root = b.op("Sqrt", b.op("AddingConstant", variance, b.const(1e-6)))
    inverse = b.op("DivConstant", root, b.const(1.0), attrs=ReversibleAttrs(True))
    if gamma_inside:
        inverse = b.op("MultiplyConstant", inverse, b.normal(size))
    centred = b.op("Sub", x, b.op("Reshape", m, attrs=ReshapeAttrs(shape)))
    y = b.op("Multiply", centred, inverse)
    if not gamma_inside:
        y = b.op("MultiplyConstant", y, b.normal(size))
    return b.op("AddingConstant", y, b.normal(size))


@pytest.mark.parametrize("gamma_inside", [True, False])
@pytest.mark.parametrize("shape", [(2, 16), (1, 5, 16)])
def test_layer_norm_as_jax_writes_it(shape: tuple[int, ...], gamma_inside: bool) -> None:
    b = Build()
    g = b.done(jax_layer_norm(b, b.x(*shape), 16, gamma_inside))
    results = apply(g, SumToMean(), KeepReducedDims(), FuseLayerNorm())
    assert [r.count for r in results] == [2, 1, 1]
    assert ops(g) == ["LayerNormalization"] and len(g.nodes[0].inputs) == 3


def is_nan(b: Build, x: str) -> str:
    shape = b.graph.values[x].shape
    name = b.graph.fresh("isnan")
    type_ = TensorType(DType.BOOL, shape)
    b.graph.add_value(name, type_)
    attrs = OnnxAttrs("IsNaN", "", 21, "{}", (str(type_),))
    b.graph.add_node(Node(f"L{len(b.graph)}", "Onnx", [x], [name], attrs))
    return name


def test_the_guard_of_a_softmax_goes() -> None:
    b = Build()
    s = b.op("Softmax", b.x(2, 8), attrs=AxisAttrs(1))
    g = b.done(b.op("Tanh", b.op("Where", is_nan(b, s), b.const(0.0), s)))
    (result,) = apply(g, DropNanGuards())
    assert result.count == 1 and ops(g) == ["Softmax", "Tanh"]


def test_the_guard_of_anything_else_stays() -> None:
    b = Build()
    s = b.op("Log", b.x(2, 8))
    g = b.done(b.op("Where", is_nan(b, s), b.const(0.0), s))
    assert DropNanGuards().run(g, REGISTRY).count == 0 and len(g) == 3


def test_explicit_broadcasting_goes() -> None:
    b = Build()
    wide = b.op("Expand", b.x(4, 1, 1, name="z"), attrs=ReshapeAttrs((1, 4, 5, 6)))
    g = b.done(b.op("Multiply", b.x(1, 4, 5, 6), wide))
    (result,) = apply(g, DropExpands())
    assert result.count == 1
    assert body(g) == ["%multiply: float32[1,4,5,6] = Multiply(%x, %z)"]


def test_broadcasting_that_makes_the_shape_stays() -> None:
    b = Build()
    wide = b.op("Expand", b.x(1, 4, name="z"), attrs=ReshapeAttrs((3, 4)))
    g = b.done(b.op("Multiply", b.x(1, 4), wide), wide)
    (result,) = apply(g, DropExpands())
    assert result.count == 0 and ops(g) == ["Expand", "Multiply"]


def test_a_key_transposed_without_its_batch_is_transposed_once() -> None:
    b = Build()
    heads = b.op("Transpose", b.x(1, 6, 2, 4), attrs=TransposeAttrs((0, 2, 1, 3)))
    flat = b.op("Reshape", heads, attrs=ReshapeAttrs((2, 6, 4)))
    turned = b.op("Transpose", flat, attrs=TransposeAttrs((0, 2, 1)))
    g = b.done(b.op("Tanh", b.op("Reshape", turned, attrs=ReshapeAttrs((1, 2, 4, 6)))))
    results = apply(g, SinkReshapes(), CancelMoves())
    assert results[0].count == 1
    assert ops(g) == ["Transpose", "Tanh"]
    assert g.nodes[0].attrs.to_dict() == {"perm": [0, 2, 3, 1]}


def test_reshapes_that_mix_dimensions_stay_put() -> None:
    b = Build()
    flat = b.op("Reshape", b.x(2, 6, 4), attrs=ReshapeAttrs((12, 4)))
    turned = b.op("Transpose", flat, attrs=TransposeAttrs((1, 0)))
    g = b.done(b.op("Reshape", turned, attrs=ReshapeAttrs((4, 2, 6))))
    (result,) = apply(g, SinkReshapes())
    assert result.count == 0


@pytest.mark.parametrize("seed", range(8))
def test_sinking_keeps_every_element_in_its_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(2, 5))
    shape = [int(d) for d in rng.choice([1, 2, 3, 5], rank)]
    b = Build()
    x = b.x(*shape)
    after = [d for d in shape if d != 1 or rng.random() < 0.4] + [1] * int(rng.integers(0, 2))
    x = b.op("Reshape", x, attrs=ReshapeAttrs(tuple(after)))
    perm = tuple(int(p) for p in rng.permutation(len(after)))
    x = b.op("Transpose", x, attrs=TransposeAttrs(perm))
    size = (*b.graph.values[x].shape, 1)
    g = b.done(b.op("Tanh", b.op("Reshape", x, attrs=ReshapeAttrs(size))))
    apply(g, SinkReshapes(), CancelMoves())
    assert ops(g).count("Transpose") <= 1
