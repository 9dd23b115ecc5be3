"""Write the lock files: ``runtime.txt`` and ``dev.txt`` (universal, 3.11 to 3.13), ``models.txt``.

Needs the ``uv`` command. The files carry hashes and no index address, so that any mirror serves.
Versions stay as they are where they still fit; with ``--upgrade`` the newest ones are taken.

    python requirements/lock.py [--upgrade]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
# With extras kept: pip refuses a hashed file in which "name" stands for a wanted "name[extra]".
COMMON = ["--generate-hashes", "--no-header", "--no-annotate", "--no-strip-extras", "--quiet"]


def main() -> None:
    """Resolve again from pyproject.toml and the ``.in`` files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade: bool = parser.parse_args().upgrade
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not installed: pip install uv")
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    lines = ["# Written by lock.py from pyproject.toml; the build back end comes with it."]
    lines += [*sorted(project["dependencies"], key=str.lower), "setuptools>=77"]
    (HERE / "runtime.in").write_text("\n".join(lines) + "\n")
    universal = [*COMMON, "--universal", "--python-version", "3.11"]
    if upgrade:
        universal.append("--upgrade")
    run(uv, "dev.in", "dev.txt", *universal)
    run(uv, "runtime.in", "runtime.txt", *universal, "--constraint", "dev.txt")
    run(uv, "models.in", "models.txt", *COMMON, "--python-version", "3.11", "--no-deps")


def run(uv: str, source: str, target: str, *options: str) -> None:
    """Compile one file."""
    command = [uv, "pip", "compile", source, "--output-file", target, *options]
    subprocess.run(command, check=True, cwd=HERE)


if __name__ == "__main__":
    main()
