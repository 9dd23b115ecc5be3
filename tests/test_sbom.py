"""The list of what a release is made of agrees with the lock file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_locked_package_is_listed_with_hashes_and_a_licence() -> None:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "requirements" / "sbom.py")
    assert spec is not None and spec.loader is not None
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    lock = ROOT / "requirements" / "runtime.txt"
    made = sbom.document(lock)
    pins = [line for line in lock.read_text().splitlines() if "==" in line and line[0].isalnum()]
    assert len(made["components"]) == len(pins) > 50
    assert all(c["properties"] for c in made["components"])
    stated = {c["name"]: c["licenses"][0]["license"]["name"]
              for c in made["components"] if "licenses" in c}  # fmt: skip
    assert len(stated) > 0.9 * len(pins) and "not stated" not in stated.values()
    assert stated["numpy"].startswith("BSD")
    assert json.dumps(made) == json.dumps(sbom.document(lock))
