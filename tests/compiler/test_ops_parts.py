"""Parts of layers give the whole layer's bits, whichever way the output is cut."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from qbcompiler.ir.boxes import Box, is_empty, slices, whole
from qbcompiler.ops import Case, OpSpec, QuantRule, default_registry
from qbcompiler.ops.fixedpoint import quantize

from .ops_harness import build_layer, case_graph, draw, grid, run_float
from .reference_kernels import ReferenceKernels

CUTTABLE = [
    (spec, case)
    for spec in default_registry().specs
    for case in spec.cases()
    if case.bound is not None
    and spec.rule is not QuantRule.FLOAT
    and spec.cuts((g := case_graph(spec, case)).nodes[0], g)
]


def pieces(shape: tuple[int, ...], cuts: Any) -> list[Box]:
    """Cut each axis in three uneven parts, one axis at a time, and all of them in two."""
    found = []
    for axis, step in cuts.items():
        n = shape[axis] // step
        marks = sorted({0, n // 3, n // 3 + 1, n})
        for a, b in itertools.pairwise(marks):
            box = list(whole(shape))
            box[axis] = (a * step, b * step)
            found.append(tuple(box))
    box = list(whole(shape))
    for axis, step in cuts.items():
        n = shape[axis] // step
        box[axis] = (n // 2 * step, n * step)
    found.append(tuple(box))
    return [b for b in found if not is_empty(b)]


@pytest.mark.parametrize(("spec", "case"), CUTTABLE, ids=[f"{s.name}-{c.id}" for s, c in CUTTABLE])
def test_parts_give_the_whole_layers_bits(spec: OpSpec[Any], case: Case) -> None:
    graph = case_graph(spec, case)
    node = graph.nodes[0]
    drawn = draw(graph, case)
    grids = {n: grid(x, zero_point=True) for n, x in drawn.items()}
    moves = spec.rule_of(node, graph) is QuantRule.MOVE
    grids["y0"] = grids["x0"] if moves else grid(run_float(graph, drawn)[0], zero_point=True)
    layer = build_layer(spec, graph, grids)
    params = {n: grids.get(n) for n in (*layer.inputs, *layer.outputs)}
    integers = {n: quantize(x, grids[n]) for n, x in drawn.items()}
    kernels = ReferenceKernels()
    want = spec.run(layer, [integers[n] for n in layer.inputs], params, kernels)[0]
    shapes = {n: graph.values[n].shape for n in (*layer.inputs, *layer.outputs)}
    for box in pieces(want.shape, spec.cuts(node, graph)):
        reads = spec.reads(node, graph, box)
        assert len(reads) == len(layer.inputs)
        part = spec.part(layer, box, reads, shapes)
        arrays = [
            np.ascontiguousarray(integers[n][slices(r)])
            for n, r in zip(layer.inputs, reads, strict=True)
            if not is_empty(r)
        ]
        got = spec.run(part, arrays, params, kernels)[0]
        assert np.array_equal(got, want[slices(box)]), box
        axis = spec.sum_axis(node, graph)
        if axis is not None and (length := reads[0][axis][1]) > 1:
            acc: Any = 0
            for a, b in ((0, length // 2), (length // 2, length)):
                some = [(*reads[0][:axis], (a, b), *reads[0][axis + 1 :])]
                piece = spec.part(layer, box, some, shapes)
                x = integers[layer.inputs[0]][slices(some[0])]
                acc = acc + spec.accumulate(piece, [x], params, kernels)
            assert np.array_equal(spec.finish(part, acc, params)[0], want[slices(box)])


def test_every_kind_of_operator_that_the_array_runs_can_be_cut() -> None:
    named = {spec.name for spec, _ in CUTTABLE}
    assert {
        "Convolution", "DepthwiseConvolution", "GroupConvolution", "Convolution3d", "MatMul",
        "Pooling", "GlobalAveragePooling", "Adding", "Multiply", "Relu", "Sigmoid", "Concatenate",
        "Resize", "Slice", "Pad", "Softmax", "LayerNormalization", "Transpose",
    } <= named  # fmt: skip
