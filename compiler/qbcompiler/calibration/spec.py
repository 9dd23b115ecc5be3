"""What a model wants of its calibration data, and the bounds under which files are opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import CalibrationDataError
from ..ir import DType, Graph, TensorType

__all__ = ["InputSpec", "Layout", "Limits", "data_error", "infer_layout", "specs_of_graph"]

Layout = Literal["NCHW", "NHWC"]

_IMAGE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold before anything large is allocated.

    Attributes:
        max_pixels: width times height of one image.
        max_sample_bytes: bytes of one tensor of a sample, as decoded.
        max_samples: samples of a data set.
        max_list_bytes: size of a list file.
        confined: refuse symbolic links and list entries that leave the given folder; for data
            that somebody else has uploaded.
    """

    max_pixels: int = 100_000_000
    max_sample_bytes: int = 1 << 30
    max_samples: int = 100_000
    max_list_bytes: int = 64 << 20
    confined: bool = False


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of the model.

    Attributes:
        name: as in the model.
        shape: the model's own shape, batch included.
        dtype: the model's element type.
        layout: which dimensions are channels, height and width, for inputs of rank 4; None where
            the input is not an image or it is not known.
        channels: channels that images are converted to; None takes them from the layout.
        upper: exclusive upper bound of integer values, where known (rows of an embedding).
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout | None = None
    channels: int | None = None
    upper: int | None = None

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return TensorType(self.dtype, self.shape)

    @property
    def image_channels(self) -> int | None:
        """Channels of an image for this input, None where that is not known."""
        if self.channels is not None:
            return self.channels
        if len(self.shape) != 4 or self.layout is None:
            return None
        return self.shape[1] if self.layout == "NCHW" else self.shape[3]

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) of an image for this input, None where that is not known."""
        if len(self.shape) != 4 or self.layout is None:
            return None
        return self.shape[2:4] if self.layout == "NCHW" else self.shape[1:3]

    def __str__(self) -> str:
        return f"{self.type}" + (f" {self.layout}" if self.layout else "")


def infer_layout(shape: tuple[int, ...], channels: int | None = None) -> Layout | None:
    """Return the layout of an image input of rank 4, None where the shape does not tell.

    Args:
        shape: the input's shape.
        channels: the number of channels, where it is known; else 1, 3 or 4 are looked for.
    """
    if len(shape) != 4:
        return None
    wanted = (channels,) if channels is not None else _IMAGE_CHANNELS
    first, last = shape[1] in wanted, shape[3] in wanted
    if first == last:
        return None
    return "NCHW" if first else "NHWC"


def specs_of_graph(graph: Graph, image_channels: int | None = None) -> list[InputSpec]:
    """Return the input specs of a graph, layouts taken from the layers that read the inputs.

    Args:
        graph: the graph that the samples feed.
        image_channels: ``imageChannels`` of the configuration; it applies to inputs of rank 4.
    """
    specs = []
    for name in graph.inputs:
        type_ = graph.values[name].type
        layout: Layout | None = None
        channels: int | None = None
        if type_.rank == 4:
            layout = _layout_of_readers(graph, name) or infer_layout(type_.shape, image_channels)
            channels = image_channels
        upper = _index_bound(graph, name) if type_.dtype.is_integer else None
        specs.append(InputSpec(name, type_.shape, type_.dtype, layout, channels, upper))
    return specs


def _layout_of_readers(graph: Graph, name: str) -> Layout | None:
    for node in graph.consumers(name):
        perm = getattr(node.attrs, "perm", None)
        if perm is not None and tuple(perm) == (0, 3, 1, 2):
            return "NHWC"
        if "Conv" in node.op and node.inputs[0] == name:
            return "NCHW"
    return None


def _index_bound(graph: Graph, name: str) -> int | None:
    """Return the smallest extent that the integer input indexes through a Gather, if any."""
    bounds = []
    for node in graph.consumers(name):
        if node.op == "Gather" and len(node.inputs) == 2 and node.inputs[1] == name:
            axis = getattr(node.attrs, "axis", 0)
            bounds.append(graph.values[node.inputs[0]].shape[axis])
    return min(bounds, default=None)


def data_error(
    message: str,
    *,
    sample: str | None = None,
    expected: Any = None,
    got: Any = None,
    hint: str | None = None,
    **details: Any,
) -> CalibrationDataError:
    """Build the error of a bad sample; the sample's relative name leads the message."""
    facts: dict[str, Any] = dict(details)
    for key, value in (("sample", sample), ("expected", expected), ("got", got)):
        if value is not None:
            facts[key] = value if isinstance(value, (int, float, list, Mapping)) else str(value)
    text = message if sample is None else f"calibration sample {sample!r}: {message}"
    return CalibrationDataError(text, details=facts, hint=hint)
