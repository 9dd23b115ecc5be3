"""Write what a release is made of: a CycloneDX list (JSON) with versions, hashes and licences.

Of ``runtime.txt``, which is all that the image installs; licences are those that the installed
packages state. The same lock file and packages give the same bytes.

    python requirements/sbom.py [build/sbom.json]
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def locked(path: Path) -> list[tuple[str, str, list[str]]]:
    """Return name, version and SHA-256 of each file that may be installed, by package."""
    found: list[tuple[str, str, list[str]]] = []
    for line in path.read_text("utf-8").splitlines():
        if (pin := _PIN.match(line)) is not None:
            found.append((pin[1], pin[2], []))
        if (hashed := _HASH.search(line)) is not None:
            found[-1][2].append(hashed[1])
    return found


def licence(name: str) -> str:
    """Return the licence that an installed package states, "" where it is not installed."""
    try:
        about: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    stated: str = about.get("License-Expression") or ""
    classified = [
        c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License")
    ]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return stated or " AND ".join(classified) or text[:80] or "not stated"


def document(path: Path) -> dict[str, Any]:
    """Return the list as CycloneDX 1.5 has it."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    components = []
    for name, version, hashes in locked(path):
        entry: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "properties": [{"name": "file:sha256", "value": h} for h in hashes],
        }
        if stated := licence(name):
            entry["licenses"] = [{"license": {"name": stated}}]
        components.append(entry)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": project["name"],
                "version": str(project.get("version", "")),
            }
        },
        "components": components,
    }


def main() -> None:
    """Write the list, and print name, version and licence of each package."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "build" / "sbom.json"
    made = document(HERE / "runtime.txt")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    for entry in made["components"]:
        stated = entry.get("licenses", [{"license": {"name": "not installed here"}}])
        print(f"{entry['name']:40} {entry['version']:16} {stated[0]['license']['name']}")


if __name__ == "__main__":
    main()
