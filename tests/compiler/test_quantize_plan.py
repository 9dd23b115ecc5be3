"""Grids: which tensors share one, whose range counts, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbcompiler.config import CompileConfig
from qbcompiler.errors import InternalError, QuantizationError, UnsupportedOperatorError
from qbcompiler.ops import Registry, default_registry
from qbcompiler.ops.activation import ClipAttrs
from qbcompiler.ops.fixedpoint import round_scale
from qbcompiler.ops.shapes import TransposeAttrs
from qbcompiler.quantization import (
    QuantSettings,
    apply_plan,
    layer_summaries,
    plan_grids,
    quantize,
)
from qbcompiler.quantization.plan import zero_point_grid
from qbcompiler.quantization.settings import matches

from .quant_nets import Net, config, observe, residual_net, samples

reals = st.floats(-1e6, 1e6)
settings_of_ranges = given(reals, reals, st.sampled_from([8, 16]))


def plan(graph, ranges, method=0):
    return plan_grids(graph, ranges, method_of=lambda node: method)


def test_a_grid_reaches_the_larger_end_of_its_range():
    net = Net()
    graph = net.finish(net.conv("c", net.input("x", 1, 3, 4, 4), 2))
    grids = plan(graph, {"x": (-1.0, 3.0), "c.out": (-8.0, 2.0)}).grids
    assert grids["x"].scale == round_scale(3 / 127)
    assert grids["c.out"].scale == round_scale(8 / 127)
    assert {g.zero_point for g in grids.values()} == {0}


def test_a_clamp_gives_its_grid_to_an_input_that_only_it_reads():
    net = Net()
    c = net.conv("c", net.input("x", 1, 3, 4, 4), 2)
    graph = net.finish(net.layer("Relu", "r", [c]))
    found = plan(graph, {"x": (-1, 1), "c.out": (-50.0, 2.0), "r.out": (0.0, 2.0)})
    assert found.grids["c.out"] == found.grids["r.out"]
    assert found.ranges["c.out"] == (0.0, 2.0), "what the clamp cuts off has no say"


@pytest.mark.parametrize("why", ["another reader", "an output"])
def test_a_clamp_does_not_when_somebody_else_sees_the_input(why):
    net = Net()
    c = net.conv("c", net.input("x", 1, 3, 4, 4), 2)
    outputs = [net.layer("Relu", "r", [c])]
    outputs.append(net.layer("Adding", "a", [c, outputs[0]]) if why == "another reader" else c)
    graph = net.finish(*outputs)
    ranges = {"x": (-1, 1), "c.out": (-50.0, 2.0), "r.out": (0.0, 2.0), "a.out": (-50.0, 4.0)}
    assert plan(graph, ranges).grids["c.out"].scale == round_scale(50 / 127)


def test_the_tie_reaches_through_operators_that_move_elements():
    net = Net()
    c = net.conv("c", net.input("x", 1, 3, 4, 4), 2)
    t = net.layer("Transpose", "t", [c], TransposeAttrs((0, 2, 3, 1)))
    graph = net.finish(net.layer("Clip", "k", [t], ClipAttrs(0.0, 6.0)))
    ranges = {"x": (-1, 1), "c.out": (-50.0, 9.0), "t.out": (-50.0, 9.0), "k.out": (0.0, 6.0)}
    found = plan(graph, ranges)
    assert len({found.classes[n] for n in ("c.out", "t.out", "k.out")}) == 1
    assert found.grids["c.out"].scale == round_scale(6 / 127)


def test_what_only_moves_needs_no_range_of_its_own():
    net = Net()
    c = net.conv("c", net.input("x", 1, 3, 4, 4), 2)
    graph = net.finish(net.layer("Transpose", "t", [c], TransposeAttrs((0, 2, 3, 1))))
    found = plan(graph, {"x": (-1, 1), "c.out": (-5.0, 9.0)})
    assert found.grids["t.out"] == found.grids["c.out"]


def test_method_1_shares_a_scale_where_tensors_meet():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    separate, shared = plan(graph, ranges, 0), plan(graph, ranges, 1)
    assert separate.grids["c2.out"] != separate.grids["r1.out"]
    assert shared.grids["c2.out"] == shared.grids["r1.out"] == shared.grids["c1.out"]
    scales = [separate.grids[n].scale for n in ("c2.out", "r1.out")]
    assert shared.grids["c2.out"].scale == max(scales)
    assert shared.grids["add.out"] == separate.grids["add.out"], "the sum has its own range"


def test_single_layers_can_have_another_method():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    settings = QuantSettings(method=0, methods={"src/a*": 1})
    assert (
        plan_grids(graph, ranges, method_of=settings.method_of).grids
        == plan(graph, ranges, 1).grids
    )


def test_an_operator_can_fix_its_own_range():
    class Fixed(type(default_registry()["Sigmoid"])):
        def grid(self, node, graph):
            return (0.0, 1.0)

    net = Net()
    graph = net.finish(net.layer("Sigmoid", "s", [net.input("x", 1, 8)]))
    ranges = {"x": (-4, 4), "s.out": (0.3, 0.4)}
    assert plan_grids(graph, ranges, registry=Registry([Fixed()])).ranges["s.out"] == (0.0, 1.0)
    assert plan(graph, ranges).ranges["s.out"] == (0.3, 0.4)


def test_a_tensor_that_is_always_zero_has_scale_one():
    net = Net()
    graph = net.finish(net.layer("Relu", "r", [net.conv("c", net.input("x", 1, 3, 4, 4), 2)]))
    found = plan(graph, {"x": (0, 0), "c.out": (-1, 0), "r.out": (0, 0)})
    assert found.grids["r.out"].scale == 1.0


@pytest.mark.parametrize("bad", [(float("nan"), 1.0), (0.0, float("inf")), (2.0, 1.0)])
def test_ranges_that_are_not_finite_are_refused(bad):
    net = Net()
    graph = net.finish(net.conv("c", net.input("x", 1, 3, 4, 4), 2))
    with pytest.raises(QuantizationError, match=r"c\.out.*'c', Convolution") as caught:
        plan(graph, {"x": (-1, 1), "c.out": bad})
    assert caught.value.details["layer"] == "c" and caught.value.hint


def test_a_missing_range_is_our_fault():
    net = Net()
    graph = net.finish(net.conv("c", net.input("x", 1, 3, 4, 4), 2))
    with pytest.raises(InternalError, match=r"no range of 'c\.out'"):
        plan(graph, {"x": (-1, 1)})


@pytest.mark.parametrize("method", [-1, 4])
def test_an_unknown_method_is_refused_with_the_way_out(method):
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    with pytest.raises(QuantizationError, match=f"method {method} is unknown") as caught:
        plan(graph, ranges, method)
    assert "0, 1, 2 or 3" in caught.value.hint


@pytest.mark.parametrize("method", [2, 3])
def test_zero_points_spend_every_step_on_the_range(method):
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    found = plan_grids(graph, ranges, method_of=lambda node: method, input_method=method)
    for name, (low, high) in found.ranges.items():
        grid = found.grids[name]
        assert grid.scale * 255 == pytest.approx(max(high, 0) - min(low, 0), rel=1e-3)
        at = [(v / grid.scale + grid.zero_point) for v in (min(low, 0), max(high, 0))]
        assert grid.qmin - 0.6 <= at[0] and at[1] <= grid.qmax + 0.6
    assert found.grids["r2.out"].zero_point == -128, "nothing is below zero"
    assert found.grids["image"].zero_point not in (-128, 0)


def test_method_3_shares_a_grid_where_tensors_meet():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    ranges = {**ranges, "c2.out": (-1.0, 3.0), "r1.out": (0.0, 4.0)}
    separate, shared = plan(graph, ranges, 2), plan(graph, ranges, 3)
    assert separate.grids["c2.out"] != separate.grids["r1.out"]
    assert shared.grids["c2.out"] == shared.grids["r1.out"] == shared.grids["c1.out"]
    assert shared.grids["c2.out"].zero_point == -77, "-1 to 4 in 255 steps"


def test_a_shared_grid_has_a_zero_point_only_where_all_its_makers_ask_for_one():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    settings = QuantSettings(method=3, methods={"c2": 1})
    mixed = plan_grids(graph, ranges, method_of=settings.method_of, input_method=3)
    assert mixed.grids["c2.out"] == mixed.grids["r1.out"]
    assert mixed.grids["c2.out"].zero_point == 0
    assert mixed.grids["scores.out"].zero_point != 0 and mixed.grids["r2.out"].zero_point == -128


@settings_of_ranges
def test_a_grid_with_a_zero_point_holds_zero_and_both_ends(low, high, bits):
    grid = zero_point_grid(low, high, bits)
    low, high = min(low, 0.0), max(high, 0.0)
    assert grid.qmin <= grid.zero_point <= grid.qmax
    step = grid.scale
    ends = [(grid.qmin - grid.zero_point) * step, (grid.qmax - grid.zero_point) * step]
    slack = step * (0.5 + 2.0 ** (bits - 12))
    assert ends[0] <= low + slack and ends[1] >= high - slack
    if high - low > 1e-20:
        assert step == pytest.approx((high - low) / ((1 << bits) - 1), rel=2.0**-11)


def test_planning_does_not_depend_on_the_order_of_the_ranges():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    backwards = dict(reversed(list(ranges.items())))
    for method in (0, 1):
        assert plan(graph, ranges, method).grids == plan(graph, backwards, method).grids


def test_noise_in_the_last_bits_of_a_range_changes_no_grid():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    noisy = {k: (a * (1 + 1e-7), b * (1 - 1e-7)) for k, (a, b) in ranges.items()}
    assert plan(graph, ranges).grids == plan(graph, noisy).grids


# -- applying -----------------------------------------------------------------------------


def test_every_layer_without_integer_form_is_listed():
    net = Net()
    x = net.input("x", 1, 4)
    y = net.input("y", 1, 4)
    graph = net.finish(net.layer("Relu", "r", [x]), y)
    graph.node("r").op = "Unheard"
    with pytest.raises(UnsupportedOperatorError, match=r"1 layer has.*r \(Unheard\): ") as caught:
        apply_plan(
            graph,
            plan_grids(residual_net(), observe(residual_net(), samples(residual_net())).ranges),
        )
    assert caught.value.details["layers"][0]["layer"] == "r"
    assert "cpu-offload" in caught.value.hint


def test_weights_that_are_not_finite_name_the_layer():
    graph = residual_net()
    ranges = observe(graph, samples(graph))
    weight = graph.values["c3.w"]
    weight.data = weight.data.copy()
    weight.data[0, 0, 0, 0] = np.nan
    with pytest.raises(QuantizationError, match=r"layer 'c3' \(Convolution\)") as caught:
        quantize(graph, ranges, config())
    assert caught.value.details["layer"] == "c3"


def test_the_integer_graph_has_the_float_graphs_shape_and_is_stored_channel_last():
    graph = residual_net()
    found = quantize(graph, observe(graph, samples(graph)), config())
    assert found.inputs == graph.inputs and found.outputs == graph.outputs
    assert [x.name for x in found.layers] == [n.name for n in graph.nodes]
    for name, value in found.values.items():
        assert value.type.shape == graph.values[name].shape
        assert value.storage == (0, 2, 3, 1)
        assert value.type.dtype == "int8" and value.quant.zero_point == 0
    assert found.layers[0].source == ("src/c1",)


def test_the_summary_lists_layers_in_order_with_scales_and_weights():
    graph = residual_net()
    found = quantize(graph, observe(graph, samples(graph)), config())
    summary = layer_summaries(found)
    assert [x["name"] for x in summary] == [x.name for x in found.layers]
    assert summary[0]["weights"] == {"bits": 8, "count": 216}
    assert summary[1]["weights"] is None
    assert summary[0]["outputs"][0]["scale"] == found.values["c1.out"].quant.scale


# -- settings -----------------------------------------------------------------------------


def test_layers_named_for_16_bits_have_them_at_their_outputs():
    graph = residual_net()
    ranges = observe(graph, samples(graph)).ranges
    bits = QuantSettings(wide_activations=("src/c1", "scores")).activation_bits(graph)
    assert bits == {"c1.out": 16, "scores.out": 16}
    found = plan_grids(graph, ranges, bits=bits).grids
    wide = {n for n, g in found.items() if g.bits == 16}
    assert wide == {"c1.out", "r1.out", "scores.out"}, "a clamp has the grid of its input"
    assert found["scores.out"].scale == round_scale(
        max(abs(v) for v in ranges["scores.out"]) / 32767
    )
    assert found["scores.out"].dtype == "int16"


def test_a_model_input_can_have_16_bits_by_its_name():
    graph = residual_net()
    assert QuantSettings(wide_activations=("im*",)).activation_bits(graph) == {"image": 16}
    every = QuantSettings(wide_activations=("*",)).activation_bits(graph)
    assert set(every) == {n for n, v in graph.values.items() if not v.is_const}


def test_the_range_of_a_wide_grid_is_chosen_for_its_bits():
    """Of the whole class: the convolution is named, its clamp's output has the say."""
    graph = residual_net()
    seen = observe(graph, samples(graph)).ranges
    wider = {n: (2 * low, 2 * high) for n, (low, high) in seen.items()}
    statistics = SimpleNamespace(ranges=seen, ranges_for={8: seen, 16: wider}.get)
    config = CompileConfig.from_data({"bit": {"layerOverrides": {"activation16Bits": ["c3"]}}})
    found = quantize(graph, statistics, config)
    for name in ("c3.out", "r3.out"):
        grid = found.values[name].quant
        assert grid.bits == 16 and grid.scale == round_scale(wider["r3.out"][1] / 32767)
    assert found.values["c2.out"].quant.bits == 8


def test_patterns_match_layer_names_source_names_and_globs():
    node = residual_net().node("c2")
    for pattern in ("c2", "c*", "src/c2", "src/*", "c[12]"):
        assert matches(node, pattern)
    for pattern in ("c", "C2", "c3", "src"):
        assert not matches(node, pattern)


def test_the_most_bits_that_match_count():
    settings = QuantSettings(weight_bits=((16, ()), (8, ("c1",)), (4, ("c*",))))
    graph = residual_net()
    assert settings.weight_bits_of(graph.node("c1")) == 8
    assert settings.weight_bits_of(graph.node("c2")) == 4
    assert settings.weight_bits_of(graph.node("r1")) == 8
