"""The page's libraries are those of their packages."""

from __future__ import annotations

import json

import pytest

from requirements import vendor


def test_the_committed_files_are_as_pinned() -> None:
    packages = json.loads(vendor.PINS.read_text())
    assert vendor.problems(packages) == []
    for package in packages:
        assert package["integrity"].startswith("sha512-")
        # one package has its licence in its package.json alone
        assert {"LICENSE", "package.json"} & package["files"].keys()


def test_a_change_is_found(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = json.loads(vendor.PINS.read_text())
    for package in packages:
        folder = tmp_path / package["folder"]
        folder.mkdir()
        for path in package["files"]:
            name = path.rpartition("/")[2]
            (folder / name).write_bytes((vendor.VENDOR / package["folder"] / name).read_bytes())
    monkeypatch.setattr(vendor, "VENDOR", tmp_path)
    monkeypatch.setattr(vendor, "PINS", tmp_path / "packages.json")
    assert vendor.problems(packages) == []
    (tmp_path / "dagre" / "more.js").write_text("more")
    (tmp_path / "uplot" / "LICENSE").unlink()
    (tmp_path / "uplot" / "uPlot.min.css").write_text("changed")
    assert [line.partition(":")[0] for line in vendor.problems(packages)] == [
        "uplot/LICENSE", "dagre/more.js", "uplot/uPlot.min.css",
    ]  # fmt: skip
