"""Memory classes, rate limits and quotas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.api.limiter import RateLimiter
from service.domain import DEFAULT_PROJECT, MemoryClasses, Role, ServiceError
from service.settings import Settings
from worker.app import queues_of

from .live import problem, serving, tiny_onnx

CLASSES = {"large": 64000, "small": 4000, "medium": 16000}


def settings(folder: Path, **more: Any) -> Settings:
    return Settings.model_validate({"data_dir": folder / "data", **more})


# memory classes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, "small"), (1, "small"), (4000, "small"), (4001, "medium"), (99999, "large")],
)
def test_a_build_begins_in_the_smallest_class_that_has_enough(
    asked: int | None, expected: str
) -> None:
    assert MemoryClasses(CLASSES).choose(asked) == expected


@pytest.mark.parametrize(
    ("queue", "asked", "larger", "bound"),
    [
        ("qb.x.small", None, "qb.x.large", 4000),
        # once: what was moved stays where it is
        ("qb.x.large", None, None, 64000),
        # the caller's own limit is final
        ("qb.x.small", 3000, None, 3000),
        # a job that joined asked for more than the class has
        ("qb.x.small", 9000, "qb.x.medium", 4000),
        # from before there were classes
        ("qb.x", None, None, None),
    ],
)
def test_a_build_that_ran_out_of_memory_moves_once(
    queue: str, asked: int | None, larger: str | None, bound: int | None
) -> None:
    classes = MemoryClasses(CLASSES)
    assert classes.larger(queue, asked) == larger
    assert classes.bound(queue, asked) == bound


def test_without_classes_there_is_one_queue() -> None:
    classes = MemoryClasses()
    assert classes.queue("qb.x", classes.choose(9000)) == "qb.x"
    assert classes.larger("qb.x", None) is None
    assert classes.bound("qb.x", 9000) == 9000


def test_workers_serve_the_classes_that_they_are_told(tmp_path: Path) -> None:
    engine = {"command": ["x"], "version": "1"}
    found = settings(tmp_path, memory_classes=CLASSES, engines={"e": engine})
    assert queues_of(found, ["e"], ["small"]) == ["qb.e.small"]
    # old builds go to those who have the most memory
    assert queues_of(found, ["qbcompiler"], ["large"]) == ["qb.qbcompiler.large", "qb.qbcompiler"]
    assert len(queues_of(found)) == 8
    assert queues_of(settings(tmp_path)) == ["qb.qbcompiler"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"memory_classes": {"a.b": 100}}, "letters"),
        ({"memory_classes": {"a": 1}}, "at least 64"),
        ({"memory_classes": {"a": 100}, "memory_limit_mb": 100}, "QB_MEMORY_LIMIT_MB"),
    ],
)
def test_classes_that_cannot_be(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(tmp_path, **more)


def test_jobs_go_to_the_queue_of_their_class(tmp_path: Path) -> None:
    with serving(settings(tmp_path, memory_classes=CLASSES)) as live:
        jobs = [
            live.parse_job(0),
            live.parse_job(1, limits={"memory_mb": 9000}),
            live.parse_job(2, limits={"memory_mb": 500_000}),
        ]
        builds = [live.context.builds.get(job["build_id"]) for job in jobs]
        found = [(b.queue, b.memory_limit_mb) for b in builds if b is not None]
        assert found == [
            ("qb.qbcompiler.small", None),
            ("qb.qbcompiler.medium", 9000),
            ("qb.qbcompiler.large", 64000),
        ]
        assert live.http.get("/v1/limits").json()["memory_limit_mb"] == 64000


# rates ----------------------------------------------------------------------------------------


def test_a_bucket_fills_again() -> None:
    now = 0.0
    limiter = RateLimiter(120, clock=lambda: now)
    for _ in range(12):
        limiter.take("a")
    with pytest.raises(ServiceError) as caught:
        limiter.take("a")
    assert caught.value.code == "RATE_LIMITED" and caught.value.retry_after_s == 1
    limiter.take("b")
    now = 0.5
    limiter.take("a")
    with pytest.raises(ServiceError):
        limiter.take("a")
    now = 3600.0
    for _ in range(12):
        limiter.take("a")
    with pytest.raises(ServiceError):
        limiter.take("a")


def test_the_longest_unseen_key_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.limiter._MOST_KEYS", 2)
    limiter = RateLimiter(1, clock=lambda: 0.0)
    for key in ("a", "b", "a", "c"):
        limiter.take(key)
    assert list(limiter._buckets) == ["a", "c"]


def test_each_token_has_its_own_rate(tmp_path: Path) -> None:
    with serving(settings(tmp_path, rate_per_minute=1, tokens_required=True)) as live:
        texts = [
            live.context.tokens.create(project=DEFAULT_PROJECT, name=n, role=Role.READER)[1]
            for n in "ab"
        ]
        first, second = ({"Authorization": f"Bearer {text}"} for text in texts)
        for _ in range(10):
            assert live.http.get("/v1/devices", headers=first).status_code == 200
        answer = live.http.get("/v1/devices", headers=first)
        body = problem(answer, 429, "RATE_LIMITED")
        assert body["retryable"] and 50 <= int(answer.headers["retry-after"]) <= 60
        assert live.http.get("/v1/devices", headers=second).status_code == 200
        # those who watch over the server are never refused
        assert all(httpx.get(f"{live.url}/healthz").status_code == 200 for _ in range(15))


# quotas ---------------------------------------------------------------------------------------


def test_a_project_may_have_so_many_jobs_at_once(tmp_path: Path) -> None:
    with serving(settings(tmp_path, max_active_jobs=2)) as live:
        first = live.parse_job(0)
        live.parse_job(1)
        body = {"type": "parse", "model_id": live.upload()["id"],
                "input_shapes": {"x": [1, 3, 8, 99]}}  # fmt: skip
        answer = live.http.post("/v1/jobs", json=body)
        assert problem(answer, 429, "QUOTA_EXCEEDED")["details"]["limit"] == 2
        # nothing of it was kept
        assert len(live.http.get("/v1/jobs").json()["items"]) == 2
        live.finish(first)
        assert live.http.post("/v1/jobs", json=body).status_code == 202
        # what is answered at once takes no place
        assert live.parse_job(0)["cache"] == "hit"


def test_a_full_project_gets_no_uploads_and_no_builds(tmp_path: Path) -> None:
    most = len(tiny_onnx()) + 1
    with serving(settings(tmp_path, max_project_bytes=most)) as live:
        model = live.upload()
        job = live.parse_job(model_id=model["id"])
        live.finish(job, b"1234")
        full = live.http.post("/v1/models", files={"file": ("m.onnx", tiny_onnx("q"))})
        details = problem(full, 429, "QUOTA_EXCEEDED")["details"]
        assert details == {"quota": "max_project_bytes", "limit": most, "held": most + 3}
        answer = live.http.put("/v1/models", params={"name": "m.onnx"}, content=tiny_onnx("q"))
        problem(answer, 429, "QUOTA_EXCEEDED")
        problem(live.http.post("/v1/calibrations", files={"file": ("a.npy", b"x")}), 429,
                "QUOTA_EXCEEDED")  # fmt: skip
        answer = live.http.post("/v1/jobs", json={"type": "parse", "model_id": model["id"]})
        problem(answer, 429, "QUOTA_EXCEEDED")
