"""Passes that remove and merge moves, and the pipeline that puts all passes in order."""

from __future__ import annotations

from typing import Any

import pytest

from qbcompiler.ir import Attrs, Graph, VerifyError
from qbcompiler.ops import Registry
from qbcompiler.ops.pad import PadAttrs
from qbcompiler.ops.shapes import CastAttrs, ReshapeAttrs, TransposeAttrs, UnsqueezeAttrs
from qbcompiler.ops.slicing import AxisAttrs, SliceAttrs
from qbcompiler.passes.base import GraphPass, PassResult
from qbcompiler.passes.cancel_moves import CancelMoves
from qbcompiler.passes.dead_code import DeadCode
from qbcompiler.passes.merge_slices import MergeSlices
from qbcompiler.passes.pipeline import PIPELINE, run_pipeline

from .pass_graphs import REGISTRY, Build, apply, body, ops, reasons

NHWC, NCHW = TransposeAttrs((0, 2, 3, 1)), TransposeAttrs((0, 3, 1, 2))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Identity", None),
        ("Cast", CastAttrs("float32")),
        ("Transpose", TransposeAttrs((0, 1, 2, 3))),
        ("Reshape", ReshapeAttrs((1, 4, 5, 6))),
        ("Expand", ReshapeAttrs((1, 4, 5, 6))),
    ],
)
def test_moves_of_nothing_go(op: str, attrs: Attrs | None) -> None:
    b = Build()
    x = b.op(op, b.x(1, 4, 5, 6), attrs=attrs)
    g = b.done(b.op("Relu", x))
    (result,) = apply(g, CancelMoves())
    assert result.count == 1 and body(g) == ["%relu: float32[1,4,5,6] = Relu(%x)"]


def test_an_output_keeps_its_name_when_its_copy_goes() -> None:
    b = Build()
    g = b.done(b.op("Identity", b.op("Relu", b.x(1, 4)), out="result"))
    apply(g, CancelMoves())
    assert body(g) == ["%result: float32[1,4] = Relu(%x)"]


def test_a_copy_of_an_input_or_of_another_output_stays() -> None:
    b = Build()
    x = b.x(1, 4)
    y = b.op("Relu", x)
    g = b.done(b.op("Identity", x), y, b.op("Identity", y))
    (result,) = apply(g, CancelMoves())
    assert result.count == 0 and len(g) == 3
    assert reasons([result]) == ["it gives an output its name"] * 2


def test_transposes_that_undo_each_other_go() -> None:
    b = Build()
    x = b.op("Transpose", b.op("Transpose", b.x(1, 4, 5, 6), attrs=NHWC), attrs=NCHW)
    g = b.done(b.op("Relu", x))
    apply(g, CancelMoves())
    assert ops(g) == ["Relu"]


def test_transposes_merge_and_the_first_stays_for_others() -> None:
    b = Build()
    t = b.op("Transpose", b.x(2, 4, 5, 6), attrs=NHWC)
    u = b.op("Transpose", t, attrs=NHWC)
    g = b.done(b.op("Relu", u), b.op("Tanh", t))
    apply(g, CancelMoves())
    assert body(g) == [
        "%transpose: float32[2,5,6,4] = Transpose(%x) {perm=[0, 2, 3, 1]}",
        "%transpose_1: float32[2,6,4,5] = Transpose(%x) {perm=[0, 3, 1, 2]}",
        "%relu: float32[2,6,4,5] = Relu(%transpose_1)",
        "%tanh: float32[2,5,6,4] = Tanh(%transpose)",
    ]


def test_reshapes_merge() -> None:
    b = Build()
    x = b.op("Reshape", b.x(2, 3, 4), attrs=ReshapeAttrs((6, 4)))
    x = b.op("Unsqueeze", x, attrs=UnsqueezeAttrs((0,)))
    x = b.op("Reshape", x, attrs=ReshapeAttrs((4, 6)))
    g = b.done(b.op("Relu", x))
    apply(g, CancelMoves())
    assert ops(g) == ["Reshape", "Relu"]


def test_reshaping_back_goes_altogether() -> None:
    b = Build()
    x = b.op("Reshape", b.x(2, 3, 4), attrs=ReshapeAttrs((6, 4)))
    g = b.done(b.op("Relu", b.op("Reshape", x, attrs=ReshapeAttrs((2, 3, 4)))))
    apply(g, CancelMoves())
    assert ops(g) == ["Relu"]


def test_a_transpose_of_single_elements_is_a_reshape() -> None:
    b = Build()
    x = b.op("Transpose", b.x(1, 8, 1, 1), attrs=NHWC)
    g = b.done(b.op("Relu", b.op("Reshape", x, attrs=ReshapeAttrs((1, 8)))))
    apply(g, CancelMoves())
    assert body(g) == [
        "%reshape: float32[1,8] = Reshape(%x) {shape=[1, 8]}",
        "%relu: float32[1,8] = Relu(%reshape)",
    ]


def test_slices_of_slices_merge() -> None:
    b = Build()
    x = b.op("Slice", b.x(10, 12), attrs=SliceAttrs((9, 1), (5, 4), (-2, 3)))
    g = b.done(b.op("Slice", x, attrs=SliceAttrs((3, 0), (2, 4), (-1, 1))))
    apply(g, MergeSlices())
    assert body(g) == [
        "%slice_1: float32[2,4] = Slice(%x) {starts=[3, 1], sizes=[2, 4], steps=[2, 3]}"
    ]


def test_slices_pads_and_joins_of_nothing_go() -> None:
    b = Build()
    x = b.op("Slice", b.x(3, 4), attrs=SliceAttrs((0, 0), (3, 4), (1, 1)))
    x = b.op("Pad", x, attrs=PadAttrs((0, 0, 0, 0)))
    x = b.op("Concatenate", x, attrs=AxisAttrs(0))
    g = b.done(b.op("Relu", x))
    (result,) = apply(g, MergeSlices())
    assert result.count == 3 and ops(g) == ["Relu"]


def test_a_reversal_is_not_nothing() -> None:
    b = Build()
    x = b.op("Slice", b.x(3, 4), attrs=SliceAttrs((2, 0), (3, 4), (-1, 1)))
    g = b.done(b.op("Relu", x))
    (result,) = apply(g, MergeSlices())
    assert result.count == 0 and ops(g) == ["Slice", "Relu"]


# -- the pipeline --------------------------------------------------------------------------------


def test_the_pipeline_is_in_order_and_every_pass_has_one_name() -> None:
    done: set[str] = set()
    for step in PIPELINE:
        assert step.name not in done
        assert set(step.requires) <= done, step.name
        done.add(step.name)


def test_a_pass_before_one_that_it_requires_is_an_error() -> None:
    g = Build().graph
    later = PIPELINE[-2]
    assert later.requires
    with pytest.raises(ValueError, match="is listed twice or before"):
        run_pipeline(g, REGISTRY, [later])
    with pytest.raises(ValueError, match="is listed twice"):
        run_pipeline(g, REGISTRY, [DeadCode(), DeadCode()])


def test_a_pass_whose_operator_is_not_registered_is_left_out() -> None:
    b = Build()
    g = b.done(b.op("Clip", b.op("Relu", b.x(1, 4))))
    registry = Registry([s for s in REGISTRY.specs if s.name != "Clip"])
    names = [r.name for r in run_pipeline(Graph(), registry)]
    assert "merge_clips" not in names and "dead_code" in names
    assert len(g) == 2


def test_a_pass_that_breaks_the_graph_is_found_at_once() -> None:
    class Breaks(GraphPass):
        name = "breaks"

        def run(self, graph: Graph, registry: Any) -> PassResult:
            graph.values["relu"].type = graph.values["relu"].type.with_shape((7,))
            return PassResult(self.name, 1)

    b = Build()
    g = b.done(b.op("Relu", b.x(1, 4)))
    with pytest.raises(VerifyError, match="the shape rule says"):
        run_pipeline(g, REGISTRY, [Breaks()])


def test_a_pass_that_does_not_keep_its_promise_is_found() -> None:
    class Promises(DeadCode):
        def ensures(self, graph: Graph) -> None:
            raise VerifyError("a Relu is left")

    b = Build()
    g = b.done(b.op("Relu", b.x(1, 4)))
    with pytest.raises(VerifyError, match="a Relu is left"):
        run_pipeline(g, REGISTRY, [Promises()])
