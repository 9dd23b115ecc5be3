"""Every operation against generated requests: no fault of ours, no undocumented answer.

A longer search than that of the suite:

    QB_API_EXAMPLES=300 python -m pytest tests/service/test_schemathesis.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings import Settings

from .live import Live, serving

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "negative_data_rejection",
    "allow_header_conformance", "unsupported_method", "use_after_free",
)  # fmt: skip
# OpenAPI 3.1 describes a stream as one text; the check of schemas looks at each event as an object
CONFIG = (
    "[checks]\nenabled = false\n"
    + "".join(f"{check}.enabled = true\n" for check in CHECKS)
    + '[[operations]]\ninclude-operation-id = "job_events"\n'
    "checks.response_schema_conformance.enabled = false\n"
)
EXAMPLES = int(os.environ.get("QB_API_EXAMPLES", "10"))
# the suite's ten take half a minute
SECONDS = 240 + 10 * EXAMPLES


def _settings(folder: Path) -> Settings:
    return Settings(
        data_dir=folder / "data", max_wait_seconds=0.1, sse_keepalive_seconds=0.2, poll_seconds=0.05
    )


def _search(live: Live, folder: Path, *more: str, config: str = "") -> int:
    """Run schemathesis; return how many operations it tested."""
    (folder / "schemathesis.toml").write_text(config + CONFIG, "utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/openapi.json",
            "--seed", "1", "--request-timeout", "30",
            "--continue-on-failure", "--no-color", *more,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    output = re.sub(r"(.)\1{200,}", r"\1…", done.stdout)
    assert done.returncode == 0, output[-6000:] + done.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", output)
    assert tested is not None, output[-3000:]
    return int(tested[1])


@pytest.mark.timeout(SECONDS + 60)
def test_generated_requests(tmp_path: Path) -> None:
    """Every operation, on a server that holds nothing."""
    with serving(_settings(tmp_path)) as live:
        paths = live.http.get("/openapi.json").json()["paths"]
        every = sum(len(item) for item in paths.values())
        assert _search(live, tmp_path, "--max-examples", str(EXAMPLES)) == every


@pytest.mark.timeout(SECONDS + 60)
def test_generated_requests_for_what_is_there(tmp_path: Path) -> None:
    """Every reading operation, with the ids of a job that succeeded and of what belongs to it."""
    with serving(_settings(tmp_path)) as live:
        model, calibration = live.upload(), live.calibrate()
        job = live.parse_job(model_id=model["id"])
        artifact = live.finish(job)
        link = live.http.post(f"/v1/artifacts/{artifact['id']}/links", json={}).json()
        ids = {
            "model_id": model["id"],
            "calibration_id": calibration["id"],
            "job_id": job["id"],
            "artifact_id": artifact["id"],
            "link_id": link["id"],
        }
        values = "".join(f'"path.{name}" = "{value}"\n' for name, value in ids.items())
        tested = _search(
            live, tmp_path, "--max-examples", str(max(3, EXAMPLES // 3)),
            "--include-method", "GET", "--include-method", "HEAD", "--mode", "positive",
            "--phases", "examples,coverage,fuzzing", config=f"[parameters]\n{values}",
        )  # fmt: skip
        assert tested >= 20
        # the ids were taken: each of these was answered with 200 at least once
        metrics = live.http.get("/metrics").text
        for route in ("/v1/jobs/{job_id}", "/v1/jobs/{job_id}/bundle", "/v1/jobs/{job_id}/events",
                      "/v1/artifacts/{artifact_id}/content", "/v1/models/{model_id}"):  # fmt: skip
            assert re.search(rf'route="{re.escape(route)}",status="200"', metrics), route
