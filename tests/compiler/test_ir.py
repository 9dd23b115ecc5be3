"""The graph keeps its use index right under rewrites, and the verifier finds what is broken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.ir import (
    Attrs,
    DType,
    Graph,
    NoAttrs,
    Node,
    QuantParams,
    TensorType,
    VerifyError,
    dump,
    verify,
)

T = TensorType(DType.FLOAT32, (2, 3))


@dataclass(frozen=True, slots=True)
class SampleAttrs(Attrs):
    axis: int
    pads: tuple[int, ...] = ()
    alpha: float | None = None
    mode: str = "constant"


def chain(length: int) -> Graph:
    g = Graph("chain")
    g.add_input("v0", T)
    for i in range(length):
        g.add_value(f"v{i + 1}", T)
        g.add_node(Node(f"n{i}", "Relu", [f"v{i}"], [f"v{i + 1}"], NoAttrs()))
    g.outputs = [f"v{length}"]
    return g


def check_index(g: Graph) -> None:
    """The index says exactly what a walk over the nodes says."""
    for name in g.values:
        users = [n.name for n in g.nodes if name in n.inputs]
        assert sorted(n.name for n in g.consumers(name)) == sorted(users)
        makers = [n for n in g.nodes if name in n.outputs]
        assert [g.producer(name)] == (makers or [None])


def test_attrs_round_trip_through_json_form() -> None:
    attrs = SampleAttrs(axis=-1, pads=(1, 2), alpha=0.25)
    assert SampleAttrs.from_dict(attrs.to_dict()) == attrs
    assert attrs.to_dict() == {"axis": -1, "pads": [1, 2], "alpha": 0.25, "mode": "constant"}
    assert SampleAttrs.from_dict({"axis": 1}).alpha is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "lacks attribute 'axis'"),
        ({"axis": 1, "colour": 2}, "no attribute 'colour'"),
        ({"axis": "1"}, "axis: expected int"),
        ({"axis": True}, "expected int, got bool"),
        ({"axis": 1, "pads": [1, "x"]}, "pads: expected int"),
        ({"axis": 1, "pads": 3}, "expected a list"),
    ],
)
def test_attrs_refuse_what_does_not_fit(data: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SampleAttrs.from_dict(data)


def test_attrs_refuse_infinity() -> None:
    with pytest.raises(ValueError, match="finite"):
        SampleAttrs(axis=0, alpha=float("inf")).to_dict()


def test_dump_is_readable_and_stable() -> None:
    g = Graph("g")
    g.add_input("x", T)
    g.add_value("w", TensorType(DType.FLOAT32, (2,)), np.array([1.0, 2.0], np.float32))
    g.add_value("big", TensorType(DType.FLOAT32, (9,)), np.zeros(9, np.float32))
    g.add_value("y", T)
    g.add_node(Node("op", "Foo", ["x", "w", "", "big"], ["y"], SampleAttrs(axis=1)))
    g.outputs = ["y"]
    assert dump(g) == (
        "graph g(\n"
        "  %x: float32[2,3]\n"
        ") {\n"
        "  %y: float32[2,3] = Foo(%x, float32[2][1.0, 2.0], _, @big:float32[9])"
        " {axis=1, pads=[], mode=constant}\n"
        "  return %y\n"
        "}\n"
    )


def test_prune_drops_dead_nodes_and_values_only() -> None:
    g = chain(3)
    g.add_value("dead", T)
    g.add_node(Node("d", "Relu", ["v1"], ["dead"], NoAttrs()))
    assert g.prune() == 1
    assert "dead" not in g.values and len(g) == 3
    check_index(g)
    verify(g, "final")


def test_sort_orders_and_finds_cycles() -> None:
    g = Graph()
    g.add_input("x", T)
    for n in ("a", "b", "c"):
        g.add_value(n, T)
    g.add_node(Node("nc", "Relu", ["b"], ["c"], NoAttrs()))
    g.add_node(Node("nb", "Relu", ["a"], ["b"], NoAttrs()))
    g.add_node(Node("na", "Relu", ["x"], ["a"], NoAttrs()))
    g.outputs = ["c"]
    with pytest.raises(VerifyError, match="before it is made"):
        verify(g, "lowered")
    g.sort()
    assert [n.name for n in g] == ["na", "nb", "nc"]
    verify(g, "final")
    g.set_input(g.node("na"), 0, "c")
    with pytest.raises(ValueError, match="cycle"):
        g.sort()


def test_take_output_name_keeps_the_graph_output() -> None:
    g = chain(2)
    node = g.node("n1")
    g.remove_node(node)
    g.take_output_name("v2", "v1")
    assert g.outputs == ["v2"] and g.producer("v2") is g.node("n0")
    check_index(g)
    verify(g, "final")


def test_subgraph_makes_inputs_of_what_it_cuts() -> None:
    g = chain(4)
    sub = g.subgraph("mid", [g.node("n1"), g.node("n2")], ["v3"])
    assert sub.inputs == ["v1"] and [n.name for n in sub] == ["n1", "n2"]
    verify(sub, "final")
    sub.node("n1").inputs[0] = "changed"
    assert g.node("n1").inputs == ["v1"]


def test_fresh_names_never_collide() -> None:
    g = chain(2)
    names = [g.fresh("v1") for _ in range(3)]
    assert len(set(names)) == 3 and not set(names) & set(g.values)


def _broken(kind: str) -> Graph:
    g = chain(2)
    match kind:
        case "dangling output":
            g.outputs.append("nowhere")
        case "unknown input":
            g.node("n1").inputs[0] = "ghost"
        case "index":
            g.node("n1").inputs[0] = "v0"
        case "constant type":
            g.add_value("c", T, np.zeros((2, 3), np.float64))
        case "dead":
            g.add_value("unused", T)
    return g


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dangling output", "'nowhere' is not made"),
        ("unknown input", "'ghost', which is not a value"),
        ("index", "missing from the readers of 'v0'"),
        ("constant type", "constant 'c': data float64"),
        ("dead", "'unused' is dead"),
    ],
)
def test_verify_names_the_broken_invariant(kind: str, said: str) -> None:
    with pytest.raises(VerifyError, match=said):
        verify(_broken(kind), "final")


def test_verify_compares_declared_types_with_the_shape_rule() -> None:
    g = chain(1)
    with pytest.raises(VerifyError, match=r"'v1' is declared float32\[2,3\]"):
        verify(g, "final", lambda node, inputs: [TensorType(DType.FLOAT32, (9,))])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40), st.data())
def test_index_holds_under_random_rewrites(
    edges: list[tuple[int, int]], data: st.DataObject
) -> None:
    g = Graph()
    g.add_input("v0", T)
    for i in range(12):
        g.add_value(f"v{i + 1}", T)
        g.add_node(
            Node(
                f"n{i}",
                "Add",
                [f"v{i}", f"v{data.draw(st.integers(0, i))}"],
                [f"v{i + 1}"],
                NoAttrs(),
            )
        )
    g.outputs = ["v12"]
    for a, b in edges:
        action = data.draw(st.sampled_from(["set", "replace", "inputs"]))
        node = g.node(f"n{max(a, b)}")
        earlier = f"v{min(a, b)}"
        if action == "set":
            g.set_input(node, 0, earlier)
        elif action == "inputs":
            g.set_inputs(node, [earlier, earlier])
        else:
            g.replace_uses(f"v{max(a, b) + 1}", earlier)
        check_index(g)
    g.prune()
    check_index(g)
    g.sort()
    verify(g, "final")


@pytest.mark.parametrize(("bits", "lo", "hi"), [(8, -128, 127), (16, -32768, 32767)])
def test_quant_params_bounds(bits: int, lo: int, hi: int) -> None:
    q = QuantParams((0.5,), bits=bits)
    assert (q.qmin, q.qmax) == (lo, hi) and q.dtype.numpy.itemsize * 8 == bits


def test_per_channel_scales_broadcast_along_their_axis() -> None:
    q = QuantParams((0.5, 2.0), axis=1)
    assert q.scale_array(4).shape == (1, 2, 1, 1)
    with pytest.raises(ValueError, match="per channel"):
        _ = q.scale


def test_a_long_chain_is_linear_enough() -> None:
    g = chain(10_000)
    g.sort()
    verify(g, "final")
    assert g.prune() == 0 and len(g) == 10_000
