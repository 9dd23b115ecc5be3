"""Traces in OpenTelemetry's form, from a request through the broker to the worker's phases.

Off unless ``QB_OTLP_ENDPOINT`` names a collector: then nothing of OpenTelemetry is imported, and
each call here costs one comparison. A trace is handed on as W3C Trace Context's ``traceparent``;
between processes it lies with the build in the database, for a broker message may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

__all__ = ["Span", "begin", "current_ids", "set_up_tracing", "span", "stop_tracing", "traceparent"]

Kind = Literal["internal", "server", "producer", "consumer"]

# one for each process
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


@dataclass(slots=True)
class Span:
    """A span that may not be there."""

    _span: OtelSpan | None = None

    def set(self, **attributes: str | int | float | bool | None) -> None:
        """Set attributes; ``__`` in a name stands for a dot. None is left out."""
        if self._span is not None:
            for name, value in attributes.items():
                if value is not None:
                    self._span.set_attribute(name.replace("__", "."), value)

    def rename(self, name: str) -> None:
        """Give it another name."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, why: str) -> None:
        """Mark it as an error."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, why)

    def end(self) -> None:
        """End a span that :func:`begin` began."""
        if self._span is not None:
            self._span.end()


_NONE = Span()


def set_up_tracing(
    settings: Settings, process: str, *, processor: SpanProcessor | None = None
) -> None:
    """Begin to send this process's spans, where the settings ask for it.

    Args:
        settings: ``otlp_endpoint`` and ``trace_ratio``.
        process: the value of ``service.name``, after ``qb-``.
        processor: takes the spans; by default a batch for the collector.
    """
    global _tracer, _provider
    if _tracer is not None or (settings.otlp_endpoint is None and processor is None):
        return
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    if processor is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint}/v1/traces", timeout=5)
        )
    _provider = TracerProvider(
        resource=Resource.create({"service.name": f"qb-{process}", "service.namespace": "qb"}),
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
        shutdown_on_exit=False,
    )
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("qb-compile-server")


def stop_tracing() -> None:
    """Send what waits, and end."""
    global _tracer, _provider
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        provider.shutdown()


@contextmanager
def span(
    name: str, *, kind: Kind = "internal", parent: str | None = None, **attributes: Any
) -> Iterator[Span]:
    """Trace a block; what it begins are its children.

    Args:
        name: of few different values: no ids in it.
        kind: the span's kind.
        parent: a ``traceparent``; by default the span that is open here.
        attributes: see :meth:`Span.set`.
    """
    if _tracer is None:
        yield _NONE
        return
    from opentelemetry.trace import SpanKind

    with _tracer.start_as_current_span(
        name, context=_context(parent), kind=SpanKind[kind.upper()]
    ) as found:
        open_span = Span(found)
        open_span.set(**attributes)
        yield open_span


def begin(name: str, **attributes: Any) -> Span:
    """Begin a child of the span that is open here; whoever calls ends it."""
    if _tracer is None:
        return _NONE
    found = Span(_tracer.start_span(name))
    found.set(**attributes)
    return found


def traceparent() -> str | None:
    """Return the open span for another process to go on from; None where there is none."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def current_ids() -> Mapping[str, str]:
    """Return ``trace_id`` and ``span_id`` of the open span, hex; nothing where there is none."""
    if _tracer is None:
        return {}
    from opentelemetry.trace import get_current_span

    found = get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}


def _context(parent: str | None) -> Any:
    if parent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # what is no traceparent is no parent
    return TraceContextTextMapPropagator().extract({"traceparent": parent})
