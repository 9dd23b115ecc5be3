"""What to try next, from a build's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["advice"]

_GOOD_DB = 30.0
_FINE_DB = 45.0
_FEW_SAMPLES = 16
_LOW_OWN_DB = 20.0
_UNUSED = 0.25
_NAMED = 4


def advice(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return suggestions, the most promising first: ``try`` and ``because``.

    Args:
        report: of :func:`~qbcompiler.report.build_report`, all but this part of it.
    """
    found: list[dict[str, str]] = []

    def suggest(what: str, why: str) -> None:
        found.append({"try": what, "because": why})

    calibration, config = report["calibration"], report["config"]
    if calibration["random"]:
        suggest("calibrate with real samples", "random numbers do not show the ranges of real data")
    elif calibration["samples"] < _FEW_SAMPLES:
        suggest(
            "give more calibration samples, some 32 to 256 as different as those in use",
            f"{calibration['samples']} samples may not show every range",
        )
    accuracy = report["accuracy"]
    if accuracy is None or not config.get("calibration"):
        return found
    worst = min((o["sqnr_db"] for o in accuracy["outputs"]), default=None)
    if worst is None:
        return found
    measured = [x for x in report["layers"] if x["own_sqnr_db"] is not None]
    if worst < _GOOD_DB:
        _for_more(report, measured, worst, suggest)
    elif worst > _FINE_DB and any(x["bits"]["activation"] == 16 for x in report["layers"]):
        suggest(
            "fewer layers at 16 bits: bit.auto with targetSqnr 35",
            f"the outputs are at {worst} dB already",
        )
    clipped = [x for x in measured if x["clips"]]
    if clipped:
        mode = config["calibration"]["mode"]
        suggest(
            "more, and more different, calibration samples"
            if mode == 0
            else "calibration.mode 0 (or layerOverrides.mode for these layers)",
            f"{_names(clipped)} reach the limits of their range",
        )
    return found


def _for_more(
    report: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], worst: float, suggest: Any
) -> None:
    config = report["config"]
    calibration = config["calibration"]
    if calibration["method"] in (0, 1):
        sided = [x for x in measured if _one_sided(x)]
        if len(sided) * 5 > len(measured):
            suggest(
                f"calibration.method {calibration['method'] + 2} (zero points)",
                f"{len(sided)} of {len(measured)} layers have outputs on one side of zero, and use"
                " half of their integers",
            )
    if not config["hessianQuant"]["apply"]:
        suggest(
            "hessianQuant and searchWeightScale (apply: true)",
            f"the outputs are at {worst} dB, and weights are rounded to the nearest",
        )
    if not config["layerBiasCorrection"]["apply"]:
        suggest(
            "layerBiasCorrection (apply: true)",
            "rounding shifts the means of channels, and what it shifts is not yet taken out",
        )
    bad = sorted(
        (x for x in measured if x["own_sqnr_db"] < _LOW_OWN_DB and x["bits"]["activation"] == 8),
        key=lambda x: (x["own_sqnr_db"], x["name"]),
    )
    spread = [x for x in bad if (x["used"] or 1.0) < _UNUSED]
    if spread and calibration["mode"] == 0:
        suggest(
            "calibration.mode 2 (histogram), for the model or by layerOverrides.mode",
            f"{_names(spread)} use less than a quarter of their grid: rare large values took the"
            " rest",
        )
    if bad:
        suggest(
            f"16 bits for single layers: bit.layerOverrides.activation16Bits: {_names(bad)}",
            f"each of them alone adds noise at {bad[0]['own_sqnr_db']} dB and more",
        )
    if report["auto_bits"] is None:
        suggest(
            "bit.auto: {apply: true, targetSqnr: 30, budget: 0.15}",
            "it measures which layers' rounding the outputs feel, and raises those alone",
        )
    elif report["auto_bits"]["sqnr_db"]["after"] < _GOOD_DB:
        suggest(
            "a larger bit.auto.budget",
            f"{report['auto_bits']['share']:.1%} of the multiply-adds at 16 bits gave"
            f" {report['auto_bits']['sqnr_db']['after']} dB",
        )


def _one_sided(layer: Mapping[str, Any]) -> bool:
    """Whether an output lies on one side of zero, but for a tenth of its reach."""
    low, high = layer["seen"] or (0.0, 0.0)
    return bool(low < high and (low >= -0.1 * high or high <= -0.1 * low))


def _names(layers: Sequence[Mapping[str, Any]]) -> str:
    shown = ", ".join(x["name"] for x in layers[:_NAMED])
    return shown if len(layers) <= _NAMED else f"{shown} and {len(layers) - _NAMED} more"
