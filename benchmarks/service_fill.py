"""Fills a database with finished jobs, for :mod:`benchmarks.service`."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from sqlalchemy import insert

from service.db import Database, JobStore, ModelStore, NewJob, NewModel
from service.db.tables import BuildRow, JobLabelRow, JobRow
from service.domain import DEFAULT_PROJECT, BuildSpec, FileRef, JobKind, ModelFormat, ModelInput

__all__ = ["fill"]

_BATCH = 5000
_STATES = ("succeeded", "failed", "cancelled", "succeeded", "succeeded")


def fill(url: str, count: int) -> str:
    """Put finished parse jobs with four labels each into a migrated database.

    ``team`` is one of two values and ``branch`` one of ten; ``nightly`` is yes for each second
    job, and never where ``team`` is b; ``commit`` is shared by ten jobs.

    Returns:
        A commit that is there.
    """
    db = Database(url)
    model = ModelStore(db).add(
        NewModel(
            project=DEFAULT_PROJECT,
            name="m.onnx",
            format=ModelFormat.ONNX,
            files=(FileRef("m.onnx", "a" * 64, 10),),
            inputs=[{"name": "x", "dtype": "float32", "shape": [1, 3, 8, 8]}],
            outputs=[],
            facts={"opset": {"ai.onnx": 17}},
        )
    )
    spec = BuildSpec(
        kind=JobKind.PARSE,
        engine="qbcompiler",
        engine_version="1",
        model=ModelInput(ModelFormat.ONNX, model.digest, model.files),
    )
    # the service itself makes the first one; the others are copies of its rows
    first = JobStore(db).submit(
        NewJob(
            project=DEFAULT_PROJECT,
            spec=spec,
            request={"type": "parse", "model_id": model.id},
            queue="benchmark",
            priority=5,
            queue_limit_s=86400,
            run_limit_s=86400,
            model_id=model.id,
        )
    )
    with db.read() as session:
        job = _columns(session.get_one(JobRow, first.job.id))
        build = _columns(session.get_one(BuildRow, first.build.id))
    start = datetime.now(UTC) - timedelta(seconds=count)
    for low in range(0, count, _BATCH):
        builds, jobs, labels = [], [], []
        for i in range(low, min(low + _BATCH, count)):
            at = start + timedelta(seconds=i)
            times = {"created_at": at, "queued_at": at, "started_at": at, "finished_at": at}
            state = _STATES[i % len(_STATES)]
            own = {"id": f"bld_bench{i:09}", "key": _sha(f"build {i}"), "cache_key": None}
            builds.append({**build, **times, **own, "state": state})
            named = {
                "team": "ab"[i % 2],
                "branch": f"b{i % 10}",
                "nightly": "no" if i % 2 else "yes",
                "commit": _commit(i // 10),
            }
            identifier = f"job_bench{i:09}"
            jobs.append(
                {**job, **times, "id": identifier, "build_id": own["id"], "state": state,
                 "labels": named}
            )  # fmt: skip
            labels += [
                {"job_id": identifier, "name": k, "value": v, "project": DEFAULT_PROJECT,
                 "created_at": at}
                for k, v in named.items()
            ]  # fmt: skip
        with db.write() as session:
            session.execute(insert(BuildRow), builds)
            session.execute(insert(JobRow), jobs)
            session.execute(insert(JobLabelRow), labels)
    JobStore(db).cancel(DEFAULT_PROJECT, first.job.id)
    db.close()
    return _commit(count // 20)


def _columns(row: JobRow | BuildRow) -> dict[str, object]:
    return {column.key: getattr(row, column.key) for column in row.__table__.columns}


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _commit(number: int) -> str:
    return _sha(f"commit {number}")[:12]
