"""Every operation against generated requests: no fault of ours, no undocumented answer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from service.settings import Settings

from .live import serving

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,negative_data_rejection,"
    "allow_header_conformance,unsupported_method,use_after_free"
)


def test_generated_requests(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path / "data",
        max_wait_seconds=0.1,
        sse_keepalive_seconds=0.2,
        poll_seconds=0.05,
    )
    with serving(settings) as live:
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/openapi.json",
                "--checks", CHECKS, "--max-examples", "10", "--seed", "1",
                "--request-timeout", "30", "--continue-on-failure", "--no-color",
                # a stream that goes on until its job has ended
                "--exclude-operation-id", "job_events",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )  # fmt: skip
    output = re.sub(r"(.)\1{200,}", r"\1…", done.stdout)
    assert done.returncode == 0, output[-6000:]
    tested = re.search(r"Tested: (\d+)", output)
    assert tested is not None and int(tested[1]) >= 30, output[-3000:]
