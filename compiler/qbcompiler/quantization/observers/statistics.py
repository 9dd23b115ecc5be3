"""What calibration found out, and the ranges that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ...errors import QuantizationError
from .clips import Grid, Observed, Range, clip_for
from .extremes import RANGE, Extremes
from .histogram import HISTOGRAM
from .settings import CalibrationSettings
from .spans import LogHistogram

__all__ = ["Statistics", "TensorStatistics"]

_VERSION = 1


@dataclass(frozen=True)
class TensorStatistics:
    """What was observed of one tensor over all samples.

    Attributes:
        name: the value's name.
        extremes: smallest and largest value.
        histogram: counts, where a mode needs them.
        mode: calibration mode of the layer that makes it.
        symmetric: whether its grid has no zero point.
        layer: name of that layer, None for model inputs.
        bad_sample: the first sample in which a value was infinite or NaN, else None.
    """

    name: str
    extremes: Extremes
    histogram: LogHistogram | None = None
    mode: int = 0
    symmetric: bool = True
    layer: str | None = None
    bad_sample: str | None = None


class Statistics:
    """Statistics of a graph's activations.

    Args:
        settings: how ranges are chosen.
        tensors: by value name, in graph order.
        samples: how many samples were seen.
        digest: the data set's content digest.
    """

    def __init__(
        self,
        settings: CalibrationSettings,
        tensors: Mapping[str, TensorStatistics],
        *,
        samples: int,
        digest: str,
    ) -> None:
        self.settings = settings
        self.tensors = dict(tensors)
        self.samples = samples
        self.digest = digest
        self._chosen: dict[tuple[str, int, bool, int], Range] = {}

    @property
    def ranges(self) -> Mapping[str, Range]:
        """``(low, high)`` of each observed value for 8 bits, chosen when asked for."""
        return self.ranges_for(8)

    def ranges_for(self, bits: int) -> Mapping[str, Range]:
        """Return ``(low, high)`` of each observed value for grids of ``bits``, chosen on demand."""
        return _Ranges(self, bits)

    def range(
        self,
        name: str,
        *,
        bits: int = 8,
        symmetric: bool | None = None,
        mode: int | None = None,
    ) -> Range:
        """Return the range of a value.

        Args:
            name: an observed value.
            bits: bits of its grid.
            symmetric: whether the grid has no zero point; None for what the settings say.
            mode: calibration mode; None for what the settings say.

        Returns:
            ``(low, high)`` in float64: ``(-c, c)`` for a symmetric grid, else a range that
            contains zero. ``(0, 0)`` where every value was zero.

        Raises:
            KeyError: the value was not observed.
            QuantizationError: a value was infinite or NaN.
        """
        tensor = self.tensors[name]
        if tensor.bad_sample is not None or not tensor.extremes.finite:
            raise _not_finite(tensor)
        grid = Grid(bits, tensor.symmetric if symmetric is None else symmetric)
        used = tensor.mode if mode is None else mode
        key = (name, grid.bits, grid.symmetric, used)
        if key not in self._chosen:
            rule = clip_for(used, self.settings)
            observed = Observed(tensor.extremes, tensor.histogram)
            self._chosen[key] = rule(observed, grid, self.settings)
        return self._chosen[key]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and int64 arrays, for a cache."""
        return {
            "version": _VERSION,
            "settings": self.settings.to_dict(),
            "samples": self.samples,
            "digest": self.digest,
            "tensors": {
                name: {
                    "range": RANGE.to_plain(t.extremes),
                    "histogram": None if t.histogram is None else HISTOGRAM.to_plain(t.histogram),
                    "mode": t.mode,
                    "symmetric": t.symmetric,
                    "layer": t.layer,
                    "bad_sample": t.bad_sample,
                }
                for name, t in self.tensors.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from :meth:`to_dict`.

        Raises:
            ValueError: the data is of another version, or not statistics.
        """
        try:
            if data["version"] != _VERSION:
                raise ValueError(f"statistics of version {data['version']!r}, not {_VERSION}")
            tensors = {
                str(name): TensorStatistics(
                    name=str(name),
                    extremes=RANGE.from_plain(item["range"]),
                    histogram=None
                    if item["histogram"] is None
                    else HISTOGRAM.from_plain(item["histogram"]),
                    mode=int(item["mode"]),
                    symmetric=bool(item["symmetric"]),
                    layer=item["layer"],
                    bad_sample=item["bad_sample"],
                )
                for name, item in data["tensors"].items()
            }
            return cls(
                CalibrationSettings(**data["settings"]),
                tensors,
                samples=int(data["samples"]),
                digest=str(data["digest"]),
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"not statistics: {type(exc).__name__} {exc}") from exc


def _not_finite(tensor: TensorStatistics) -> QuantizationError:
    where = f"layer {tensor.layer!r}" if tensor.layer else "the model's input"
    sample = f" on calibration sample {tensor.bad_sample!r}" if tensor.bad_sample else ""
    return QuantizationError(
        f"{where} gives values that are not finite{sample} (tensor {tensor.name!r})",
        details={
            "layer": tensor.layer,
            "value": tensor.name,
            "sample": tensor.bad_sample,
            "got": f"{tensor.extremes.low}..{tensor.extremes.high}",
        },
        hint="the model overflows on this data: check that the samples are preprocessed as the "
        "model expects, and that the float model itself works on them",
    )


class _Ranges(Mapping[str, Range]):
    """The ranges of all tensors as a mapping; each is chosen on first use."""

    def __init__(self, statistics: Statistics, bits: int) -> None:
        self._statistics = statistics
        self._bits = bits

    def __getitem__(self, name: str) -> Range:
        return self._statistics.range(name, bits=self._bits)

    def __iter__(self) -> Iterator[str]:
        return iter(self._statistics.tensors)

    def __len__(self) -> int:
        return len(self._statistics.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._statistics.tensors
