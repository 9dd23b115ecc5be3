"""What a worker measures: Prometheus metrics on a port of its own, and spans of its builds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)

from service import tracing
from service.db import ReconcileReport
from service.domain import Build, Phase, Usage

__all__ = ["Observed", "WorkerMetrics"]

_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)
_MIB = 1 << 20
_BYTES = tuple(n * _MIB for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536))


class WorkerMetrics:
    """A registry of its own, so that two workers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.running = Gauge(
            "qb_worker_builds_running", "Attempts that run now.", registry=self.registry
        )
        self.attempts = Counter(
            "qb_worker_attempts_total",
            "Attempts that ended, by kind of build, engine and how they ended.",
            ("kind", "engine", "outcome"),
            registry=self.registry,
        )
        self.failures = Counter(
            "qb_worker_failures_total",
            "Attempts that failed, by code.",
            ("code",),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "qb_worker_attempt_seconds",
            "How long attempts ran, by kind of build and how they ended.",
            ("kind", "outcome"),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.phases = Histogram(
            "qb_worker_phase_seconds",
            "How long each phase of an attempt took.",
            ("phase",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.peak_memory = Histogram(
            "qb_worker_peak_memory_bytes",
            "Peak memory of compilers.",
            registry=self.registry,
            buckets=_BYTES,
        )
        self.cpu_seconds = Counter(
            "qb_worker_cpu_seconds_total", "Processor time of compilers.", registry=self.registry
        )
        self.reconciled = Counter(
            "qb_worker_reconciled_total",
            "Builds and jobs that the reconciler put right, by what it did.",
            ("action",),
            registry=self.registry,
        )
        for action in ReconcileReport.__dataclass_fields__:
            self.reconciled.labels(action)
        self.errors = Counter(
            "qb_worker_background_errors_total",
            "Rounds of the dispatcher or the reconciler that failed.",
            registry=self.registry,
        )

    def serve(self, address: str, port: int) -> None:
        """Answer scrapes from a thread.

        Raises:
            OSError: the address is in use.
        """
        start_http_server(port, addr=address, registry=self.registry)

    def count(self, report: ReconcileReport) -> None:
        """Add what a run of the reconciler did."""
        for action in ReconcileReport.__dataclass_fields__:
            self.reconciled.labels(action).inc(len(getattr(report, action)))

    @contextmanager
    def attempt(self, build: Build, number: int) -> Iterator[Observed]:
        """Measure and trace an attempt; the block tells how it ended."""
        observed = Observed(self)
        started = time.monotonic()
        self.running.inc()
        try:
            with tracing.span(
                f"build {build.kind.value}",
                kind="consumer",
                parent=build.traceparent,
                qb__build_id=build.id,
                qb__attempt=number,
                qb__engine=build.engine,
                qb__queue=build.queue,
                qb__target_device=build.spec.target_device,
            ) as span:
                try:
                    yield observed
                finally:
                    observed.close()
                    span.set(qb__outcome=observed.outcome, qb__code=observed.code)
                    if observed.outcome in ("failed", "timed_out", "lost"):
                        span.fail(observed.code or observed.outcome)
        finally:
            self.running.dec()
            self.attempts.labels(build.kind.value, build.engine, observed.outcome).inc()
            self.seconds.labels(build.kind.value, observed.outcome).observe(
                time.monotonic() - started
            )
            if observed.code is not None:
                self.failures.labels(observed.code).inc()


class Observed:
    """One attempt: its phases as they come, and its end.

    Attributes:
        outcome: ``succeeded``, ``failed``, ``cancelled``, ``timed_out``, ``released``, ``lost``.
        code: of the failure.
    """

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._phase: Phase | None = None
        self._since = 0.0
        self._span = tracing.Span()
        # the engine's thread changes phases, the one of the heartbeat may end it
        self._lock = threading.Lock()
        self.outcome = "lost"
        self.code: str | None = None

    def phase(self, phase: Phase) -> None:
        """Say that a phase begins; the one before ends."""
        if phase is self._phase:
            return
        with self._lock:
            self._end()
            self._phase, self._since = phase, time.monotonic()
            self._span = tracing.begin(f"phase {phase.value}")

    def end(self, outcome: str, code: str | None = None, usage: Usage | None = None) -> None:
        """Say how it ended."""
        self.outcome, self.code = outcome, code
        if usage is not None:
            if usage.peak_memory_bytes is not None:
                self._metrics.peak_memory.observe(usage.peak_memory_bytes)
            if usage.cpu_seconds is not None:
                self._metrics.cpu_seconds.inc(usage.cpu_seconds)

    def close(self) -> None:
        """End the last phase."""
        with self._lock:
            self._end()
            self._phase = None

    def _end(self) -> None:
        if self._phase is not None:
            self._metrics.phases.labels(self._phase.value).observe(time.monotonic() - self._since)
        self._span.end()
        self._span = tracing.Span()
