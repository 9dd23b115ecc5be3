"""The compose file and the image: pinned, hardened, and spelt with settings that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
OURS = [name for name, s in COMPOSE["services"].items() if "build" in s]
SECRETS = ("QB_SIGNING_SECRET", "POSTGRES_PASSWORD", "S3_SECRET_KEY")


def test_the_services_are_those_of_a_team() -> None:
    assert set(OURS) >= {"service", "worker", "migrate"}
    assert {"postgres", "valkey", "s3"} <= set(COMPOSE["services"])


@pytest.mark.parametrize("name", OURS)
def test_our_containers_may_do_little(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "network_mode", "pid", "user"} & set(service)
    settings = {f"QB_{field.upper()}" for field in Settings.model_fields}
    used = {key for key in service["environment"] if key.startswith("QB_")}
    assert used and used <= settings, used - settings


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_images_are_pinned_and_watched(name: str) -> None:
    service = COMPOSE["services"][name]
    image, _, tag = service["image"].rpartition(":")
    assert image and re.match(r"v?\d+(\.\d+)+", tag), service["image"]
    # ours have the image's own check, unless they run once
    assert "healthcheck" in service or name in OURS
    for value in re.findall(r"\$\{(\w+)[^}]*\}", str(service)):
        assert value.startswith(("QB_", "POSTGRES_", "S3_"))
    # only the service is reached from outside, and by default from this host only
    for port in service.get("ports", []):
        assert name == "service" and port.startswith("${QB_LISTEN:-127.0.0.1:")


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    for secret in SECRETS:
        uses = re.findall(r"\$\{" + secret + r"([^}]*)\}", text)
        assert uses and all(use.startswith(":?") for use in uses), secret


def test_the_image_runs_as_nobody_special() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
    assert len(stages) == 2
    for stage in stages:
        assert re.match(r"\S+:\d+\.\d+\.\d+-\S+", stage), stage.splitlines()[0]
    last = stages[-1]
    assert re.search(r"^USER \d+$", last, re.M) and "HEALTHCHECK" in last
    assert "--require-hashes" in DOCKERFILE
    # what the build copies is what .dockerignore lets through
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }  # fmt: skip
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            assert source in allowed and (ROOT / source).exists(), source


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="needs Docker Compose")
def test_compose_reads_it() -> None:
    import os

    env = {**os.environ, **dict.fromkeys(SECRETS, "0123456789abcdef0123456789abcdef")}
    done = subprocess.run(
        ["docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    del env[SECRETS[0]]
    refused = subprocess.run(
        ["docker", "compose", "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode != 0 and SECRETS[0] in refused.stderr
