"""The command line of an engine for a build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.domain import BuildSpec, compiler_arguments
from service.settings import BUILTIN_ENGINE, Settings

__all__ = [
    "EngineError",
    "Inputs",
    "build_command",
    "engine_command",
    "engine_env",
    "probe_version",
]

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")


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


def engine_env(scratch: Path, threads: int, cache: Path | None = None) -> dict[str, str]:
    """Return the engine's environment: no secrets, a home and temporary folder of its own.

    ``cache`` is where the built-in engine keeps what later builds can use.
    """
    env = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
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


def probe_version(command: Sequence[str], timeout_s: float = 60.0) -> str:
    """Run ``COMMAND check`` and return its output: proof that the engine starts.

    Raises:
        EngineError: it does not start, fails or does not answer in time.
    """
    try:
        done = subprocess.run(
            [*command, "check"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if k != "QBCOMPILER_JSONL"},
        )
    except OSError as exc:
        raise EngineError(f"{command[0]} cannot be started: {exc.strerror}") from exc
    except subprocess.TimeoutExpired as exc:
        raise EngineError(f"{' '.join(command)} check: no answer in {timeout_s:.0f} s") from exc
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"{' '.join(command)} check ended with {done.returncode}: {last}")
    return done.stdout.strip()
