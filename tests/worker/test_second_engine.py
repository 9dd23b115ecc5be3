"""Another vendor's compiler as an engine, in its own environment, by configuration alone.

Its wheel is not public; a stand-in with its documented command line takes its place. It is
installed as ``qbcompiler``, the name that this project's compiler has too, so that the two would be
confused if anything of the worker's environment came through.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from service.db import ArtifactStore
from service.domain import ArtifactKind, JobKind, State, build_key
from service.engines import list_engines
from service.settings import EngineSettings, Settings
from worker.build import Builder
from worker.engine import EngineError, probe_version

from .house import House, Make

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.parametrize("any_database_url", ["sqlite"], indirect=True)


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A virtual environment with the vendor's package; returns its Python."""
    home = tmp_path / "vendor"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    package = home / "lib" / version / "site-packages" / "qbcompiler"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.3.0"\n')
    shutil.copy(Path(__file__).with_name("vendor_engine.py"), package / "__main__.py")
    (home / "bin").mkdir()
    base = Path(sys.base_prefix) / "bin" / version
    (home / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = {sys.version.split()[0]}\n")
    (home / "bin" / "python").symlink_to(base)
    return home / "bin" / "python"


def attached(h: House, python: Path, version: str = "1.3.0") -> Settings:
    engine = EngineSettings(command=[str(python), "-m", "qbcompiler"], version=version)
    return h.settings.model_copy(update={"engines": {"stand-in": engine}})


@pytest.mark.parametrize("kind", list(JobKind), ids=lambda k: k.value)
def test_its_packages_are_the_jobs_artifacts(
    kind: JobKind, house: Make, vendor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this project's compiler, where Python looks first
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "compiler"))
    monkeypatch.setenv("QB_SIGNING_SECRET", "s" * 40)
    h = house("good")
    builder: Builder = replace(h.builder, settings=attached(h, vendor))
    view = h.submit(kind)
    assert builder.run(view.job.build_id)
    job = h.job(view.job.id).job
    assert job.state is State.SUCCEEDED, (job.failure, h.log(view))
    artifacts = ArtifactStore(h.db).of_builds([view.job.build_id])[view.job.build_id]
    by_kind = {a.kind: a for a in artifacts}
    expected = {
        JobKind.COMPILE: {"mxq", "mblt", "report", "config"},
        JobKind.PARSE: {"mblt"},
        JobKind.QUANTIZE: {"mxq", "report", "config"},
    }[kind]
    assert {k.value for k in by_kind} - {"log"} == expected
    package = ArtifactKind.MBLT if kind is JobKind.PARSE else ArtifactKind.MXQ
    made = json.loads(b"".join(h.store.read(by_kind[package].sha256)))
    assert made["made_by"] == "vendor 1.3.0" and made["command"] == kind.value
    assert Path(made["package"]).is_relative_to(vendor.parents[1])
    assert made["environment"] == []
    assert made["input"] == view.build.spec.model.files[0].sha256


def test_its_check_runs_as_its_builds_do(house: Make, vendor: Path) -> None:
    """``qbserver doctor`` finds it, and says what is wrong where it does not."""
    h = house("good")
    assert probe_version(attached(h, vendor), "stand-in") == "qb Compiler 1.3.0"
    (vendor.parents[1] / "pyvenv.cfg").unlink()
    shutil.rmtree(vendor.parents[1] / "lib")
    with pytest.raises(EngineError, match="No module named"):
        probe_version(attached(h, vendor), "stand-in")


def test_its_version_makes_its_builds_others(house: Make, vendor: Path) -> None:
    h = house("good")
    engines = list_engines(attached(h, vendor))
    assert list(engines) == ["qbcompiler", "stand-in"]
    assert engines["stand-in"].queue == "qb.stand-in" and not engines["stand-in"].builtin
    spec = h.submit().build.spec
    other = replace(spec, engine_version="1.4.0")
    own = replace(spec, engine="qbcompiler")
    assert len({build_key(s) for s in (spec, other, own)}) == 3
