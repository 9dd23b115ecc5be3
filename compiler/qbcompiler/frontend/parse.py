"""From a source model to the float graph: bind, lower, rewrite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import ArgumentError
from ..ir import Graph, verify
from ..ops import Registry, default_registry
from .binding import bind_inputs, source_inputs
from .load import SourceModel
from .lower import lower_model

__all__ = ["parse"]


def parse(
    source: SourceModel,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    image_channels: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    registry: Registry | None = None,
    passes: bool = True,
    explain: Callable[[str, str, str], None] | None = None,
) -> Graph:
    """Return the float graph of a source model; names of inputs and outputs are the model's.

    The same model and arguments give the same graph, names and order included.

    Args:
        source: from :func:`~qbcompiler.frontend.load_model`.
        input_shapes: shapes by input name, for inputs with open dimensions.
        image_channels: what the caller expects an image input to have; checked when given.
        progress: called with layers done and their total.
        registry: operators; the built-in ones by default.
        passes: whether to run the rewrites of :mod:`qbcompiler.passes`.
        explain: called with pass, layer and reason for each layer of the result that a rewrite
            recognised but left alone.

    Raises:
        ArgumentError: ``input_shapes`` or ``image_channels`` do not fit the model.
        UnsupportedDynamicShapeError: a dimension is left open.
        ModelLoadError: the model is invalid.
        UnsupportedOperatorError: an operator cannot be kept even as a CPU layer.
    """
    registry = registry or default_registry()
    declared = source_inputs(source.proto.graph)
    types = bind_inputs(declared, input_shapes or {})
    if image_channels is not None:
        _check_channels(image_channels, {n: t.shape for n, t in types.items()})
    graph = lower_model(source, types, registry, progress)
    source.let_go()
    verify(graph, "lowered", registry.infer)
    if passes:
        from ..passes import run_pipeline

        for result in run_pipeline(graph, registry, after=source.let_go):
            for layer, reason in result.refusals:
                # a later pass may have taken the layer after all
                if explain is not None and graph.has_node(layer):
                    explain(result.name, layer, reason)
    return graph


def _check_channels(channels: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
    images = {n: s for n, s in shapes.items() if len(s) == 4}
    for name, shape in images.items():
        if channels not in (shape[1], shape[3]):
            raise ArgumentError(
                f"imageChannels is {channels}, but input {name!r} is {','.join(map(str, shape))}",
                details={"input": name, "expected": channels, "got": list(shape)},
                hint=f"set imageChannels to {shape[1]} or leave it out",
            )
