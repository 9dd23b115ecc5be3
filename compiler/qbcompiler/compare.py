"""Several settings on one model and one calibration set, side by side.

Each setting is built as :func:`~qbcompiler.mxq_compile` builds it, into a folder that is thrown
away. The model is parsed once, and the builds share what calibration observes: those that need most
of it come first, so that a set of settings costs one pass over the samples, and one more for those
that transform the model.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

from .api import BuildResult, mblt_compile, mxq_compile_from_mblt
from .config import ConfigSource, resolve_config
from .errors import ArgumentError, QbCompilerError
from .options import CompileOptions, StrPath
from .progress import Reporter

__all__ = ["Setting", "compare_settings", "settings_of"]

_GIVEN = ("save_path", "mblt_save_path", "config_preset", "compile_config", "target_device")
_PARSE = ("backend", "external_data_dir", "input_shape_dict", "image_channels", "cpu_offload")


@dataclass(frozen=True)
class Setting:
    """One row.

    Attributes:
        name: as the table has it.
        target_device: the device.
        config_preset, compile_config: as for :func:`~qbcompiler.mxq_compile`.
    """

    name: str
    target_device: str
    config_preset: str | None = None
    compile_config: ConfigSource | None = None


def settings_of(
    devices: Sequence[str], presets: Sequence[str] = (), files: Sequence[StrPath] = ()
) -> list[Setting]:
    """Return every preset and every file, each by itself, on every device.

    Args:
        devices: target devices.
        presets: names; ``default`` stands for no preset.
        files: configuration files.
    """
    choices: list[tuple[str, str | None, StrPath | None]] = [
        (name, None if name == "default" else name, None) for name in presets
    ]
    choices += [(Path(f).name, None, f) for f in files]
    return [
        Setting(name, device, preset, file)
        for device in devices
        for name, preset, file in choices or [("default", None, None)]
    ]


def compare_settings(
    model: Any, settings: Sequence[Setting], **options: Unpack[CompileOptions]
) -> list[dict[str, Any]]:
    """Build each setting and return what it is worth.

    Args:
        model: as for :func:`~qbcompiler.mxq_compile`, or the path of an MBLT.
        settings: what to compare.
        options: what all have in common: calibration data, offloading, threads, ``cache_dir``. With
            ``layer_bias_correction`` or a section object, all have that too.

    Returns:
        A map for each setting, in the order given: ``setting``, ``target_device``, ``sqnr_db`` and
        ``cosine`` of the worst output, ``top1_agreement`` (null where no output is class scores),
        ``size`` in bytes, ``latency_ms`` (an estimate, of the first scheme), ``wide_share`` (of
        multiply-adds with a factor of 16 bits), ``seconds``, ``observed`` (tensors that calibration
        had to look at; 0 where others had seen all), ``warnings``, and ``error`` (code, message)
        where the setting cannot be built: everything else is null then.

    Raises:
        ArgumentError: there is nothing to compare, or an option that each setting has of its own.
        QbCompilerError: the model cannot be parsed.
    """
    if not settings:
        raise ArgumentError("there is no setting to compare")
    for name in _GIVEN:
        if options.get(name) is not None:
            raise ArgumentError(f"{name} belongs to the settings that are compared")
    common = cast(dict[str, Any], {k: v for k, v in options.items() if v is not None})
    outer = common.pop("reporter", None) or Reporter()
    with tempfile.TemporaryDirectory(prefix="qbcompiler-") as temporary:
        folder = Path(temporary)
        is_mblt = isinstance(model, (str, os.PathLike)) and str(model).lower().endswith(".mblt")
        mblt = Path(model) if is_mblt else folder / "model.mblt"
        if not is_mblt:
            parsed = {k: v for k, v in common.items() if k in _PARSE}
            mblt_compile(model, mblt, reporter=_Inner(outer), **parsed)
        for name in ("backend", "external_data_dir"):
            common.pop(name, None)
        common.setdefault("cache_dir", folder / "cache")
        order = sorted(range(len(settings)), key=lambda i: (-_needs(settings[i]), i))
        rows: dict[int, dict[str, Any]] = {}
        for done, index in enumerate(order, 1):
            setting = settings[index]
            rows[index] = _row(setting, mblt, folder / f"{index}.mxq", outer, common)
            outer.info(
                f"{done} of {len(settings)}: {setting.name} on {setting.target_device}: "
                + (rows[index]["error"] or {"message": f"{rows[index]['sqnr_db']} dB"})["message"]
            )
    return [rows[i] for i in range(len(settings))]


class _Inner(Reporter):
    """A build's reporter that lets only its progress out."""

    def __init__(self, outer: Reporter) -> None:
        super().__init__()
        self._outer = outer

    def emit(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "progress":
            self._outer.emit(message)


def _needs(setting: Setting) -> int:
    """Return how much of the activations a setting looks at: extremes, or all of them."""
    try:
        config = resolve_config(
            compile_config=setting.compile_config, preset=setting.config_preset
        ).config
    except QbCompilerError:
        return 0  # its own build will say what is wrong
    overrides = config.calibration.layer_overrides.mode.values()
    return 2 * (config.calibration.mode > 0) + any(mode > 0 for mode in overrides)


def _row(
    setting: Setting, mblt: Path, output: Path, outer: Reporter, common: Mapping[str, Any]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "setting": setting.name,
        "target_device": setting.target_device,
        **dict.fromkeys(
            (
                "sqnr_db",
                "cosine",
                "top1_agreement",
                "size",
                "latency_ms",
                "wide_share",
                "seconds",
                "observed",
            )
        ),
        "warnings": [],
        "error": None,
    }
    start = time.perf_counter()
    try:
        result = mxq_compile_from_mblt(
            mblt,
            save_path=output,
            target_device=setting.target_device,
            config_preset=setting.config_preset,
            compile_config=setting.compile_config,
            reporter=_Inner(outer),
            **common,
        )
    except QbCompilerError as exc:
        row["error"] = {"code": exc.code, "message": exc.message}
        return row
    row["seconds"] = round(time.perf_counter() - start, 3)
    row.update(_figures(result))
    return row


def _figures(result: BuildResult) -> dict[str, Any]:
    from .package import read_mxq
    from .quantization import wide_share

    summary = result.summary
    outputs = summary["accuracy"]["outputs"]
    agreements = [o["top1_agreement"] for o in outputs if o["top1_agreement"] is not None]
    with read_mxq(result.path) as opened:
        macs = {layer["name"]: layer["macs"] for layer in opened.manifest["mblt"]["layers"]}
        share = wide_share(opened.body, macs)
        estimate = opened.manifest["estimate"]
    size = next(f["size"] for f in result.files if f["kind"] == "mxq")
    result.path.unlink()
    return {
        "sqnr_db": min(o["sqnr_db"] for o in outputs),
        "cosine": min(o["cosine"] for o in outputs),
        "top1_agreement": min(agreements, default=None),
        "size": size,
        "latency_ms": estimate["schemes"][0]["latency_ms"],
        "wide_share": round(share, 6),
        "observed": summary["reuse"]["statistics"]["observed"],
        "warnings": list(summary["warnings"]),
    }
