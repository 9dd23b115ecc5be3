"""What this version of the compiler acts on, and what it does about the rest.

``ACTED_ON`` and ``GAPS`` together cover every field; a test proves it. A field or value that
starts to work moves its line from ``GAPS`` to ``ACTED_ON``, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..errors import ConfigError
from .base import Section
from .compile_config import CompileConfig
from .load import pointer

__all__ = [
    "ACTED_ON",
    "GAPS",
    "Gap",
    "Remark",
    "check_effect",
    "remarks",
    "settings_without_effect",
]

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Gap:
    """A field, or some of its values, that this version does not act on.

    Attributes:
        where: JSON pointer; ``*`` stands for a list index or a key that is data. A pointer to a
            section covers what is below it.
        when: whether a value asks for what is missing; by default, every value but the default.
        severity: ``error`` where leaving it out would change numbers badly or give another kind
            of package; ``warning`` where the build is right, only without it.
        reason: what the compiler does in its place.
    """

    where: str
    severity: Severity
    reason: str
    when: Callable[[Any], bool] | None = None


class Remark(NamedTuple):
    """A setting of a configuration that has no effect."""

    pointer: str
    reason: str
    severity: Severity


def _true(value: Any) -> bool:
    return value is True


def _applied(value: Any) -> bool:
    return bool(value["apply"])


def _gpu(value: Any) -> bool:
    return bool(value == "gpu")


def _filled(value: Any) -> bool:
    return bool(value)


def _not_8(value: Any) -> bool:
    return bool(value != 8)


ACTED_ON: tuple[str, ...] = (
    "/modelPaths",
    "/calibDataPaths",
    "/savePaths",
    "/useRandomCalib",
    "/inferenceScheme",
    "/cpuOffload",
    "/inputShapeDict",
    "/device",
    "/debug",
    "/trace",
    "/imageChannels",
    "/configVersion",
    "/dtype",  # has one value
    "/preprocessing",
    "/calibration/method",
    "/calibration/output",
    "/calibration/mode",
    "/calibration/maxPercentile",
    "/calibration/histogram",
    "/calibration/layerOverrides",
    "/calibration/maxSampleSizeForQuantScheme",  # bit.auto compares schemes
    "/layerBiasCorrection",
    "/hessianQuant/apply",
    "/hessianQuant/attributes",
    "/searchWeightScale/apply",
    "/equivalentTransformation/crossLayerEqualization",
    "/equivalentTransformation/normConv/apply",
    "/equivalentTransformation/qk/apply",
    "/equivalentTransformation/ud/apply",
    "/equivalentTransformation/ud/smoothingFactor",
    "/equivalentTransformation/vo/apply",
    "/equivalentTransformation/spinR2/apply",
    "/equivalentTransformation/qkRotation/apply",
    "/bit/layerOverrides/activation16Bits",
    "/bit/layerOverrides/weight16Bits",
    "/bit/layerOverrides/weight8Bits",
    "/bit/layerOverrides/weight4Bits",
    "/bit/auto",
    "/bit/innerActivations",
    "/bit/elementwiseActivations",
    "/bit/transformer/activation",
    "/bit/transformer/weight",
)
"""Fields that have their effect, apart from the values that ``GAPS`` names."""

_NO_ROUTER = "mixtures of experts are not available yet, and no layer is a router"
_NO_TRANSFORM = "this transform is not available yet; the model is quantized without it"
_NO_LLM = "language models with a cache are not available yet"

GAPS: tuple[Gap, ...] = (
    Gap(
        "/calibration/output",
        "warning",
        "there are no sigmoid-shaped scales; outputs have one scale each, as with output 0",
        lambda value: value == 2,
    ),
    Gap(
        "/calibration/layerOverrides/output/*",
        "warning",
        "there are no sigmoid-shaped scales; outputs have one scale each, as with output 0",
        lambda value: value == 2,
    ),
    Gap("/calibration/groupLut", "warning", "each look-up table has its own exact entries"),
    Gap("/calibration/optimizeLut", "warning", "each look-up table has its own exact entries"),
    Gap("/bit/transformer/activation/router", "warning", _NO_ROUTER, _not_8),
    Gap("/bit/transformer/weight/router", "warning", _NO_ROUTER, _not_8),
    Gap(
        "/bit/transformer/mixedPrecision",
        "error",
        "bits are not chosen by part; bit.auto chooses them by layer",
        lambda value: value["activation"]["apply"],
    ),
    Gap(
        "/preprocessing/pipeline/*/fuseIntoFirstLayer",
        "warning",
        "the first layer does not normalize yet: the package takes normalized float input, so "
        "apply the whole pipeline before inference",
        _true,
    ),
    Gap(
        "/preprocessing/inputConfigs/*/pipeline/*/fuseIntoFirstLayer",
        "warning",
        "the first layer does not normalize yet: the package takes normalized float input, so "
        "apply the whole pipeline before inference",
        _true,
    ),
    Gap(
        "/uint8Input",
        "warning",
        "uint8 inputs are not available yet: the package takes the model's own input type",
        _applied,
    ),
    Gap("/hessianQuant/hessianDtype", "warning", "the sums are kept exactly"),
    Gap("/hessianQuant/accumulationDevice", "warning", "only the CPU compiles", _gpu),
    Gap("/searchWeightScale/transformer", "warning", "every layer with weights is searched"),
    Gap(
        "/mod", "warning", "training is not available; the model is quantized without it", _applied
    ),
    Gap(
        "/loadScale",
        "error",
        "scales cannot be loaded yet; they would silently be calibrated in their place",
        _applied,
    ),
    Gap("/saveSample", "warning", "samples are not saved yet", _applied),
    Gap("/equivalentTransformation/normConv/learn", "warning", "the factors are observed", _true),
    Gap("/equivalentTransformation/ud/learn", "warning", "the factors are observed", _true),
    Gap(
        "/equivalentTransformation/spinR2/learn",
        "warning",
        "the rotation is a fixed Hadamard matrix",
        _true,
    ),
    *(
        Gap(f"/equivalentTransformation/{name}", "warning", _NO_TRANSFORM, _applied)
        for name in (
            "spinR1",
            "optimizeFfn",
            "feedForwardMultiLut",
            "flattenQuant",
        )
    ),
    Gap(
        "/equivalentTransformation/headOutChRotation",
        "error",
        "output channels cannot be rotated yet; the package would not fit the model it is for",
        _applied,
    ),
    Gap("/llm", "error", _NO_LLM, _applied),
    Gap("/moe", "error", "mixtures of experts are not available yet", _applied),
    Gap("/splitBlocks", "error", _NO_LLM, _filled),
    Gap("/splitParts", "error", _NO_LLM),
    Gap("/forceNpuInputReposition", "warning", "the host rearranges inputs"),
    Gap("/forceNpuOutputReposition", "warning", "the host rearranges outputs"),
    Gap("/bufferMode", "warning", "there is one buffer layout"),
    Gap("/resourceManagement/weightDtype", "warning", "float weights stay in the model's type"),
    Gap("/resourceManagement/useGPUOnlyForCalibration", "warning", "only the CPU compiles"),
    Gap("/resourceManagement/weightMemory", "warning", "float weights stay memory-mapped"),
    Gap("/runtimeOptions", "warning", "the package records the compiler's own version"),
)
"""What this version does not act on."""


def remarks(config: CompileConfig) -> list[Remark]:
    """Return every setting of ``config`` that has no effect, in the order of the fields.

    A section that is switched off although something in it was set is remarked upon too.
    """
    data = config.resolved()
    default = _DEFAULT
    found = [
        Remark(where, gap.reason, gap.severity)
        for gap in GAPS
        for where, value, normal in _matches(data, default, gap.where.split("/")[1:], ())
        if (gap.when(value) if gap.when else value != normal)
    ]
    seen = {r.pointer for r in found}
    found += [r for r in _switched_off(config, ()) if r.pointer not in seen]
    order = {name: i for i, name in enumerate(data)}
    return sorted(found, key=lambda r: order[r.pointer.split("/")[1]])


def settings_without_effect(config: CompileConfig) -> list[tuple[str, str]]:
    """Return (JSON pointer, reason) of each setting that is accepted but not acted on."""
    return [(r.pointer, r.reason) for r in remarks(config)]


def check_effect(config: CompileConfig) -> list[Remark]:
    """Refuse what cannot be left out; return the rest, to be logged and reported as warnings.

    Raises:
        ConfigError: the configuration asks for something whose lack would make the build wrong.
    """
    every = remarks(config)
    errors = [r for r in every if r.severity == "error"]
    if errors:
        text = "; ".join(f"{r.pointer}: {r.reason}" for r in errors[:4])
        more = f"; and {len(errors) - 4} more" if len(errors) > 4 else ""
        raise ConfigError(
            f"this version of the compiler cannot honour {text}{more}",
            details={
                "pointer": errors[0].pointer,
                "errors": [{"pointer": r.pointer, "message": r.reason} for r in errors],
            },
            hint="remove the setting, or choose another preset; `qbcompiler presets` lists them",
        )
    return every


def _matches(
    value: Any, normal: Any, path: list[str], here: tuple[str, ...]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (pointer, value, default) of what a gap's pointer names."""
    if not path:
        yield pointer(here), value, normal
        return
    head, rest = path[0], path[1:]
    if head != "*":
        if isinstance(value, Mapping) and head in value:
            below = normal.get(head) if isinstance(normal, Mapping) else None
            yield from _matches(value[head], below, rest, (*here, head))
        return
    items: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, Mapping):
        items = ((k, v) for k, v in value.items())
    elif isinstance(value, list):
        items = ((str(i), v) for i, v in enumerate(value))
    for key, item in items:
        below = normal.get(key) if isinstance(normal, Mapping) else None
        yield from _matches(item, below, rest, (*here, key))


def _switched_off(section: Section, here: tuple[str, ...]) -> Iterator[Remark]:
    fields = type(section).model_fields
    if "apply" in fields and not getattr(section, "apply"):  # noqa: B009 - not every section has it
        alias = {name: f.alias or name for name, f in fields.items()}
        normal = type(section)()
        for name in fields:
            if name != "apply" and getattr(section, name) != getattr(normal, name):
                where = pointer((*here, alias[name]))
                yield Remark(where, f"{pointer(here)}/apply is false", "warning")
        return
    for name, field in fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _switched_off(value, (*here, field.alias or name))


_DEFAULT = CompileConfig().resolved()
