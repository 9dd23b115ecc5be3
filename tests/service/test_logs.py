"""Log lines: ids, JSON, and no secrets. Traces that are off."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service import tracing
from service.logs import log_ids, redact, set_up_logging
from service.settings import Settings


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    found = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield found
    root.handlers[:] = before
    root.setLevel(level)


@pytest.mark.parametrize(
    ("text", "gone", "stays"),
    [
        ("connect postgresql://qb:hunter2@db:5432/qb", "hunter2", "postgresql://qb:***@db"),
        ("redis://:s3cr3t@broker/0 is away", "s3cr3t", "broker/0 is away"),
        ("Authorization: Bearer qb_AbCdEfGhIjKlMnOpQr", "AbCdEf", "Authorization: Bearer"),
        ("GET /v1/links/lnk_1/a?expires=1&signature=Zm9vYmFy", "Zm9vYmFy", "expires=1"),
        ("https://s3/b?X-Amz-Credential=AKIA1&X-Amz-Signature=abc123", "abc123", "https://s3/b"),
        ('{"password": "geheim", "user": "qb"}', "geheim", '"user": "qb"'),
        ("token qb_0123456789abcdefXYZ made", "0123456789", "made"),
        ("job job_01k2v7b0m8x9qj4t5w6y7z8a9b in queue qb.qbcompiler", "***", "qb.qbcompiler"),
    ],
)
def test_secrets_are_left_out(text: str, gone: str, stays: str) -> None:
    shown = redact(text)
    assert gone not in shown
    assert stays in shown


def test_json_lines_carry_the_ids_of_their_block(stream: io.StringIO, tmp_path: Path) -> None:
    secret = "7c9e6679f3a84d2bb1c05e8a9d31f642"
    settings = Settings.model_validate(
        {"data_dir": tmp_path, "log_json": True, "signing_secret": secret}
    )
    set_up_logging("test", settings, stream)
    log = logging.getLogger("x")
    with log_ids(build_id="bld_1"), log_ids(attempt=2):
        log.warning("with %s", secret)
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(log.warning, "in a thread")
        )
        thread.start()
        thread.join()
    try:
        raise RuntimeError(f"postgresql://qb:{secret}@db")
    except RuntimeError:
        log.exception("outside")
    inside, threaded, outside = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (inside["build_id"], inside["attempt"], inside["process"]) == ("bld_1", 2, "test")
    assert inside["message"] == "with ***"
    assert threaded["build_id"] == "bld_1"
    assert "build_id" not in outside and "RuntimeError" in outside["exception"]
    assert secret not in stream.getvalue()
    assert inside["time"].endswith("+00:00")


def test_plain_lines_hide_secrets_too(stream: io.StringIO, tmp_path: Path) -> None:
    set_up_logging("test", Settings(data_dir=tmp_path), stream)
    logging.getLogger("x").warning("redis://:pass-word@host")
    assert "test WARNING redis://:***@host" in stream.getvalue()


def test_traces_that_are_off_load_nothing() -> None:
    code = (
        "import sys; from service import tracing; from service.settings import Settings\n"
        "tracing.set_up_tracing(Settings(), 'x')\n"
        "with tracing.span('a') as s: s.set(b=1); tracing.begin('c').end()\n"
        "assert tracing.traceparent() is None and not tracing.current_ids()\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_trace_goes_on_from_its_parent(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracing.set_up_tracing(
        Settings(data_dir=tmp_path), "test", processor=SimpleSpanProcessor(exporter)
    )
    try:
        with tracing.span("outer", kind="server") as outer:
            outer.set(http__route="/x", nothing=None)
            parent = tracing.traceparent()
            ids = tracing.current_ids()
        assert parent is not None and ids["trace_id"] in parent
        with tracing.span("far", kind="consumer", parent=parent) as far:
            far.fail("RESOURCE_LIMIT")
        # what a stranger sends as a parent breaks nothing
        with tracing.span("wild", parent="no traceparent at all"):
            pass
    finally:
        tracing.stop_tracing()
    first, second, third = exporter.get_finished_spans()
    assert dict(first.attributes or {}) == {"http.route": "/x"}
    assert second.parent is not None
    assert second.context.trace_id == first.context.trace_id != third.context.trace_id
    assert second.status.description == "RESOURCE_LIMIT" and third.parent is None
