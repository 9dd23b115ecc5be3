"""Prometheus metrics of one application."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ..db import DATABASE_ERRORS

__all__ = ["CONTENT_TYPE_LATEST", "Gauges", "Metrics"]

_log = logging.getLogger(__name__)

Gauges = Mapping[str, tuple[str, str, Mapping[str, float]]]
"""Name to (help, label, values by label)."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """A registry of its own, so that two applications in one process do not mix.

    Args:
        gauges: returns the values that are looked up at each scrape.
    """

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Histogram(
            "qb_http_request_seconds",
            "Time to answer, by route, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.submitted = Counter(
            "qb_jobs_submitted_total",
            "Jobs submitted, by kind and how the cache answered.",
            ("kind", "cache"),
            registry=self.registry,
        )
        self.uploaded = Counter(
            "qb_uploaded_bytes_total", "Bytes uploaded, by what.", ("what",), registry=self.registry
        )
        self.registry.register(_Gauges(gauges))

    def render(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def describe(self) -> list[Metric]:
        # nothing is looked up when the registry asks what there is
        return []

    def collect(self) -> Iterator[Metric]:
        found: Gauges = {}
        try:
            found = self._gauges()
        except DATABASE_ERRORS as exc:
            # what the process itself has counted is wanted most when the database is away
            _log.warning("metrics without the database's: %s", exc)
        yield GaugeMetricFamily(
            "qb_database_up", "Whether the database answers.", value=1.0 if found else 0.0
        )
        for name, (text, label, values) in found.items():
            family = GaugeMetricFamily(name, text, labels=[label] if label else [])
            for key, value in values.items():
                family.add_metric([key] if label else [], value)
            yield family
