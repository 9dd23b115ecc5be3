"""What a report says of bits, coverage, histograms and next steps follows from its numbers."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.config import CompileConfig
from qbcompiler.quantization import quantize, validate
from qbcompiler.report import build_report, histograms, report_html
from qbcompiler.report.advice import advice

from .quant_nets import config, observe, residual_net, samples
from .test_package_files import RECORD


def report(settings: Any, **changes: Any) -> dict[str, Any]:
    graph = residual_net()
    data = samples(graph)
    statistics = observe(graph, data)
    statistics.ranges_for = lambda bits: statistics.ranges
    resolved = CompileConfig.from_data(settings)
    int_graph = quantize(graph, statistics, resolved)
    accuracy = validate(graph, int_graph, data)
    return build_report(
        device="toy",
        schemes=("single",),
        preset=None,
        int_graph=int_graph,
        ranges=statistics.ranges,
        calibration=RECORD,
        accuracy=accuracy,
        config=resolved.resolved(portable=True),
        shapes=histograms(graph, int_graph, accuracy, data[0]),
        **changes,
    )


def test_bits_and_whose_wish_they_were() -> None:
    overrides = {"activation16Bits": ["c?"], "weight4Bits": ["src/c2"], "weight16Bits": ["scores"]}
    auto = {
        "sensitivity": [{"kind": "weight", "name": "scores", "bits": 16, "sqnr_db": 1.0}],
        "sqnr_db": {"before": 1.0, "after": 50.0},
        "share": 0.1,
    }
    found = {
        x["name"]: x["bits"]
        for x in report({"bit": {"layerOverrides": overrides}}, auto_bits=auto)["layers"]
    }
    assert found["c2"]["activation"] == 16 and found["c2"]["weight"] == 4
    assert "activation16Bits: c?" in found["c2"]["why"]
    assert "weight4Bits: src/c2" in found["c2"]["why"]
    assert found["scores"] == {
        "activation": 8,
        "weight": 16,
        "why": "bit.auto raised the weights",
    }
    assert found["r1"]["activation"] == 16 and "shares its grid" in found["r1"]["why"]
    assert found["add"]["why"] == "8 is the default" and found["add"]["weight"] is None


def test_histograms_count_every_element_once() -> None:
    rows = report({})["histograms"]
    layers = {"c1": 8 * 256, "c2": 8 * 256, "c3": 12 * 64, "scores": 10}
    seen = {row["name"]: row for row in rows}
    assert set(layers) <= set(seen)
    for name, count in layers.items():
        assert sum(seen[name]["activation"]["counts"]) == count
        low, high = seen[name]["activation"]["grid"]
        assert low < 0 < high
    assert sum(seen["c1"]["weight"]["counts"]) == 8 * 27
    assert seen["add"]["weight"] is None


def test_coverage_counts_what_the_grids_hold() -> None:
    coverage = report({})["coverage"]
    assert coverage["measured"] == 9 - 1  # every layer; the input is none
    assert 0.3 < coverage["median_used"] <= 1.0
    assert set(coverage["inputs"]) == {"image"}


def ready(**changes: Any) -> dict[str, Any]:
    """A report with poor outputs, and nothing switched on."""
    found = report({})
    found["accuracy"]["outputs"][0]["sqnr_db"] = 12.0
    for key, value in changes.items():
        found[key] = value
    return found


def tried(found: dict[str, Any]) -> str:
    return " | ".join(row["try"] for row in advice(found))


def test_poor_outputs_get_suggestions_from_the_numbers() -> None:
    text = tried(ready())
    for part in ("method 2", "hessianQuant", "layerBiasCorrection", "bit.auto"):
        assert part in text
    assert "more calibration samples" in text  # the record says 4
    settings = CompileConfig.from_data(
        {
            "calibration": {"method": 2},
            "hessianQuant": {"apply": True},
            "layerBiasCorrection": {"apply": True},
        }
    ).resolved()
    text = tried(ready(config=settings))
    for part in ("method", "hessianQuant", "layerBiasCorrection"):
        assert part not in text
    auto = {"sqnr_db": {"before": 9.0, "after": 12.0}, "share": 0.15, "sensitivity": []}
    assert "a larger bit.auto.budget" in tried(ready(auto_bits=auto))


def test_the_worst_layers_are_named() -> None:
    found = ready()
    for layer in found["layers"]:
        layer["own_sqnr_db"] = 40.0
    found["layers"][3]["own_sqnr_db"] = 8.0
    assert f"activation16Bits: {found['layers'][3]['name']}" in tried(found)
    found["layers"][3]["clips"] = True
    (row,) = [r for r in advice(found) if "reach the limits" in r["because"]]
    assert found["layers"][3]["name"] in row["because"]


def test_good_outputs_get_none() -> None:
    found = ready()
    found["accuracy"]["outputs"][0]["sqnr_db"] = 40.0
    found["calibration"]["samples"] = 64
    assert advice(found) == []
    found["calibration"]["random"] = True
    assert "real samples" in tried(found)


class Page(HTMLParser):
    """Collects headings and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.ids.update(v for k, v in given.items() if k == "id")
        if tag == "a":
            self.links.add(given["href"].removeprefix("#"))
        if tag not in ("meta",):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_the_page_of_a_build_has_every_part(digits_cnn: Path, digits: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i, image in enumerate(digits.train_images[:8]):
        np.save(data / f"{i}.npy", image[None])
    settings = {
        "calibration": {"method": 2},
        "hessianQuant": {"apply": True},
        "bit": {"auto": {"apply": True, "targetSqnr": 38.0}},
    }
    for name in ("r.json", "r.html"):
        mxq_compile(
            digits_cnn,
            calib_data_path=data,
            target_device="aries-rb",
            save_path=tmp_path / "m.mxq",
            compile_config=settings,
            report_path=tmp_path / name,
        )
    found = json.loads((tmp_path / "r.json").read_text())
    assert len(found["histograms"]) == 10
    assert found["advice"] and found["coverage"]["measured"] > 10
    text = (tmp_path / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.stack
    assert (
        page.links
        == page.ids
        >= {
            "accuracy",
            "what-to-try-next",
            "error-along-the-graph",
            "what-the-worst-layers-hold",
            "layers-chosen-for-16-bits",
            "weights-improved",
            "calibration",
            "estimate",
            "layers",
        }
    )
    assert "http" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize("missing", ["accuracy", "estimate"])
def test_a_report_without_some_parts_is_a_page_too(missing: str) -> None:
    graph = residual_net()
    data = samples(graph)
    statistics = observe(graph, data)
    found = build_report(
        device="toy",
        schemes=("single",),
        preset=None,
        int_graph=quantize(graph, statistics, config()),
        ranges=statistics.ranges,
        calibration=RECORD,
        accuracy=None,
        config={},
    )
    assert found[missing] is None and found["histograms"] == []
    page = Page()
    page.feed(report_html(found))
    assert not page.stack
