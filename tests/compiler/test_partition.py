"""The cut into head, body and tail: optimal, convex, and explained when it is refused."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbcompiler.errors import UnsupportedOperatorError
from qbcompiler.ir import DType, Graph, NoAttrs, Node, TensorType, verify
from qbcompiler.ops import OpSpec, QuantRule, Registry
from qbcompiler.partition import partition, support_table
from qbcompiler.partition.cut import levels

T = TensorType(DType.FLOAT32, (1, 4))


class Cheap(OpSpec[NoAttrs]):
    name = "Cheap"
    attrs_type = NoAttrs


class Heavy(OpSpec[NoAttrs]):
    name = "Heavy"
    attrs_type = NoAttrs

    def macs(self, node: Node, graph: Graph) -> int:
        return 1000


class Odd(OpSpec[NoAttrs]):
    name = "Odd"
    attrs_type = NoAttrs


class Mover(OpSpec[NoAttrs]):
    name = "Mover"
    attrs_type = NoAttrs
    rule = QuantRule.MOVE


REGISTRY = Registry([Cheap(), Heavy(), Odd(), Mover()])


@dataclass
class Rules:
    name: str = "test-npu"
    max_rank: int = 4
    unsupported_operators: dict[str, str] = field(default_factory=lambda: {"Odd": "it is odd"})


def build(*layers: tuple[str, str, list[str]], outputs: list[str]) -> Graph:
    """layers: (name, op, inputs); each layer makes the value of its own name; "x" is the input."""
    g = Graph("model")
    g.add_input("x", T)
    for name, op, inputs in layers:
        g.add_value(name, T)
        g.add_node(Node(name, op, inputs, [name], NoAttrs(), (f"src/{name}",)))
    g.outputs = outputs
    return g


def brute_force(
    order: list[str], edges: dict[str, list[str]], weight: dict[str, int], bad: frozenset[str]
) -> int:
    best = 0
    for combo in itertools.product((0, 1, 2), repeat=len(order)):
        level = dict(zip(order, combo, strict=True))
        if any(level[n] == 1 for n in bad):
            continue
        if any(level[u] > level[v] for u in order for v in edges[u]):
            continue
        best = max(best, sum(weight[n] for n in order if level[n] == 1))
    return best


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7), st.data())
def test_the_cut_is_optimal_and_convex(count: int, data: st.DataObject) -> None:
    order = [f"n{i}" for i in range(count)]
    edges = {
        u: [v for v in order[i + 1 :] if data.draw(st.booleans())] for i, u in enumerate(order)
    }
    weight = {n: data.draw(st.integers(1, 20)) for n in order}
    bad = frozenset(n for n in order if data.draw(st.integers(0, 2)) == 0)
    level = levels(order, edges, weight, bad)
    assert all(level[n] != 1 for n in bad)
    assert all(level[u] <= level[v] for u in order for v in edges[u])
    assert sum(weight[n] for n in order if level[n] == 1) == brute_force(order, edges, weight, bad)


def test_a_supported_model_is_all_body() -> None:
    g = build(("a", "Heavy", ["x"]), ("b", "Cheap", ["a"]), outputs=["b"])
    parts = partition(g, Rules(), registry=REGISTRY)
    assert parts.head is None and parts.tail is None and parts.body is not None
    assert [n.name for n in parts.body] == ["a", "b"]
    assert {row.device for row in parts.support} == {"npu"}
    assert parts.unsupported == []


def test_head_body_and_tail_are_graphs_that_chain_by_name() -> None:
    g = build(
        ("pre", "Odd", ["x"]),
        ("c1", "Heavy", ["pre"]),
        ("c2", "Heavy", ["c1"]),
        ("decode", "Odd", ["c2"]),
        ("post", "Cheap", ["decode"]),
        outputs=["post", "c1"],
    )
    parts = partition(g, Rules(), cpu_offload=True, registry=REGISTRY)
    assert parts.head and parts.body and parts.tail
    assert (parts.head.inputs, parts.head.outputs) == (["x"], ["pre"])
    assert (parts.body.inputs, parts.body.outputs) == (["pre"], ["c1", "c2"])
    assert (parts.tail.inputs, parts.tail.outputs) == (["c2"], ["post"])
    for part in (parts.head, parts.body, parts.tail):
        verify(part, "final")
    places = {row.name: (row.place, row.device, row.reason) for row in parts.support}
    assert places["decode"] == ("tail", "cpu", "it is odd")
    assert places["post"] == ("tail", "cpu", None)


def test_the_body_is_where_the_arithmetic_is() -> None:
    g = build(
        ("s1", "Cheap", ["x"]),
        ("s2", "Cheap", ["s1"]),
        ("s3", "Cheap", ["s2"]),
        ("bad", "Odd", ["s3"]),
        ("h", "Heavy", ["bad"]),
        outputs=["h"],
    )
    place = {row.name: row.place for row in support_table(g, Rules(), registry=REGISTRY)}
    assert place == {"s1": "head", "s2": "head", "s3": "head", "bad": "head", "h": "body"}


def test_a_side_branch_does_not_split_the_body() -> None:
    """An unsupported branch beside the trunk: what joins it afterwards must be tail."""
    g = build(
        ("t1", "Heavy", ["x"]),
        ("side", "Odd", ["t1"]),
        ("t2", "Heavy", ["t1"]),
        ("join", "Cheap", ["t2", "side"]),
        outputs=["join"],
    )
    place = {row.name: row.place for row in support_table(g, Rules(), registry=REGISTRY)}
    assert place == {"t1": "body", "side": "tail", "t2": "body", "join": "tail"}


def places(g: Graph) -> dict[str, str]:
    return {row.name: row.place for row in support_table(g, Rules(), registry=REGISTRY)}


def test_postprocessing_goes_with_the_tail_that_it_feeds() -> None:
    g = build(
        ("a", "Heavy", ["x"]),
        ("act", "Cheap", ["a"]),
        ("cut", "Mover", ["act"]),
        ("scale", "Cheap", ["cut"]),
        ("other", "Cheap", ["cut"]),
        ("nms", "Odd", ["scale"]),
        outputs=["nms", "other"],
    )
    assert places(g) == {
        "a": "body",
        "act": "body",
        "cut": "tail",
        "scale": "tail",
        "other": "tail",
        "nms": "tail",
    }
    parts = partition(g, Rules(), cpu_offload=True, registry=REGISTRY)
    assert parts.body is not None and parts.body.outputs == ["act"]
    assert parts.tail is not None and parts.tail.inputs == ["act"]


def test_layers_before_more_arithmetic_are_no_postprocessing() -> None:
    g = build(
        ("a", "Heavy", ["x"]),
        ("cut", "Mover", ["a"]),
        ("b", "Heavy", ["cut"]),
        ("odd", "Odd", ["b"]),
        outputs=["odd"],
    )
    assert places(g) == {"a": "body", "cut": "body", "b": "body", "odd": "tail"}


def test_what_no_tail_follows_stays_in_the_body() -> None:
    g = build(
        ("a", "Heavy", ["x"]),
        ("cut", "Mover", ["a"]),
        ("end", "Cheap", ["cut"]),
        ("odd", "Odd", ["a"]),
        outputs=["end", "odd"],
    )
    assert places(g) == {"a": "body", "cut": "body", "end": "body", "odd": "tail"}


def test_a_body_without_arithmetic_stays() -> None:
    g = build(("cut", "Mover", ["x"]), ("odd", "Odd", ["cut"]), outputs=["odd"])
    assert places(g) == {"cut": "body", "odd": "tail"}


def test_without_offloading_the_error_lists_every_layer() -> None:
    g = build(
        ("pre", "Odd", ["x"]), ("c", "Heavy", ["pre"]), ("post", "Odd", ["c"]), outputs=["post"]
    )
    with pytest.raises(UnsupportedOperatorError) as caught:
        partition(g, Rules(), registry=REGISTRY)
    assert caught.value.message == (
        "test-npu does not support 2 layers: pre (Odd, head): it is odd;"
        " post (Odd, tail): it is odd"
    )
    assert caught.value.hint is not None and "--cpu-offload" in caught.value.hint
    assert [r["name"] for r in caught.value.details["layers"]] == ["pre", "post"]
    assert caught.value.details["layers"][0]["source"] == ["src/pre"]


def test_a_model_with_no_body_is_refused_even_with_offloading() -> None:
    g = build(("a", "Odd", ["x"]), outputs=["a"])
    with pytest.raises(UnsupportedOperatorError, match="no layer of the model can run"):
        partition(g, Rules(), cpu_offload=True, registry=REGISTRY)


def test_without_a_device_nothing_is_refused() -> None:
    g = build(("a", "Mystery", ["x"]), ("b", "Heavy", ["a"]), outputs=["b"])
    parts = partition(g, None, registry=REGISTRY, refused={"a": "Mystery is a custom operator"})
    assert [row.reason for row in parts.support] == ["Mystery is a custom operator", None]
    assert parts.device is None


def test_rank_beyond_the_device_is_a_reason() -> None:
    g = build(("a", "Cheap", ["x"]), outputs=["a"])
    row = support_table(g, Rules(max_rank=1), registry=REGISTRY)[0]
    assert row.reason == "tensor 'x' has rank 2; test-npu takes up to 1"


def test_three_thousand_layers_with_several_unsupported_ones() -> None:
    layers = [("n0", "Heavy", ["x"])]
    for i in range(1, 3000):
        layers.append((f"n{i}", "Odd" if i % 300 == 0 else "Heavy", [f"n{i - 1}"]))
    table = support_table(build(*layers, outputs=["n2999"]), Rules(), registry=REGISTRY)
    body = [row.name for row in table if row.place == "body"]
    assert len(body) in (299, 300)
