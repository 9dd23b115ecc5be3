"""A short soak; ``python -m tests.e2e.soak`` runs a long one."""

from __future__ import annotations

from pathlib import Path

from .soak import soak


def test_jobs_end_once_whatever_is_killed(tmp_path: Path) -> None:
    run = soak(tmp_path / "t", jobs=24, acts=10, seed=1, workers=2, seconds=400)
    assert not run.wrong, "\n".join(run.wrong)
    assert len(run.submitted) == 24
    for what in ("worker killed", "service killed", "broker killed", "database killed"):
        assert run.done[what], run.done
