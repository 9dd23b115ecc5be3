"""Over the whole registry: every operator is complete and every sample case holds."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from qbcompiler.ir import Attrs, DType, TensorType, Value
from qbcompiler.ops import Case, OpSpec, QuantRule, Registry, default_registry
from qbcompiler.ops.elementwise import Unary

from .ops_harness import all_cases, case_graph, draw, integer_error, run_float

SPECS = default_registry().specs
NO_CASES = {"Onnx"}  # its cases are whole ONNX operators, tested with the front end


def each_spec() -> Any:
    return [pytest.param(s, id=s.name) for s in SPECS if s.name not in NO_CASES]


@pytest.mark.parametrize("spec", each_spec())
def test_an_operator_is_complete(spec: OpSpec[Any]) -> None:
    assert issubclass(spec.attrs_type, Attrs)
    assert spec.__doc__ and type(spec).__doc__
    cases = spec.cases()
    assert cases, "an operator needs sample cases"
    ids = [c.id for c in cases]
    assert len(set(ids)) == len(ids)
    assert all(type(c.attrs) is spec.attrs_type for c in cases)


@pytest.mark.parametrize("spec", each_spec())
def test_the_shape_rule_refuses_absent_inputs(spec: OpSpec[Any]) -> None:
    attrs = spec.cases()[0].attrs
    for inputs in ([], [None, None]):
        with pytest.raises(ValueError, match="missing"):
            spec.infer(attrs, inputs)


@pytest.mark.parametrize("spec", each_spec())
def test_shape_rules_never_raise_anything_but_value_errors(spec: OpSpec[Any]) -> None:
    rng = np.random.default_rng(1)
    attrs = [c.attrs for c in spec.cases()]
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 0), (2, 3), (1, 2, 3, 4), (7, 1, 5)]
    refused = 0
    for _ in range(60):
        values = []
        for i in range(rng.integers(1, 6)):
            dtype = DType(str(rng.choice(["float32", "int64", "bool", "float16"])))
            shape = shapes[rng.integers(len(shapes))]
            data = np.ones(shape, dtype.numpy) if rng.random() < 0.4 else None
            values.append(Value(f"v{i}", TensorType(dtype, shape), data))
        try:
            types = spec.infer(attrs[rng.integers(len(attrs))], values)
        except ValueError as exc:
            assert "\n" not in str(exc)
            refused += 1
        else:
            assert all(isinstance(t, TensorType) and min(t.shape, default=0) >= 0 for t in types)
    always_fits = {"Identity", "Cast", "Neg"}
    assert refused or spec.name in always_fits or spec.rule is QuantRule.CLAMP


@pytest.mark.parametrize("spec,case", all_cases())
def test_attributes_survive_json(spec: OpSpec[Any], case: Case) -> None:
    text = json.dumps(case.attrs.to_dict(), allow_nan=False)
    assert spec.attrs_type.from_dict(json.loads(text)) == case.attrs


@pytest.mark.parametrize("spec,case", all_cases())
def test_the_export_has_the_declared_type_and_equals_the_reference(
    spec: OpSpec[Any], case: Case
) -> None:
    graph = case_graph(spec, case)
    inputs = draw(graph, case)
    found = run_float(graph, inputs)
    if case.reference is not None:
        expected = case.reference(*inputs.values())
        np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("zero_point", [False, True], ids=["symmetric", "zero_point"])
@pytest.mark.parametrize("spec,case", [p for p in all_cases() if p.values[1].bound is not None])
def test_integers_equal_float_within_the_bound(
    spec: OpSpec[Any], case: Case, zero_point: bool
) -> None:
    bound = case.bound
    assert bound is not None
    for seed in range(3):
        error = integer_error(spec, case, zero_point=zero_point, seed=seed)
        assert error <= bound + 1e-3


COARSE = ("Cast-half", "Cast-grid", "Cast-unsigned")
NOT_WIDE = {"LSTM", "GRU", "RNN", "Ceil", "Hardshrink", "Log", "Rsqrt", "Sqrt"}
"""Operators without a 16-bit form; ``DivConstant`` and ``Pow`` lack it for some attributes."""


def wide_bound(spec: OpSpec[Any], case: Case, bits: tuple[int, int]) -> float:
    """Return the bound that docs/numerics.md states for 16-bit grids, in output steps."""
    bound = case.bound
    assert bound is not None
    if isinstance(spec, Unary) and bits[0] == 16:
        # half a step, and what chords over 1/512 of the input's grid are off the function
        x = np.linspace(*chord_range(case), 512 * 64 + 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            y = spec.function(case.attrs, x)
            error = np.abs(np.interp(x, x[::64], y[::64]) - y)
        # of what is drawn, and where the function has a value
        met = (x >= case.low) & (x <= case.high) & np.isfinite(error)
        off, span = error[met].max(), np.ptp(y[met])
        return float(0.52 + 4.0 * off / (span / (1 << bits[1])))
    if spec.weights:
        return 2.0 * bound  # float32 of the reference too
    if "Normalization" in spec.name:
        return bound + (1.0 if bits[1] == 16 else 0.01)
    if spec.name == "Resize" and bound > 0:
        return bound + 3.0
    return bound


def chord_range(case: Case) -> tuple[float, float]:
    """Return at least the range of the grid that the harness makes for a case's input."""
    low, high = min(case.low, 0.0), max(case.high, 0.0)
    reach = max(-low, high)
    return min(-reach, low), max(reach, high + 0.4 * (high - low))


@pytest.mark.parametrize(
    ("bits", "zero_point"),
    [((16, 16), False), ((16, 16), True), ((8, 16), False), ((16, 8), True)],
    ids=str,
)
@pytest.mark.parametrize(
    "spec,case",
    [
        p
        for p in all_cases()
        # float16 and 8-bit grids, which these cases compare with, are coarser than 16 bits
        if p.values[1].bound is not None and p.id not in COARSE
    ],
)
def test_sixteen_bits_are_within_their_bound(
    spec: OpSpec[Any], case: Case, bits: tuple[int, int], zero_point: bool
) -> None:
    try:
        error = integer_error(spec, case, zero_point=zero_point, bits=bits, weight_bits=16)
    except ValueError as exc:
        assert "16-bit" in str(exc) and "\n" not in str(exc)
        lacking = spec.name in NOT_WIDE or (spec.name, case.id) == ("Pow", "root")
        assert lacking or (spec.name == "DivConstant" and getattr(case.attrs, "reverse", False))
    else:
        assert error <= wide_bound(spec, case, bits) + 0.02


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize(
    "name", [s.name for s in SPECS if isinstance(s, Unary)] + ["Relu", "Neg", "Identity"]
)
def test_small_ranks_work(name: str, shape: tuple[int, ...]) -> None:
    spec = default_registry()[name]
    case = dataclasses.replace(spec.cases()[0], inputs=[TensorType(DType.FLOAT32, shape)])
    assert integer_error(spec, case, zero_point=True) <= 0.5 + 1e-3


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("name", ["Adding", "Sub", "Multiply", "Div", "MatMul", "Concatenate"])
def test_small_ranks_of_two_inputs_work(name: str, shape: tuple[int, ...]) -> None:
    spec = default_registry()[name]
    if name in ("MatMul", "Concatenate"):
        shape = (1, 1)
    two = [TensorType(DType.FLOAT32, shape)] * 2
    case = dataclasses.replace(spec.cases()[0], inputs=two, low=1.0, bound=0.51)
    assert integer_error(spec, case, zero_point=True) <= 0.5 + 1e-3


@pytest.mark.parametrize(
    "name", ["AddingConstant", "SubConstant", "MultiplyConstant", "DivConstant", "PRelu"]
)
def test_small_ranks_with_a_constant_work(name: str) -> None:
    spec = default_registry()[name]
    for case in spec.cases()[:1]:
        scalar = np.asarray(1.25, np.float32)
        small = dataclasses.replace(case, inputs=[TensorType(DType.FLOAT32, ()), scalar])
        assert integer_error(spec, small, zero_point=True) <= 0.5 + 1e-3


@pytest.mark.parametrize(
    "spec,case", [p for p in all_cases() if p.values[0].rule is QuantRule.CLAMP]
)
def test_a_clamp_keeps_its_grid(spec: OpSpec[Any], case: Case) -> None:
    for zero_point in (False, True):
        assert integer_error(spec, case, zero_point=zero_point, same_grid=True) <= 0.5 + 1e-3


@pytest.mark.parametrize("spec,case", [p for p in all_cases() if p.values[1].bound is None])
def test_what_has_no_integer_form_says_why(spec: OpSpec[Any], case: Case) -> None:
    graph = case_graph(spec, case)
    reason = spec.unsupported(graph.nodes[0], graph)
    assert reason and "\n" not in reason


@pytest.mark.parametrize("spec,case", all_cases())
def test_multiply_adds_are_counted(spec: OpSpec[Any], case: Case) -> None:
    graph = case_graph(spec, case)
    macs = spec.macs(graph.nodes[0], graph)
    assert isinstance(macs, int) and macs >= 0
    if spec.weights or spec.name == "Batchnorm":
        assert macs >= graph.values["y0"].type.size // max(graph.values["y0"].shape[1:2] or (1,))


def test_a_registered_name_is_unique() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        Registry([SPECS[0], SPECS[0]])


def test_every_name_is_on_the_public_list() -> None:
    # two are ours: an operator that the IR does not model, and the opposite of OrderedPatchify
    names = {s.name for s in SPECS} - {"Onnx", "PixelShuffle"}
    assert names <= set(PUBLIC.split())


PUBLIC = """
Abs AddPartial Adding AddingConstant Batchnorm Cast Ceil Celu Clip Concatenate Convolution
Convolution3d Crop DepthwiseConvolution DeviceBridge Div DivConstant Einsum Elu Erf Exp Expand
GLU Gather GatherElements Gelu GlobalAveragePooling GlobalResponseNormalization GridSample
GroupConvolution GroupNormalization GRU HardSigmoid HardSwish Hardshrink Hardtanh HeaderView
HeaderViewRevert Identity Input InputConstant InstanceNormalization InverseSigmoid
L1Normalization L2Normalization LSTM LayerNormalization LeakyRelu Log LogSigmoid LogSoftmax
Logical Logit MaskSoftmax MaskedFill MatMul MeanCentering Mish MoeAggregator MoeDispatcher
Multiply MultiplyConstant Neg NonMaxSuppression OrderedPatchify Output PRelu Pad Pooling Pow
QuickGelu ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceRMS ReduceSum RelShift Relu
Reshape ReshapeV2 Resize RmsNormalization RNN RotaryEmbedding Rsqrt Rstd ScatterND Selu Shape
Sigmoid Sin Cos Slice Softmax Softplus Softshrink Softsign Sqrt StaggeredPadding Sub SubConstant
SubgraphCall SumNormalization Swish Tanh TensorCmp TopKIndices TopKValues Transpose
TransposeConvolution Unsqueeze Where
"""
