"""The device's figures, as the code generator reckons with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..devices import Device

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The device's figures, as numbers.

    Attributes:
        macs_per_cycle: multiply-adds of one core in a cycle.
        side: of the array of multipliers.
        clock: in Hz.
        on_chip: bytes of on-chip memory of a core.
        bytes_per_cycle: of external memory, shared by all cores.
        link_bytes_per_cycle: from core to core, each core's own.
        sync: cycles of a barrier.
        cores: of the device.
        alignment: of buffers, in bytes.
        channel_alignment: of stored rows, in elements.
    """

    macs_per_cycle: int
    side: int
    clock: int
    on_chip: int
    bytes_per_cycle: float
    link_bytes_per_cycle: int
    sync: int
    cores: int
    alignment: int
    channel_alignment: int

    @classmethod
    def of(cls, device: Device) -> Machine:
        """Return the figures of a device."""
        clock = device.figure("compute.clock_hz")
        macs = device.figure("compute.macs_per_cycle")
        return cls(
            macs_per_cycle=macs,
            side=max(1, math.isqrt(macs)),
            clock=clock,
            on_chip=device.figure("memory.on_chip_bytes"),
            bytes_per_cycle=device.figure("memory.bandwidth_bytes_per_s") / clock,
            link_bytes_per_cycle=device.figure("memory.link_bytes_per_cycle"),
            sync=device.figure("compute.sync_cycles"),
            cores=device.cores,
            alignment=device.figure("memory.alignment_bytes"),
            channel_alignment=device.figure("memory.channel_alignment"),
        )
