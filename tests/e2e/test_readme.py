"""The README's commands, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .server import serving

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(kind: str) -> list[str]:
    """Return the code blocks that the README marks as tested."""
    found = re.findall(rf"<!-- test: {kind} -->\n```\w+\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"the README has no block of kind {kind!r}"
    return list(found)


@pytest.fixture
def folder(tmp_path: Path, digits_cnn: Path, digits) -> Path:
    """A folder as the README supposes it: ``model.onnx`` and ``calibration/NNN.npy``."""
    shutil.copy(digits_cnn, tmp_path / "model.onnx")
    (tmp_path / "calibration").mkdir()
    for i, image in enumerate(digits.train_images[:16]):
        np.save(tmp_path / "calibration" / f"{i:03}.npy", image.transpose(1, 2, 0))
    return tmp_path


def run(folder: Path, *command: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("QB_", "QBCOMPILER_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_line_blocks_work_and_agree(folder):
    for block in blocks("command line"):
        run(folder, "bash", "-euo", "pipefail", "-c", block)
    assert (folder / "model.mxq").read_bytes() == (folder / "again.mxq").read_bytes()


def test_the_python_block_works(folder):
    (block,) = blocks("python")
    run(folder, sys.executable, "-c", block + "\nassert outputs[0].shape == (1, 10)\n")
    assert (folder / "model.mxq").is_file()


@pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")), reason="the block needs curl and jq"
)
def test_the_curl_block_works(folder, tmp_path_factory):
    (block,) = blocks("curl")
    with serving(tmp_path_factory.mktemp("server") / "data") as server:
        script = block.replace("http://127.0.0.1:8000", server.url)
        assert server.url in script
        output = run(folder, "bash", "-euo", "pipefail", "-c", script)
        assert output.rstrip().endswith("model.mxq: OK")
    assert (folder / "model.mxq").stat().st_size > 1000
