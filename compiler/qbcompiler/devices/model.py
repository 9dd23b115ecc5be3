"""What a target device is, as its data file says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["SCHEMES", "Assumption", "Compute", "Constraints", "Device", "Memory", "Scheme"]

Scheme = Literal["single", "multi", "global4", "global8"]

SCHEMES: tuple[Scheme, ...] = ("single", "multi", "global4", "global8")
"""The inference schemes that a device may have; ``all`` means every one it has."""

CORES_OF_SCHEME: Mapping[str, int] = {"single": 1, "multi": 4, "global4": 4, "global8": 8}
"""Cores that work together in a scheme."""

Positive = Annotated[int, Field(ge=1, le=2**62)]
Text = Annotated[str, Field(min_length=1, max_length=2000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Assumption(_Part):
    """A figure that is not public.

    Attributes:
        value: the number.
        assumed: why this number; None would make it a public figure, and those stand alone.
    """

    value: Positive
    assumed: Text


Figure = Positive | Assumption


class Compute(_Part):
    """Arithmetic.

    Attributes:
        peak_int8_ops_per_s: of the whole device, a multiply-add counted as two.
        macs_per_cycle: multiply-adds of one core in one cycle.
        clock_hz: of a core.
        sync_cycles: cores that share an input wait this long for each other after a layer.
    """

    peak_int8_ops_per_s: Figure
    macs_per_cycle: Figure
    clock_hz: Figure
    sync_cycles: Figure


class Memory(_Part):
    """Memory.

    Attributes:
        on_chip_bytes: on-chip memory of one core.
        bandwidth_bytes_per_s: of the device's external memory, shared by its cores.
        alignment_bytes: to which buffers are aligned in either memory.
        channel_alignment: to which the channels of a stored tensor are padded.
        link_bytes_per_cycle: what a core reads of other cores' on-chip memory in a cycle.
    """

    on_chip_bytes: Figure
    bandwidth_bytes_per_s: Figure
    alignment_bytes: Figure
    channel_alignment: Figure
    link_bytes_per_cycle: Figure = Assumption(
        value=64,
        assumed="Not public. One row of the multiplier array, at one byte an element, in a cycle.",
    )


class Constraints(_Part):
    """What a layer must keep to.

    Attributes:
        max_rank: largest tensor rank.
    """

    max_rank: Figure


class Unsupported(_Part):
    """IR operators that the device lacks, for one reason."""

    reason: Text
    operators: Annotated[tuple[Text, ...], Field(min_length=1)]


class Io(_Part):
    """The device's edge.

    Attributes:
        integer: inputs and outputs stay integers; the host quantizes and dequantizes.
        input_types, output_types: element types that the host hands over and gets.
    """

    integer: bool
    input_types: Annotated[tuple[Text, ...], Field(min_length=1)]
    output_types: Annotated[tuple[Text, ...], Field(min_length=1)]


class Device(_Part):
    """A target device.

    Attributes:
        name: the device string, the file's name.
        chip: the product.
        description: one sentence.
        cores, clusters: how many; cores divide evenly among clusters.
        schemes: inference schemes that it has.
        compute, memory, io, constraints: figures and limits.
        unsupported: operators that it lacks.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    chip: Text
    description: Text
    cores: Annotated[int, Field(ge=1, le=1024)]
    clusters: Annotated[int, Field(ge=1, le=1024)]
    schemes: Annotated[tuple[Scheme, ...], Field(min_length=1)]
    compute: Compute
    memory: Memory
    io: Io
    constraints: Constraints
    unsupported: tuple[Unsupported, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cores % self.clusters:
            raise ValueError("the cores do not divide evenly among the clusters")
        if len(set(self.schemes)) != len(self.schemes):
            raise ValueError("a scheme is listed twice")
        for scheme in self.schemes:
            if CORES_OF_SCHEME[scheme] > self.cores:
                raise ValueError(f"scheme {scheme} needs {CORES_OF_SCHEME[scheme]} cores")
        named = [op for group in self.unsupported for op in group.operators]
        if len(set(named)) != len(named):
            raise ValueError("an unsupported operator is listed twice")
        return self

    @property
    def cores_per_cluster(self) -> int:
        """Cores of one cluster."""
        return self.cores // self.clusters

    @property
    def max_rank(self) -> int:
        """The largest tensor rank."""
        return number(self.constraints.max_rank)

    @property
    def integer_io(self) -> bool:
        """Whether inputs and outputs stay integers."""
        return self.io.integer

    @cached_property
    def unsupported_operators(self) -> Mapping[str, str]:
        """IR operators the device lacks, each with the reason."""
        return {op: group.reason for group in self.unsupported for op in group.operators}

    @cached_property
    def assumptions(self) -> Mapping[str, str]:
        """Figures that are not public, by dotted name, each with the reasoning."""
        return {
            f"{part}.{field}": figure.assumed
            for part in ("compute", "memory", "constraints")
            for field in type(getattr(self, part)).model_fields
            if isinstance(figure := getattr(getattr(self, part), field), Assumption)
        }

    def figure(self, name: str) -> int:
        """Return a figure by dotted name, such as ``memory.on_chip_bytes``."""
        part, _, field = name.partition(".")
        return number(getattr(getattr(self, part), field))

    def as_dict(self) -> dict[str, Any]:
        """Return the device as JSON data, as the command line and the service show it."""
        return {
            "name": self.name,
            "chip": self.chip,
            "description": self.description,
            "cores": self.cores,
            "clusters": self.clusters,
            "schemes": [*self.schemes, "all"],
            "compute": {k: self.figure(f"compute.{k}") for k in Compute.model_fields},
            "memory": {k: self.figure(f"memory.{k}") for k in Memory.model_fields},
            "constraints": {k: self.figure(f"constraints.{k}") for k in Constraints.model_fields},
            "assumptions": dict(self.assumptions),
            "io": self.io.model_dump(mode="json"),
            "unsupported_operators": dict(sorted(self.unsupported_operators.items())),
        }


def number(figure: int | Assumption) -> int:
    """Return the number of a figure, public or assumed."""
    return figure.value if isinstance(figure, Assumption) else figure
