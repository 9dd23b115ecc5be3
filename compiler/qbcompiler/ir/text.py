"""A text dump of a graph, stable enough to be a golden file in tests."""

from __future__ import annotations

from .graph import Graph

__all__ = ["dump"]


def dump(graph: Graph) -> str:
    """Return one line a node: ``%out: type = Op(%in, const) {attr=…}  # source``."""
    lines = [f"graph {graph.name}("]
    lines += [f"  %{n}: {graph.values[n].type}" for n in graph.inputs]
    lines.append(") {")
    for node in graph.nodes:
        outs = ", ".join(f"%{o}: {graph.values[o].type}" if o else "_" for o in node.outputs)
        ins = ", ".join(_ref(graph, n) for n in node.inputs)
        attrs = ", ".join(f"{k}={v}" for k, v in node.attrs.to_dict().items() if v is not None)
        lines.append(f"  {outs} = {node.op}({ins})" + (f" {{{attrs}}}" if attrs else ""))
    lines.append("  return " + ", ".join(f"%{n}" for n in graph.outputs))
    lines.append("}")
    return "\n".join(lines) + "\n"


def _ref(graph: Graph, name: str) -> str:
    if not name:
        return "_"
    value = graph.values[name]
    if value.data is None:
        return f"%{name}"
    if value.data.size <= 4 and value.data.dtype != object:
        return f"{value.type}{value.data.tolist()}"
    return f"@{name}:{value.type}"
