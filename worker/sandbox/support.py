"""What of a sandbox this kernel allows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache

from . import landlock, seccomp

__all__ = ["Support", "kernel_support"]


@dataclass(frozen=True)
class Support:
    """What can be refused to an engine here.

    Attributes:
        landlock: its version; 0 for none: files are open.
        seccomp: whether system calls can be filtered; otherwise sockets are open.
    """

    landlock: int
    seccomp: bool

    @property
    def files(self) -> bool:
        """Whether files outside can be refused."""
        return self.landlock > 0

    @property
    def network(self) -> bool:
        """Whether every kind of socket can be refused."""
        return self.seccomp

    def missing(self) -> tuple[str, ...]:
        """Return what cannot be refused, each with the reason; empty for a whole sandbox."""
        found = []
        if not self.files:
            found.append(
                "files outside its scratch folder (needs Landlock: Linux 5.13 or later with"
                " `landlock` among its LSMs, and a container runtime that lets it through)"
            )
        if not self.network:
            found.append(
                "the network (needs seccomp filters, on x86-64 or arm64)"
                + (", but for TCP, which Landlock refuses" if self.landlock >= 4 else "")
            )
        return tuple(found)

    def __str__(self) -> str:
        has = []
        if self.files:
            has.append(f"files by Landlock {self.landlock}")
        if self.network:
            has.append("network and system calls by seccomp")
        return ", ".join(has) or "nothing"


@lru_cache(maxsize=1)
def kernel_support() -> Support:
    """Return what this kernel allows; changes nothing in this process."""
    if sys.platform != "linux":
        return Support(0, False)
    return Support(landlock.abi_version(), seccomp.is_available())
