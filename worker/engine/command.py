"""The command line of an engine for a build."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.domain import BuildSpec, compiler_arguments
from service.settings import BUILTIN_ENGINE, Settings, SettingsError
from worker.sandbox import (
    Sandbox,
    SandboxMode,
    device_paths,
    installation_of,
    kernel_support,
    system_paths,
    without,
)

from .process import launch_command

__all__ = [
    "EngineError",
    "Inputs",
    "build_command",
    "check_sandbox",
    "engine_command",
    "engine_env",
    "engine_sandbox",
    "probe_version",
]

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
# where the worker's own packages are: another engine would import them in place of its own
_OWN_PACKAGES = ("PYTHONPATH", "VIRTUAL_ENV")


class EngineError(Exception):
    """The settings have no such engine, or it does not run."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Local paths of a build.

    Attributes:
        model: the model or MBLT.
        calibration: what to calibrate with; None for none or random data.
        output: folder for the results.
    """

    model: Path
    calibration: Path | None
    output: Path


def engine_command(settings: Settings, name: str) -> list[str]:
    """Return the words in front of ``compile``, ``parse`` or ``quantize``.

    Raises:
        EngineError: the settings have no such engine.
    """
    if name == BUILTIN_ENGINE:
        return [sys.executable, "-m", "qbcompiler"]
    if name not in settings.engines:
        raise EngineError(f"this worker has no engine {name!r}; it is not in its QB_ENGINES")
    return list(settings.engines[name].command)


def engine_env(
    scratch: Path, threads: int, cache: Path | None = None, *, own: bool = True
) -> dict[str, str]:
    """Return the engine's environment: no secrets, a home and temporary folder of its own.

    Args:
        scratch: the home and temporary folder.
        threads: how many the engine may start; 0 leaves it to the engine.
        cache: where the built-in engine keeps what later builds can use.
        own: whether the engine is the built-in one, which has its packages where the worker has.
    """
    passed_on = (*_PASSED_ON, *(_OWN_PACKAGES if own else ()))
    env = {k: os.environ[k] for k in passed_on if k in os.environ}
    env |= {
        "QBCOMPILER_JSONL": "1",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if cache is not None:
        env["QBCOMPILER_CACHE_DIR"] = str(cache)
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def build_command(command: Sequence[str], spec: BuildSpec, inputs: Inputs, root: Path) -> list[str]:
    """Return the whole command of a build; writes the configuration file where there is one.

    What the caller gave is passed on as it was given (preset, configuration, options), so that
    the engine resolves it as a person's own run would. Paths are relative to ``root``, the
    engine's working folder, so that no message of the engine tells where the server keeps files.
    """
    config = None
    if spec.compile_config:
        path = inputs.output / "request-config.json"
        path.write_text(json.dumps(dict(spec.compile_config)), encoding="utf-8")
        config = str(path.relative_to(root))
    calibration = inputs.calibration
    return [
        *command,
        *compiler_arguments(
            spec,
            model=str(inputs.model.relative_to(root)),
            output=str(inputs.output.relative_to(root)),
            calibration=None if calibration is None else str(calibration.relative_to(root)),
            config=config,
            own=spec.engine == BUILTIN_ENGINE,
        ),
    ]


def engine_sandbox(settings: Settings, name: str, cache: Path | None = None) -> Sandbox:
    """Return what an engine may touch beside its scratch folder.

    Raises:
        EngineError: the settings have no such engine.
    """
    command = engine_command(settings, name)
    paths = [*system_paths(), *installation_of(command, settings.data_dir)]
    own = name == BUILTIN_ENGINE
    for variable in ("LD_LIBRARY_PATH", *(_OWN_PACKAGES if own else ())):
        paths += [p for p in os.environ.get(variable, "").split(os.pathsep) if p.startswith("/")]
    writable = list(device_paths())
    network = False
    if own:
        paths += [sys.prefix, sys.base_prefix, *_package_folders()]
    else:
        engine = settings.engines[name]
        paths += map(str, engine.readable)
        writable += map(str, engine.writable)
        network = engine.network
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        writable.append(str(cache))
    readable = (str(p) for path in paths for p in without(Path(path), settings.data_dir))
    return Sandbox(
        SandboxMode(settings.sandbox), tuple(dict.fromkeys(readable)), tuple(writable), network
    )


def check_sandbox(settings: Settings) -> str:
    """Return what engines are kept from, and what they are not.

    Raises:
        SettingsError: a sandbox is required and the kernel does not allow a whole one.
    """
    mode = SandboxMode(settings.sandbox)
    if mode is SandboxMode.OFF:
        return "off (QB_SANDBOX): engines reach the network and all files of this user"
    support = kernel_support()
    missing = support.missing()
    if missing and mode is SandboxMode.REQUIRE:
        raise SettingsError(
            f"QB_SANDBOX=require, but this kernel cannot refuse {'; '.join(missing)}"
        )
    text = f"{mode.value}: {support}"
    return f"{text}; engines are NOT kept from {'; '.join(missing)}" if missing else text


def _package_folders() -> list[str]:
    """Return where the built-in engine and what it needs are imported from."""
    folders = []
    for package in ("qbcompiler", "numpy"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parents[1]))
    return folders


def probe_version(settings: Settings, name: str, timeout_s: float = 60.0) -> str:
    """Run an engine's ``check`` as builds run it and return its output: proof that it starts.

    Raises:
        EngineError: it does not start, fails or does not answer in time.
    """
    command = engine_command(settings, name)
    said = f"{' '.join(command)} check"
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        scratch = Path(folder)
        env = engine_env(scratch, settings.worker_threads, own=name == BUILTIN_ENGINE)
        del env["QBCOMPILER_JSONL"]
        try:
            done = subprocess.run(
                launch_command([*command, "check"], scratch, engine_sandbox(settings, name)),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                cwd=scratch,
                env=env,
            )
        except OSError as exc:
            raise EngineError(f"{command[0]} cannot be started: {exc.strerror}") from exc
        except subprocess.TimeoutExpired as exc:
            raise EngineError(f"{said}: no answer in {timeout_s:.0f} s") from exc
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"{said} ended with {done.returncode}: {last}")
    return done.stdout.strip()
