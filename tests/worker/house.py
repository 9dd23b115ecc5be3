"""A database, an object store and a builder over them, with a stand-in engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.db import BuildStore, Database, JobStore, JobView, NewJob
from service.domain import (
    DEFAULT_PROJECT,
    BuildSpec,
    CacheMode,
    FileRef,
    JobKind,
    ModelFormat,
    ModelInput,
)
from service.settings import Settings
from service.storage import LocalStore
from worker.build import Builder

STAND_IN = Path(__file__).with_name("stand_in.py")
MODEL = b"a model, as far as the stand-in can tell"


@dataclass
class House:
    """A database, an object store and a builder over them."""

    settings: Settings
    db: Database
    builds: BuildStore
    jobs: JobStore
    store: LocalStore
    builder: Builder

    def submit(self, kind: JobKind = JobKind.COMPILE, **more: object) -> JobView:
        digest = hashlib.sha256(MODEL).hexdigest()
        spec = BuildSpec(
            kind=kind,
            engine="stand-in",
            engine_version="1",
            model=ModelInput(
                ModelFormat.MBLT if kind is JobKind.QUANTIZE else ModelFormat.ONNX,
                digest,
                (FileRef("model.onnx", digest, len(MODEL)),),
            ),
            target_device="regulus-rb",
            inference_scheme="single",
        )
        job = self.jobs.submit(
            NewJob(
                project=DEFAULT_PROJECT,
                spec=spec,
                request={"type": kind.value},
                priority=5,
                queue_limit_s=3600,
                cache_mode=CacheMode.OFF,
                **{"queue": "qb.stand-in", "run_limit_s": 60, **more},  # type: ignore[arg-type]
            )
        ).job
        return self.job(job.id)

    def job(self, job_id: str) -> JobView:
        view = self.jobs.get(DEFAULT_PROJECT, job_id)
        assert view is not None
        return view

    def log(self, view: JobView) -> str:
        chunks = self.jobs.log_chunks(view.job.build_id, 0)
        return "".join(str(c.data["text"]) for c in chunks)


Make = Callable[[str], House]
