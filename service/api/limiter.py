"""How often a token may ask: a token bucket for each."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ..domain import ServiceError

__all__ = ["RateLimiter"]

_MOST_KEYS = 10_000


class RateLimiter:
    """Lets each key make so many requests a minute, a tenth of them (at least ten) at once.

    Each process counts for itself: with n services a caller may get n times as much.

    Args:
        per_minute: requests; None for no bound.
        clock: seconds, monotonic.
    """

    def __init__(
        self, per_minute: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._lock = threading.Lock()
        # key to what it has left, and when that was; the longest unseen first
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Count a request.

        Raises:
            ServiceError: ``RATE_LIMITED``, with the seconds after which one is free again.
        """
        if self._per_minute is None:
            return
        rate = self._per_minute / 60.0
        most = max(10.0, self._per_minute / 10.0)
        with self._lock:
            now = self._clock()
            left, then = self._buckets.pop(key, (most, now))
            left = min(most, left + (now - then) * rate)
            allowed = left >= 1.0
            self._buckets[key] = (left - 1.0 if allowed else left, now)
            if len(self._buckets) > _MOST_KEYS:
                self._buckets.popitem(last=False)
        if not allowed:
            raise ServiceError(
                "RATE_LIMITED",
                f"this token asks more than {self._per_minute} times a minute",
                hint="wait for the seconds of Retry-After; GET /v1/jobs/{id}?wait=30 and event "
                "streams need fewer calls",
                details={"limit": self._per_minute},
                retry_after_s=max(1, math.ceil((1.0 - left) / rate)),
            )
