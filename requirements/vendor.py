"""Fetch the page's JavaScript libraries again, and check those that are committed.

The files under ``service/web/vendor`` are committed as their packages have them, so that neither
the server nor its tests need Node. ``packages.json`` there pins each package's version, the
integrity of its archive and the SHA-256 of each file taken from it. To take a newer version, edit
the version, set the integrity to an empty string, and run this; it needs the ``npm`` command.

    python requirements/vendor.py           # fetch, check, write the files and their digests
    python requirements/vendor.py --check   # compare the committed files; needs neither npm nor net
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parents[1] / "service" / "web" / "vendor"
PINS = VENDOR / "packages.json"
MAX_FILE = 5 << 20


def main() -> None:
    """Fetch, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare the committed files")
    packages: list[dict[str, Any]] = json.loads(PINS.read_text())
    if parser.parse_args().check:
        found = problems(packages)
        sys.exit("\n".join(found) if found else 0)
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed; it comes with Node.js")
    for package in packages:
        with tempfile.TemporaryDirectory() as scratch:
            fetch(npm, package, Path(scratch))
    PINS.write_text(json.dumps(packages, indent=2) + "\n")


def problems(packages: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the committed files; empty when they are as pinned."""
    pinned = {
        f"{package['folder']}/{Path(path).name}": digest
        for package in packages
        for path, digest in package["files"].items()
    }
    there = {
        str(path.relative_to(VENDOR)): path
        for path in VENDOR.rglob("*")
        if path.is_file() and path != PINS
    }
    found = [f"{name}: missing" for name in sorted(pinned.keys() - there.keys())]
    found += [f"{name}: not pinned in packages.json" for name in sorted(there.keys() - pinned)]
    for name in sorted(pinned.keys() & there.keys()):
        data = there[name].read_bytes()
        if hashlib.sha256(data).hexdigest() != pinned[name]:
            found.append(f"{name}: not as pinned; run requirements/vendor.py")
        if len(data) > MAX_FILE:
            found.append(f"{name}: larger than {MAX_FILE} bytes")
    return found


def fetch(npm: str, package: dict[str, Any], scratch: Path) -> None:
    """Take a package's files from its archive, after checking the archive's integrity."""
    name = f"{package['name']}@{package['version']}"
    subprocess.run(
        [npm, "pack", name, "--silent", "--ignore-scripts"],
        cwd=scratch, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (archive,) = scratch.iterdir()
    digest = hashlib.sha512(archive.read_bytes()).digest()
    integrity = f"sha512-{base64.b64encode(digest).decode()}"
    if package["integrity"] not in ("", integrity):
        sys.exit(f"{name}: the archive's integrity is {integrity}, not {package['integrity']}")
    package["integrity"] = integrity
    folder = VENDOR / package["folder"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for path in package["files"]:
            file = tar.extractfile(f"package/{path}")
            assert file is not None, f"{name} has no file {path}"
            data = file.read()
            (folder / Path(path).name).write_bytes(data)
            package["files"][path] = hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
