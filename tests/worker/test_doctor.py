"""``qbserver doctor`` finds each thing that is missing and says how to mend it."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from service.db import Database, run_migrations
from service.settings import Settings
from worker.doctor import Finding, examine

from .house import Make


def look(folder: Path, **more: Any) -> dict[str, Finding]:
    return {f.name: f for f in examine(Settings.model_validate({"data_dir": folder, **more}))}


def test_a_fresh_folder_lacks_only_what_serve_brings(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert {name for name, f in found.items() if not f.ok} == {"broker"}
    assert "qbserver serve" in found["broker"].mend
    assert "empty" in found["database"].text and "not set up" in found["queue"].text
    assert found["engine qbcompiler"].ok and "traces" not in found


def test_what_is_wrong_is_named_without_its_secrets(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        closed = sock.getsockname()[1]
    found = look(
        tmp_path,
        mode="team",
        database_url=f"postgresql://qb:geheim123@127.0.0.1:{closed}/qb",
        broker_url=f"redis://:geheim123@127.0.0.1:{closed}/0",
        otlp_endpoint=f"http://127.0.0.1:{closed}",
        engines={"other": {"command": ["/nonexistent/engine"], "version": "1"}},
    )
    bad = {name for name, f in found.items() if not f.ok}
    assert {"settings", "database", "broker", "traces", "engine other"} <= bad
    assert all(f.mend for f in found.values() if not f.ok)
    assert "QB_S3_BUCKET" in found["settings"].text
    assert not any("geheim123" in f.text for f in found.values())


def test_builds_that_nobody_takes_are_a_fault(house: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    h = house("good")
    more = {"database_url": h.settings.effective_database_url}
    h.submit()
    assert look(h.settings.data_dir, **more)["queue"].text == "1 builds wait, 0 run"
    now = Database.now
    monkeypatch.setattr(Database, "now", lambda db, s: now(db, s) + timedelta(seconds=400))
    found = look(h.settings.data_dir, **more)["queue"]
    assert not found.ok and "qb.stand-in" in found.text and "qbserver worker" in found.mend


def test_a_clock_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_migrations(f"sqlite:///{tmp_path}/qb.sqlite3")
    assert look(tmp_path)["database"].ok
    now = Database.now
    monkeypatch.setattr(Database, "now", lambda db, s: now(db, s) - timedelta(seconds=90))
    found = look(tmp_path)["database"]
    assert not found.ok and "90 s ahead of" in found.text
