"""A look at calibration data without a model: what an upload is checked with."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CalibrationDataError
from ..ir import Array
from .digest import combine, sample_digest
from .readers import ReadContext, reader_for
from .sources import SampleRef, find_samples
from .spec import Limits, data_error

__all__ = ["FILES_TAG", "FolderSummary", "Problem", "inspect_folder"]

FILES_TAG = b"qbcompiler calibration files 1\n"
"""Domain tag of digests over samples as they are stored, before any model is known."""

_MAX_SHAPES = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a sample cannot be used: the error's message, details and hint."""

    sample: str | None
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    hint: str | None = None

    @classmethod
    def of(cls, error: CalibrationDataError) -> Problem:
        """Build from the error that reading raised."""
        sample = error.details.get("sample")
        return cls(sample, error.message, dict(error.details), error.hint)


@dataclass(slots=True)
class FolderSummary:
    """What a set of samples holds.

    Attributes:
        samples: how many.
        digest: content digest over the samples as stored (dtype, shape and values of each tensor,
            pictures as decoded pixels), None where a sample cannot be read. It differs from the
            digest of a build, which covers the tensors that feed the model.
        nbytes: bytes of all tensors.
        tensors: by tensor name (``""`` for files without names): how many samples have it, its
            shapes and dtypes with counts, the most frequent first.
        problems: samples that cannot be used.
        more_problems: problems beyond those listed.
        warnings: doubts.
    """

    samples: int = 0
    digest: str | None = None
    nbytes: int = 0
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    more_problems: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every sample can be read."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "samples": self.samples,
            "digest": self.digest,
            "bytes": self.nbytes,
            "tensors": self.tensors,
            "problems": [
                {"sample": p.sample, "message": p.message, "details": p.details, "hint": p.hint}
                for p in self.problems
            ],
            "more_problems": self.more_problems,
            "warnings": self.warnings,
        }


def inspect_folder(
    path: str | os.PathLike[str],
    limits: Limits | None = None,
    *,
    max_problems: int = 100,
    progress: Callable[[int, int], None] | None = None,
) -> FolderSummary:
    """Read every sample of a folder or list once and report; one sample is in memory at a time.

    Args:
        path: a folder, list or sample file.
        limits: bounds; ``Limits(confined=True)`` for data of others.
        max_problems: how many problems are listed.
        progress: called with samples done and in all.

    Returns:
        The summary; what is wrong is in ``problems``, not raised.
    """
    limits = limits or Limits(confined=True)
    summary = FolderSummary()
    try:
        found = find_samples(path, None, limits)
    except CalibrationDataError as exc:
        summary.problems.append(Problem.of(exc))
        return summary
    summary.samples = len(found.samples)
    summary.warnings += found.notes
    digests: list[bytes] = []
    shapes: dict[str, Counter[tuple[int, ...]]] = {}
    dtypes: dict[str, Counter[str]] = {}
    for number, ref in enumerate(found.samples, 1):
        try:
            tensors = _read(ref, limits)
        except CalibrationDataError as exc:
            if len(summary.problems) < max_problems:
                summary.problems.append(Problem.of(exc))
            else:
                summary.more_problems += 1
            tensors = {}
        else:
            digests.append(sample_digest(tensors))
        for name, array in tensors.items():
            shapes.setdefault(name, Counter())[array.shape] += 1
            dtypes.setdefault(name, Counter())[array.dtype.name] += 1
            summary.nbytes += array.nbytes
        if progress is not None:
            progress(number, summary.samples)
    if summary.ok:
        summary.digest = combine(digests, FILES_TAG)
    for name in sorted(shapes):
        summary.tensors[name] = {
            "samples": sum(shapes[name].values()),
            "shapes": [
                {"shape": list(s), "samples": n} for s, n in _ranked(shapes[name])[:_MAX_SHAPES]
            ],
            "more_shapes": max(0, len(shapes[name]) - _MAX_SHAPES),
            "dtypes": [{"dtype": d, "samples": n} for d, n in _ranked(dtypes[name])],
        }
        if len(dtypes[name]) > 1:
            label = f"tensor {name!r}" if name else "the samples"
            summary.warnings.append(
                f"{label} has several element types: {', '.join(sorted(dtypes[name]))}"
            )
    return summary


def _ranked(counter: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _read(ref: SampleRef, limits: Limits) -> dict[str, Array]:
    context = ReadContext(ref.name, limits)
    files: dict[str, Path] = dict(ref.parts) if ref.file is None else {"": ref.file}
    tensors: dict[str, Array] = {}
    for name, path in files.items():
        reader = reader_for(path)
        if reader is None:
            raise data_error("the file is of unknown type", sample=ref.name, got=path.suffix)
        for key, array in reader.read(path, context).tensors.items():
            label = name or key or ""
            if array.size == 0:
                raise data_error(
                    f"tensor {label!r} is empty" if label else "the array is empty",
                    sample=ref.name,
                    expected="at least one value",
                    got=list(array.shape),
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
                raise data_error(
                    f"{f'tensor {label!r}' if label else 'the array'} has a value that is not "
                    f"finite, {array[tuple(index)]} at index {index}",
                    sample=ref.name,
                    expected="finite values",
                    got=str(array[tuple(index)]),
                    hint="look at how the sample was made; remove it or replace the values",
                )
            tensors[label] = array
    return tensors
