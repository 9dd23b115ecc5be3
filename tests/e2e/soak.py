"""Many small jobs while random processes are killed: each must end once, as it should.

    python -m tests.e2e.soak [--jobs N] [--acts N] [--seed N] [--workers N]

Kills workers, compilers, the service, Valkey and Postgres, empties the broker, makes the object
store refuse, crawl and break off, and sends messages again, in an order that the seed decides.
Prints what was done and what was checked; exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import psutil
from sqlalchemy import select

from service.broker import CelerySender
from service.db import Database, Message
from service.db.tables import ArtifactRow, AttemptRow, BuildRow, EventRow, JobRow
from service.settings import Settings
from tests.support.team import Team, team

from .conftest import tiny_model
from .server import TERMINAL, stand_in_engine

# engine -> share of jobs, how they must end
KINDS: dict[str, tuple[int, frozenset[str]]] = {
    "good": (10, frozenset({"succeeded"})),
    "slow": (6, frozenset({"succeeded"})),
    "fault": (2, frozenset({"failed"})),
    "hang": (1, frozenset({"timed_out"})),
    # one that ended before the cancel came has succeeded
    "cancelled": (2, frozenset({"cancelled", "succeeded"})),
}
ENGINES = {
    "good": stand_in_engine("good"),
    "slow": stand_in_engine("slow:0.5"),
    "fault": stand_in_engine("fault"),
    "hang": stand_in_engine("ignore_sigterm"),
    "cancelled": stand_in_engine("slow:1"),
}


@dataclass
class Soak:
    """One run."""

    team: Team
    jobs: int
    acts: int
    seed: int
    seconds: float
    done: Counter[str] = field(default_factory=Counter)
    submitted: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._http = httpx.Client(base_url=self.team.url, timeout=20)
        self._over = threading.Event()
        self._deadline = time.monotonic() + self.seconds

    # the client -----------------------------------------------------------------------------

    def call(self, method: str, path: str, **how: Any) -> httpx.Response:
        """Ask until there is an answer that is not a server's fault."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = self._http.request(method, path, **how)
                if answer.status_code < 500:
                    return answer
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"{method} {path}: no answer\n{self.team.log()}")
            time.sleep(0.1)

    def submit(self, model_id: str) -> None:
        kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
        random.Random(self.seed).shuffle(kinds)
        for number in range(self.jobs):
            kind = kinds[number % len(kinds)]
            body: dict[str, Any] = {
                "type": "compile", "model_id": model_id, "target_device": "regulus-rb",
                "use_random_calib": True, "engine": kind, "cache": "off",
                "labels": {"number": str(number)},
            }  # fmt: skip
            if kind == "hang":
                body["limits"] = {"run_s": 2}
            # a repeated request must not make a second job
            answer = self.call(
                "POST", "/v1/jobs", json=body, headers={"Idempotency-Key": f"soak-{number}"}
            )
            if answer.status_code != 202:
                self.wrong.append(f"submit {number}: {answer.status_code} {answer.text}")
                continue
            job_id = answer.json()["id"]
            self.submitted[job_id] = kind
            if kind == "cancelled":
                self.call("POST", f"/v1/jobs/{job_id}/cancel")

    # the trouble ----------------------------------------------------------------------------

    def trouble(self, sender: CelerySender) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (5, self._kill_worker), (5, self._kill_compiler), (1, self._kill_service),
            (1, self._kill_broker), (2, self._empty_broker), (1, self._kill_database),
            (3, self._disturb_store), (3, lambda: self._send_again(sender)),
        ]  # fmt: skip
        # each at least once, then by weight
        first = [act for _, act in acts]
        self._random.shuffle(first)
        # while there is surely work to lose
        first.sort(key=lambda act: act == self._kill_worker)
        weights = [weight for weight, _ in acts]
        for _ in range(self.acts):
            if self._over.is_set():
                break
            act = first.pop() if first else self._random.choices(acts, weights)[0][1]
            act()
            self._over.wait(self._random.uniform(0.3, 1.5))
        self.team.proxy.mode = "pass"

    def _kill_worker(self) -> None:
        """Kill one at work; those that start are left alone, or nothing would ever be done."""
        deadline = time.monotonic() + 20
        while not (busy := self.team.busy_workers()):
            if self._over.is_set() or time.monotonic() > deadline:
                return
            time.sleep(0.05)
        self.team.kill_worker(self._random.choice(busy))
        self.done["worker killed"] += 1

    def _kill_compiler(self) -> None:
        compilers = self.team.compilers()
        if compilers:
            with contextlib.suppress(psutil.Error):
                self._random.choice(compilers).kill()
                self.done["compiler killed"] += 1

    def _kill_service(self) -> None:
        self.team.kill_service()
        self.team.wait_ready()
        self.done["service killed"] += 1

    def _kill_broker(self) -> None:
        self.team.valkey.kill()
        time.sleep(self._random.uniform(0, 1.5))
        self.team.valkey.start()
        self.done["broker killed"] += 1

    def _empty_broker(self) -> None:
        self.team.valkey.client().flushall()
        self.done["broker emptied"] += 1

    def _kill_database(self) -> None:
        self.team.postgres.kill()
        time.sleep(self._random.uniform(0, 1.5))
        self.team.postgres.start()
        self.done["database killed"] += 1

    def _disturb_store(self) -> None:
        self.team.proxy.mode = self._random.choice(("refuse", "cut", "slow"))
        self.done[f"store: {self.team.proxy.mode}"] += 1
        time.sleep(self._random.uniform(0.2, 1.5))
        self.team.proxy.mode = "pass"

    def _send_again(self, sender: CelerySender) -> None:
        """Send duplicate and late messages, about finished builds too."""
        db = Database(self.team.database_url)
        with contextlib.suppress(Exception):
            with db.read() as session:
                rows = session.execute(select(BuildRow.id, BuildRow.queue)).all()
            for build_id, queue in self._random.sample(rows, min(4, len(rows))):
                sender(Message(build_id=build_id, queue=queue, priority=5))
                self.done["message doubled"] += 1
        db.close()

    # the check ------------------------------------------------------------------------------

    def run(self) -> None:
        model = self.call("POST", "/v1/models", files={"file": ("m.onnx", tiny_model())})
        model.raise_for_status()
        settings = Settings.model_validate({"mode": "team", "broker_url": self.team.valkey.url})
        sender = CelerySender(settings)
        trouble = threading.Thread(target=self.trouble, args=(sender,), daemon=True)
        trouble.start()
        try:
            self.submit(model.json()["id"])
            # what is left when the trouble is over must come to an end
            trouble.join(max(0.0, self._deadline - time.monotonic()))
        finally:
            self._over.set()
            trouble.join(60)
            sender.close()
        self.team.wait_ready()
        self._wait(len(self.submitted))
        self.check()

    def _wait(self, count: int) -> None:
        while sum(self._states().values()) < count:
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"only {self._states()} ended\n{self.team.log()}")
            time.sleep(0.5)

    def _states(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for state in TERMINAL:
            cursor: str | None = None
            while True:
                params = {"state": state, "limit": "200", **({"cursor": cursor} if cursor else {})}
                page = self.call("GET", "/v1/jobs", params=params).json()
                found[state] += len(page["items"])
                cursor = page.get("next_cursor")
                if not cursor:
                    break
        return found

    def check(self) -> None:
        """Compare the database, the object store and the disks with what must hold."""
        self._until(lambda: not self.team.scratch(), lambda: f"left {self.team.scratch()}")
        self._until(lambda: not self.team.compilers(), lambda: f"live {self.team.compilers()}")
        db = Database(self.team.database_url)
        self._until(lambda: not _active(db), lambda: f"{_active(db)} builds have not ended")
        with db.read() as session:
            jobs = list(session.scalars(select(JobRow)))
            builds = {b.id: b for b in session.scalars(select(BuildRow))}
            attempts = list(session.scalars(select(AttemptRow)))
            artifacts = list(session.scalars(select(ArtifactRow)))
            events = list(session.scalars(select(EventRow).where(EventRow.type == "state")))
        db.close()
        if {j.id for j in jobs} != set(self.submitted):
            self.wrong.append(f"{len(jobs)} jobs for {len(self.submitted)} requests")
        for job in jobs:
            kind = self.submitted.get(job.id, "")
            if kind and job.state not in KINDS[kind][1]:
                self.wrong.append(f"{job.id} ({kind}) is {job.state}: {job.failure}")
            build = builds[job.build_id]
            cancelled = job.state == "cancelled"
            if build.state != job.state and not (cancelled and build.state == "succeeded"):
                self.wrong.append(f"{job.id} is {job.state}, its build {build.state}")
            # a cancel ends the job at once, and the build when its compiler is dead
            whose = job.id if cancelled else None
            ends = [
                e for e in events
                if e.build_id == build.id and e.job_id == whose and e.data.get("state") in TERMINAL
            ]  # fmt: skip
            if len(ends) != 1:
                self.wrong.append(f"{job.id} ended {len(ends)} times")
            tries = sorted((a for a in attempts if a.build_id == build.id), key=lambda a: a.number)
            if [a.number for a in tries] != list(range(1, build.fencing + 1)):
                self.wrong.append(f"{job.id} has attempts {[a.number for a in tries]}")
            if any(a.state == "running" for a in tries):
                self.wrong.append(f"{job.id} has an attempt that still runs")
            won = sum(a.state == "succeeded" for a in tries)
            if won != (build.state == "succeeded"):
                self.wrong.append(
                    f"{job.id}'s build is {build.state} with {won} attempts that succeeded"
                )
            kinds = sorted(a.kind for a in artifacts if a.build_id == build.id)
            expected = ["log", "mblt", "mxq", "report"] if build.state == "succeeded" else []
            if kinds != expected:
                self.wrong.append(f"{job.id} ({job.state}) has artifacts {kinds}")
        self._check_objects({(a.sha256, a.size) for a in artifacts})
        self.done["attempts"] = len(attempts)

    def _until(self, holds: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = time.monotonic() + 30
        while not holds():
            if time.monotonic() > deadline:
                self.wrong.append(what())
                return
            time.sleep(0.3)

    def _check_objects(self, named: set[tuple[str, int]]) -> None:
        bucket = self.team.bucket
        client = boto3.client(
            "s3", endpoint_url=bucket["QB_S3_ENDPOINT_URL"], region_name=bucket["QB_S3_REGION"],
            aws_access_key_id=bucket["QB_S3_ACCESS_KEY_ID"],
            aws_secret_access_key=bucket["QB_S3_SECRET_ACCESS_KEY"],
        )  # fmt: skip
        name = bucket["QB_S3_BUCKET"]
        held = {}
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for entry in page.get("Contents", []):
                data = client.get_object(Bucket=name, Key=entry["Key"])["Body"].read()
                digest = entry["Key"].rsplit("/", 1)[-1]
                held[digest] = len(data)
                if hashlib.sha256(data).hexdigest() != digest:
                    self.wrong.append(f"object {digest} has other bytes")
        for digest, size in named:
            if held.get(digest) != size:
                self.wrong.append(f"artifact {digest} is lost")
        if client.list_multipart_uploads(Bucket=name).get("Uploads"):
            self.wrong.append("an upload was left unfinished in the bucket")
        # what attempts stored that were killed before they could say so; the log tells them apart
        self.done["objects that no artifact names"] = len(held) - len({d for d, _ in named}) - 1


def _active(db: Database) -> int:
    with db.read() as session:
        active = select(BuildRow.id).where(BuildRow.state.in_(("queued", "running")))
        return len(session.scalars(active).all())


def soak(folder: Path, jobs: int, acts: int, seed: int, workers: int, seconds: float) -> Soak:
    """Run; what was found wrong is in ``wrong``."""
    with team(folder, ENGINES, workers=workers, QB_MAX_WORKER_LOSSES="100") as made:
        run = Soak(made, jobs, acts, seed, seconds)
        run.run()
        return run


def main() -> int:
    parser = argparse.ArgumentParser(description="Run jobs while processes are killed.")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--acts", type=int, default=100, help="how often something is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1800.0, help="longest run")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qbsoak") as folder:
        run = soak(Path(folder), args.jobs, args.acts, args.seed, args.workers, args.seconds)
    states = Counter(run.submitted.values())
    sys.stdout.write(
        f"{args.jobs} jobs in {time.monotonic() - began:.0f} s, seed {args.seed}\n"
        f"kinds: {json.dumps(states)}\ndone: {json.dumps(run.done)}\n"
    )
    for line in run.wrong:
        sys.stdout.write(f"WRONG: {line}\n")
    sys.stdout.write("every job ended once, as it should\n" if not run.wrong else "")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
