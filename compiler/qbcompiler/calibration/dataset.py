"""Data sets: samples in the model's own shapes and types, one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import CalibrationDataError, CalibrationMissingError
from ..ir import Array, DType
from .digest import combine, sample_digest
from .doubts import Doubts
from .layouts import check_finite, fit_layout, to_dtype, to_hwc
from .preprocessing import Pipeline, Preprocessing
from .random_data import RandomSpec, random_sample
from .readers import ReadContext, reader_for
from .sources import SampleRef, find_samples
from .spec import InputSpec, Limits, data_error

__all__ = ["Dataset", "FileDataset", "Mapped", "RandomDataset", "Subset", "open_dataset"]

PathLike = str | os.PathLike[str]


@runtime_checkable
class Dataset(Protocol):
    """Samples that feed a model. Reading is safe from several threads."""

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The model inputs that each sample has a tensor for."""
        ...

    @property
    def sample_names(self) -> Sequence[str]:
        """Name of each sample, in order."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether the samples are made up, so that the build is not for release."""
        ...

    @property
    def warnings(self) -> list[str]:
        """Doubts found so far, one line each; complete once every sample has been read."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int) -> dict[str, Array]:
        """Read one sample: tensor by input name in the model's own shape and element type."""
        ...

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Read the samples in order; none is kept."""
        ...

    def digest(self) -> str:
        """Return the content digest (hexadecimal SHA-256); reads what has not been read yet."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return digest, sample count, inputs and whether random, as plain JSON."""
        ...


class _Base:
    """Order, digest and summary that all data sets share."""

    def __init__(self, inputs: Sequence[InputSpec], names: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self._names = tuple(names)
        self._digests: list[bytes | None] = [None] * len(self._names)
        self._doubts = Doubts()

    @property
    def inputs(self) -> Sequence[InputSpec]:
        return self._inputs

    @property
    def sample_names(self) -> Sequence[str]:
        return self._names

    @property
    def is_random(self) -> bool:
        return False

    @property
    def warnings(self) -> list[str]:
        return self._doubts.lines()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: int) -> dict[str, Array]:
        if not 0 <= index < len(self._names):
            raise IndexError(index)
        sample = self._read(index)
        found = sample_digest(sample)
        known = self._digests[index]
        if known is not None and known != found:
            raise data_error(
                "the sample has changed since it was first read",
                sample=self._names[index],
                expected=known.hex(),
                got=found.hex(),
                hint="do not write to the calibration data during a build",
            )
        self._digests[index] = found
        return sample

    def _read(self, index: int) -> dict[str, Array]:
        raise TypeError("a data set reads its samples")

    def digest(self) -> str:
        for index, known in enumerate(self._digests):
            if known is None:
                self[index]
        return combine(d for d in self._digests if d is not None)

    def summary(self) -> dict[str, Any]:
        return {
            "digest": self.digest(),
            "samples": len(self),
            "random": self.is_random,
            "inputs": [
                {"name": s.name, "dtype": s.dtype.value, "shape": list(s.shape)}
                for s in self._inputs
            ],
        }


class FileDataset(_Base):
    """Samples from files, read when asked for.

    Args:
        samples: where they are, in order.
        inputs: the model's inputs.
        preprocessing: what is done to raw images.
        limits: bounds.
        notes: doubts about the source.
    """

    def __init__(
        self,
        samples: Sequence[SampleRef],
        inputs: Sequence[InputSpec],
        preprocessing: Preprocessing,
        limits: Limits,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(inputs, [s.name for s in samples])
        self._samples = tuple(samples)
        self._preprocessing = preprocessing
        self._limits = limits
        for note in notes:
            self._doubts.note(note)

    def _read(self, index: int) -> dict[str, Array]:
        ref = self._samples[index]
        files = self._files(ref)
        sample: dict[str, Array] = {}
        for spec in self._inputs:
            array, is_image = files[spec.name]
            try:
                sample[spec.name] = self._prepare(array, is_image, spec, index, ref.name)
            except CalibrationDataError as exc:
                if "sample" in exc.details:
                    raise
                raise data_error(
                    f"input {spec.name!r}: {exc.message}",
                    sample=ref.name,
                    hint=exc.hint,
                    input=spec.name,
                    **exc.details,
                ) from exc
        return sample

    def _files(self, ref: SampleRef) -> dict[str, tuple[Array, bool]]:
        """Read a sample's files; return array and whether it is a picture, by input name."""
        wanted = {s.name: s for s in self._inputs}
        if ref.file is not None:
            only = self._inputs[0] if len(self._inputs) == 1 else None
            tensors, is_image = self._content(ref.file, ref.name, only)
            if only is not None and len(tensors) == 1:
                return {only.name: (next(iter(tensors.values())), is_image)}
            if set(tensors) == {None}:
                raise data_error(
                    f"the file holds one tensor, the model has {len(wanted)} inputs",
                    sample=ref.name,
                    expected=sorted(wanted),
                    got="one tensor without a name",
                    hint="make each sample a sub-folder with one file for each input name, an "
                    ".npz with those names, or a map in a .json list",
                )
            self._check_names(ref, {str(n) for n in tensors})
            return {n: (tensors[n], is_image) for n in wanted}
        self._check_names(ref, set(ref.parts))
        found: dict[str, tuple[Array, bool]] = {}
        for name, path in ref.parts.items():
            tensors, is_image = self._content(path, ref.name, wanted[name])
            if len(tensors) != 1:
                raise data_error(
                    f"the file of input {name!r} holds {len(tensors)} tensors",
                    sample=ref.name,
                    path=path.name,
                    expected="one tensor",
                    got=sorted(str(n) for n in tensors),
                )
            found[name] = (next(iter(tensors.values())), is_image)
        return found

    def _content(
        self, path: Path, sample: str, spec: InputSpec | None
    ) -> tuple[Mapping[str | None, Array], bool]:
        reader = reader_for(path)
        if reader is None:
            raise data_error(
                f"the file {path.name!r} is of unknown type", sample=sample, got=path.suffix
            )
        channels = None
        if spec is not None and self._preprocessing.of(spec.name).convert:
            channels = spec.image_channels
        content = reader.read(path, ReadContext(sample, self._limits, channels))
        return content.tensors, content.is_image

    def _check_names(self, ref: SampleRef, got: set[str]) -> None:
        wanted = {s.name for s in self._inputs}
        if got == wanted:
            return
        missing, extra = sorted(wanted - got), sorted(got - wanted)
        parts = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, extra))}, no input of the model"] if extra else []
        raise data_error(
            f"the sample {' and '.join(parts)}",
            sample=ref.name,
            expected=sorted(wanted),
            got=sorted(got),
            hint=f"the model's inputs are {', '.join(sorted(wanted))}",
        )

    def _prepare(
        self, array: Array, is_image: bool, spec: InputSpec, index: int, sample: str
    ) -> Array:
        """Preprocess, fit and convert one tensor of a sample."""
        check_finite(array, spec, sample)
        rule = self._preprocessing.of(spec.name)
        image = None
        if rule.pipeline is not None and (is_image or not _prepared(array, spec)):
            channels = spec.image_channels if rule.convert else None
            image = array if is_image else to_hwc(array, channels, convert=rule.convert)
        if image is not None and rule.pipeline is not None:
            if not is_image:
                _check_raw(image, rule.pipeline, spec, sample)
            array = rule.pipeline.apply(image)
        picture = image is not None or is_image
        if picture and spec.layout is not None and len(spec.shape) == 4:
            array = _picture(array, spec, sample)
        else:
            option = "preprocessing.autoConvertFormat=false"
            array = fit_layout(array, spec, sample, convert=rule.convert, option=option)
        result = to_dtype(array, spec, sample)
        self._look(array, result, spec, index, sample)
        return result

    def _look(self, array: Array, result: Array, spec: InputSpec, index: int, sample: str) -> None:
        """Note a tensor that looks like pixels which nobody has normalized."""
        if not spec.dtype.is_float or len(spec.shape) != 4 or result.size < 64:
            return
        raw = array.dtype == np.uint8
        if not raw:
            top = float(result.max())
            raw = 32 < top <= 255 and float(result.min()) >= 0 and bool((result % 1 == 0).all())
        if raw:
            self._doubts.add(
                f"input {spec.name!r} gets pixels of 0..255 that are not normalized; add a "
                "normalize step unless the model takes such values",
                index,
                sample,
            )


def _prepared(array: Array, spec: InputSpec) -> bool:
    """Whether an array is the model's input already: float, in its own shape and order."""
    if array.dtype.kind != "f":
        return False
    own = spec.shape[1:] if spec.shape[:1] == (1,) else spec.shape
    return array.shape in (spec.shape, own)


def _check_raw(image: Array, pipeline: Pipeline, spec: InputSpec, sample: str) -> None:
    """Refuse an array that was preprocessed before, which the pipeline would do again."""
    if image.dtype == np.uint8 or not image.size or not pipeline.normalizes:
        return
    low, high = float(image.min()), float(image.max())
    if low < 0:
        why = f"it has values down to {low:.4g}"
    elif pipeline.scales_from_255 and 0 < high <= 1:
        why = f"its values end at {high:.4g}, and the pipeline divides by 255"
    else:
        return
    raise data_error(
        f"input {spec.name!r} looks normalized already ({why}), and the preprocessing pipeline "
        "would normalize it again",
        sample=sample,
        input=spec.name,
        expected="a raw image of 0..255, or the model's own input shape",
        got=f"{image.dtype.name}{list(image.shape)} in {low:.4g}..{high:.4g}",
        candidates=["prepared", "raw image"],
        hint="set preprocessing.apply=false for samples that are prepared already",
    )


def _picture(array: Array, spec: InputSpec, sample: str) -> Array:
    """Return a picture [height, width, channels] in the input's layout; no guessing needed."""
    size = spec.image_size
    assert size is not None
    if spec.shape[0] != 1:
        raise data_error(
            f"input {spec.name!r} takes a batch of {spec.shape[0]}, an image is one",
            sample=sample,
            input=spec.name,
            expected=list(spec.shape),
            got=list(array.shape),
            hint=f"bind the batch to 1, or give .npy samples of shape {list(spec.shape)}",
        )
    channels = spec.shape[1] if spec.layout == "NCHW" else spec.shape[3]
    if array.shape != (*size, channels):
        height, width = array.shape[:2]
        raise data_error(
            f"the image is {height}x{width}x{array.shape[2]} (height x width x channels), input "
            f"{spec.name!r} takes {size[0]}x{size[1]}x{channels}",
            sample=sample,
            input=spec.name,
            expected=[*size, channels],
            got=list(array.shape),
            hint="use a preset or a preprocessing pipeline with resize or letterbox"
            if array.shape[2] == channels
            else "set imageChannels to the number of channels that the model takes",
        )
    if spec.layout == "NCHW":
        array = array.transpose(2, 0, 1)
    return array[np.newaxis]


class RandomDataset(_Base):
    """Made-up samples; the same on every platform and run.

    Args:
        inputs: the model's inputs.
        preprocessing: its value steps (normalize, colorConvert) run on random pixels.
        spec: count and seed.
    """

    def __init__(
        self, inputs: Sequence[InputSpec], preprocessing: Preprocessing, spec: RandomSpec
    ) -> None:
        super().__init__(inputs, [f"random/{i:04d}" for i in range(spec.count)])
        self._preprocessing = preprocessing
        self._spec = spec
        self._doubts.note(
            "the calibration data is random: accuracy may be poor, and the build is not for release"
        )
        for item in inputs:
            if item.dtype is DType.STRING:
                raise data_error(f"input {item.name!r} takes text, which cannot be made up")

    @property
    def is_random(self) -> bool:
        """True."""
        return True

    def _read(self, index: int) -> dict[str, Array]:
        sample: dict[str, Array] = {}
        for position, spec in enumerate(self._inputs):
            pipeline = self._preprocessing.of(spec.name).pipeline
            sample[spec.name] = random_sample(spec, pipeline, self._spec.seed, index, position)
        return sample


class Subset(_Base):
    """Some samples of another data set, in the order given."""

    def __init__(self, whole: Dataset, indices: Sequence[int]) -> None:
        super().__init__(whole.inputs, [whole.sample_names[i] for i in indices])
        self._whole = whole
        self._indices = tuple(indices)

    @property
    def is_random(self) -> bool:
        """Whether the whole data set is made up."""
        return self._whole.is_random

    @property
    def warnings(self) -> list[str]:
        """Doubts about the whole data set."""
        return self._whole.warnings

    def _read(self, index: int) -> dict[str, Array]:
        return self._whole[self._indices[index]]


class Mapped(_Base):
    """Another data set's samples, each turned into another model's inputs when it is read.

    Used where layers before the NPU body run on the CPU: the samples feed the whole model, the
    body gets what those layers give.

    Args:
        whole: the data set.
        function: sample to sample; called from several threads.
        inputs: the inputs that the function's results are for.
    """

    def __init__(
        self,
        whole: Dataset,
        function: Callable[[dict[str, Array]], dict[str, Array]],
        inputs: Sequence[InputSpec],
    ) -> None:
        super().__init__(inputs, whole.sample_names)
        self._whole = whole
        self._function = function

    @property
    def is_random(self) -> bool:
        """Whether the original samples are made up."""
        return self._whole.is_random

    @property
    def warnings(self) -> list[str]:
        """Doubts about the original samples."""
        return self._whole.warnings

    def __getitem__(self, index: int) -> dict[str, Array]:
        """Read a sample and turn it."""
        return self._function(self._whole[index])

    def digest(self) -> str:
        """Return the digest of the original samples, which do not depend on a model."""
        return self._whole.digest()


def open_dataset(
    source: PathLike | Sequence[PathLike] | RandomSpec | None,
    inputs: Sequence[InputSpec],
    preprocessing: Any = None,
    *,
    limits: Limits | None = None,
) -> Dataset:
    """Open calibration data; files are listed now and read one by one later.

    Args:
        source: a path or several (folders, lists, samples; taken one after another), a
            :class:`RandomSpec`, or None.
        inputs: the model's inputs.
        preprocessing: :class:`Preprocessing`, ``CompileConfig.preprocessing`` or its JSON form.
        limits: bounds; the defaults suit one's own data.

    Raises:
        CalibrationMissingError: there is no source.
        CalibrationDataError: a source does not exist, is empty or malformed, or the
            preprocessing names an input that the model lacks.
        ConfigError: the preprocessing is wrong.
    """
    limits = limits or Limits()
    rules = (
        preprocessing
        if isinstance(preprocessing, Preprocessing)
        else Preprocessing.from_config(preprocessing)
    )
    names = [s.name for s in inputs]
    for name in rules.inputs or ():
        if name not in names:
            raise data_error(
                f"preprocessing.inputConfigs names {name!r}, no input of the model",
                expected=names,
                got=name,
                hint=f"the model's inputs are {', '.join(names)}",
            )
    if isinstance(source, RandomSpec):
        return RandomDataset(inputs, rules, source)
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source or ())
    if not paths:
        raise CalibrationMissingError(
            "No calibration dataset is provided",
            hint="give --calib-data-path, or --use-random-calib for a trial build",
        )
    samples: list[SampleRef] = []
    notes: list[str] = []
    for path in paths:
        found = find_samples(path, names, limits)
        samples += found.samples
        notes += found.notes
    return FileDataset(samples, inputs, rules, limits, notes)
