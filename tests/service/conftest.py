"""Stores on real databases, and requests to put into them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db import BuildStore, Database, JobStore, ModelStore, NewJob, NewModel, run_migrations
from service.domain import (
    BuildSpec,
    CacheMode,
    FileRef,
    JobKind,
    LeasePolicy,
    ModelFormat,
    ModelInput,
)
from service.settings import Settings

from ..support.servers import new_bucket
from .live import Live, serving


@pytest.fixture
def db(any_database_url: str) -> Iterator[Database]:
    run_migrations(any_database_url)
    database = Database(any_database_url)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def s3_settings(s3_endpoint: str) -> dict[str, str]:
    """Settings of a fresh bucket."""
    return {
        name.removeprefix("QB_").lower(): value for name, value in new_bucket(s3_endpoint).items()
    }


class Bench:
    """Stores on a database, and requests to put into them."""

    def __init__(self, db: Database, policy: LeasePolicy | None = None) -> None:
        self.db = db
        self.policy = policy or LeasePolicy(lease_seconds=30)
        self.jobs = JobStore(db)
        self.builds = BuildStore(db, self.policy)
        self.models = ModelStore(db)
        self.model = self.models.add(
            NewModel(
                project="default",
                name="m.onnx",
                format=ModelFormat.ONNX,
                files=(FileRef("m.onnx", "a" * 64, 10),),
                inputs=[{"name": "x", "dtype": "float32", "shape": [1, 3, "h", None]}],
                outputs=[],
                facts={"opset": {"ai.onnx": 17}},
            )
        )

    def spec(self, variant: int = 0) -> BuildSpec:
        return BuildSpec(
            kind=JobKind.PARSE,
            engine="qbcompiler",
            engine_version="1",
            model=ModelInput(ModelFormat.ONNX, self.model.digest, self.model.files),
            input_shapes={"x": (1, 3, 8, 8 + variant)},
        )

    def new(
        self, variant: int = 0, *, cache: CacheMode = CacheMode.ON, **changes: object
    ) -> NewJob:
        fields: dict[str, object] = {
            "project": "default",
            "spec": self.spec(variant),
            "request": {"type": "parse", "model_id": self.model.id},
            "queue": "qb.qbcompiler",
            "priority": 5,
            "queue_limit_s": 100,
            "run_limit_s": 100,
            "cache_mode": cache,
            "model_id": self.model.id,
            **changes,
        }
        return NewJob(**fields)  # type: ignore[arg-type]


@pytest.fixture
def bench(db: Database) -> Bench:
    return Bench(db)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        poll_seconds=0.02,
        sse_keepalive_seconds=0.3,
        log_level="warning",
    )


def in_threads(count: int, work: object) -> list[object]:
    """Run ``work(i)`` in threads that begin together; return the results or the exceptions."""
    barrier = threading.Barrier(count)
    results: list[object] = [None] * count

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = work(index)  # type: ignore[operator]
        except Exception as exc:
            results[index] = exc

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service that the tests of one module share."""
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("data"),
        poll_seconds=0.02,
        sse_keepalive_seconds=0.2,
        max_json_bytes=20_000,
        max_model_bytes=200_000,
        max_calibration_bytes=400_000,
        max_unpacked_bytes=3_000_000,
        max_archive_entries=50,
        max_image_pixels=10_000,
    )
    with serving(settings) as found:
        yield found


def free_settings(folder: Path, **changes: object) -> Settings:
    """Settings with a data folder of their own."""
    return Settings.model_validate({"data_dir": folder, **changes})
