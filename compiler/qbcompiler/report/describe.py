"""What an MBLT or MXQ is, from its manifest alone: no weights are read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import FormatError
from ..package.formats import (
    MAX_DIMENSION,
    MAX_ITEMS,
    MAX_NAME,
    MAX_RANK,
    MBLT_FORMAT,
    MXQ_FORMAT,
)
from ..package.json_io import Fields
from ..package.reader import Container
from ..package.writer import MANIFEST
from .text import table, wrapped

__all__ = ["info", "info_text"]

_MAX_PORTS = 65_536
_MAX_COUNT = (1 << 63) - 1
_SHOWN = 6


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the file is, as JSON data.

    Keys: ``kind`` (mblt or mxq), ``format``, ``size`` in bytes, ``compiler``, ``source``,
    ``device``, ``inputs``, ``outputs``, ``subgraphs``, ``operators`` (layers by operator),
    ``totals``, ``layers`` (with place, reason, output shapes, parameters, multiply-adds and, in an
    MXQ, quantization), ``sections``; in an MXQ also ``schemes``, ``preset``, ``config``,
    ``calibration``, ``accuracy``, ``engine``.

    Raises:
        ArgumentError: the file cannot be opened.
        FormatError: it is neither, is damaged, or of a newer major version.
    """
    with Container(path, MBLT_FORMAT, MXQ_FORMAT) as container:
        kind = container.format.name
        fields = Fields(container.manifest, MANIFEST)
        mblt = fields if kind == MBLT_FORMAT.name else fields.nested("mblt")
        data: dict[str, Any] = {
            "kind": kind,
            "format": str(container.format),
            "size": container.size,
            "compiler": fields.mapping("compiler"),
            "source": mblt.mapping("source"),
            "parse_options": mblt.mapping("parse_options"),
            "device": mblt.optional_text("target_device"),
            "cpu_offload": mblt.boolean("cpu_offload"),
            "inputs": _ports(fields, "inputs"),
            "outputs": _ports(fields, "outputs"),
            "subgraphs": [s.plain for s in mblt.nested_list("subgraphs", 3)],
        }
        layers = _layers(mblt)
        if kind == MXQ_FORMAT.name:
            data["device"] = fields.text("device")
            data["schemes"] = fields.texts("schemes", 16)
            data["preset"] = fields.optional_text("preset")
            for key in ("engine", "calibration", "accuracy", "config"):
                data[key] = fields.mapping(key)
            quantized = {
                q.text("name", MAX_NAME): q for q in fields.nested_list("layers", MAX_ITEMS)
            }
            for layer in layers:
                found = quantized.get(layer["name"])
                layer["quantization"] = None if found is None else found.plain
        data["operators"] = dict(sorted(Counter(layer["op"] for layer in layers).items()))
        data["totals"] = _totals(layers)
        data["layers"] = layers
        data["sections"] = [r.as_dict() for r in container.sections.values()]
        return data


def _ports(fields: Fields, key: str) -> list[dict[str, Any]]:
    ports = []
    for item in fields.nested_list(key, _MAX_PORTS):
        ports.append(
            {
                "name": item.text("name", MAX_NAME),
                "shape": item.integers("shape", MAX_RANK, -1, MAX_DIMENSION),
                "dtype": item.text("dtype", 16),
                "layout": item.optional_text("layout", 16),
            }
        )
    return ports


def _shapes(item: Fields) -> list[list[int]]:
    shapes = item.array("shapes", _MAX_PORTS)
    for shape in shapes:
        if not (
            isinstance(shape, list)
            and len(shape) <= MAX_RANK
            and all(type(d) is int and -1 <= d <= MAX_DIMENSION for d in shape)
        ):
            item.fail("'shapes' must be lists of dimensions")
    return shapes


def _totals(layers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "layers": len(layers),
        "npu_layers": sum(layer["device"] == "npu" for layer in layers),
        "parameters": sum(layer["parameters"] for layer in layers),
        "macs": sum(layer["macs"] for layer in layers),
        "npu_macs": sum(layer["macs"] for layer in layers if layer["device"] == "npu"),
    }


def _layers(mblt: Fields) -> list[dict[str, Any]]:
    return [
        {
            "name": item.text("name", MAX_NAME),
            "op": item.text("op", MAX_NAME),
            "source": item.texts("source", _MAX_PORTS, MAX_NAME),
            "place": item.text("place", 16),
            "device": item.text("device", 16),
            "reason": item.optional_text("reason", 65_536),
            "shapes": _shapes(item),
            "parameters": item.integer("parameters", 0, _MAX_COUNT),
            "macs": item.integer("macs", 0, _MAX_COUNT),
        }
        for item in mblt.nested_list("layers", MAX_ITEMS)
    ]


def info_text(data: Mapping[str, Any], *, layers: bool = True, width: int = 80) -> str:
    """Return :func:`info`'s data as text for a terminal.

    Args:
        data: what :func:`info` returned.
        layers: list every layer, not only their number by operator.
        width: columns of the terminal; names are cut to fit.
    """
    facts = [
        ("file", f"{data['kind'].upper()}, format {data['format']}, {data['size']:,} bytes"),
        ("compiler", _compiler(data["compiler"])),
        ("source", _source(data["source"])),
        ("device", data["device"] or "none (parsed for any device)"),
    ]
    if data["kind"] == MXQ_FORMAT.name:
        facts += [
            ("schemes", ", ".join(data["schemes"])),
            ("preset", data["preset"] or "none"),
            ("calibration", _calibration(data["calibration"])),
        ]
        facts += [("accuracy", line) for line in _accuracy(data["accuracy"])]
    facts.append(("operators", ", ".join(f"{k} {v}" for k, v in data["operators"].items())))
    totals = data["totals"]
    facts.append(
        (
            "total",
            f"{totals['layers']:,} layers ({totals['npu_layers']:,} on the NPU), "
            f"{totals['parameters']:,} parameters, {totals['macs']:,} multiply-adds "
            f"({_share(totals['npu_macs'], totals['macs'])} on the NPU)",
        )
    )
    lead = max(len(k) for k, _ in facts) + 2
    lines: list[str] = []
    for key, value in facts:
        lines += wrapped(key.ljust(lead), value, width)
    for key in ("inputs", "outputs"):
        rows = [[p["name"], p["dtype"], _shape(p["shape"]), p["layout"] or ""] for p in data[key]]
        lines += ["", key, *table(["name", "type", "shape", "layout"], rows, width=width)]
    if layers:
        lines += ["", "layers", *_layer_table(data, width)]
        lines += _reasons(data["layers"], width)
    return "\n".join(lines) + "\n"


def _layer_table(data: Mapping[str, Any], width: int) -> list[str]:
    mxq = data["kind"] == MXQ_FORMAT.name
    head = ["layer", "operator", "runs on", "output", "params", "MACs"]
    head += ["scale"] if mxq else []
    rows = []
    for layer in data["layers"]:
        where = layer["device"].upper()
        row = [
            layer["name"],
            layer["op"],
            where if layer["place"] == "body" else f"{where} {layer['place']}",
            ", ".join(map(_shape, layer["shapes"])),
            _count(layer["parameters"]),
            _count(layer["macs"]),
        ]
        if mxq:
            row.append(_scale(layer["quantization"]))
        rows.append(row)
    return table(head, rows, width=width, right=(4, 5), shrink=(0, 3, 1))


def _reasons(layers: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Say once for each reason which layers the NPU does not support."""
    found: dict[str, list[str]] = {}
    for layer in layers:
        if layer["reason"]:
            found.setdefault(layer["reason"], []).append(layer["name"])
    lines: list[str] = ["", "not supported by the NPU"] if found else []
    for reason, names in found.items():
        shown = ", ".join(names[:_SHOWN])
        rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        lines += wrapped("  ", f"{shown}{rest}: {reason}", width)
    return lines


def _shape(shape: Sequence[int]) -> str:
    return "x".join("?" if d < 0 else str(d) for d in shape) or "scalar"


def _count(number: int) -> str:
    """Return a number in at most five characters: 0 as nothing, then K, M, G, T."""
    if number < 1000:
        return str(number) if number else ""
    value, units = number / 1000, list("KMGTPE")
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return (f"{value:.3g}" if value < 100 else f"{value:.0f}") + units[0]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.4g}%" if whole else "none"


def _scale(quantization: Any) -> str:
    if not isinstance(quantization, dict):
        return "float"
    outputs = quantization.get("outputs")
    scales = []
    for port in outputs if isinstance(outputs, list) else []:
        scale = port.get("scale") if isinstance(port, dict) else None
        scales.append(f"{scale:.6g}" if isinstance(scale, float) else "exact")
    return ", ".join(scales)


def _compiler(compiler: Mapping[str, Any]) -> str:
    revision = compiler.get("revision")
    text = f"{compiler.get('name')} {compiler.get('version')}"
    return f"{text} ({revision})" if revision else text


def _source(source: Mapping[str, Any]) -> str:
    opset = source.get("opset")
    parts = [f"SHA-256 {source.get('sha256')}"]
    if source.get("producer"):
        parts.append(f"by {source['producer']}")
    if isinstance(opset, dict) and opset:
        parts.append("opset " + ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in opset.items()))
    return ", ".join(parts)


def _calibration(calibration: Mapping[str, Any]) -> str:
    kind = "RANDOM samples, not for release" if calibration.get("random") else "samples"
    return f"{calibration.get('samples')} {kind}, digest {calibration.get('digest')}"


def _accuracy(accuracy: Mapping[str, Any]) -> Sequence[str]:
    outputs = accuracy.get("outputs")
    if not isinstance(outputs, list) or not outputs:
        return ["not measured"]
    lines = []
    for item in outputs:
        if not isinstance(item, dict):
            raise FormatError("manifest.json: accuracy must list objects")
        text = f"{item.get('name')}: SQNR {item.get('sqnr_db')} dB, cosine {item.get('cosine')}"
        if item.get("top1_agreement") is not None:
            text += f", top-1 agreement {item['top1_agreement']}"
        lines.append(text)
    return lines
