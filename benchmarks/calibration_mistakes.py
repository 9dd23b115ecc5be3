"""What wrong calibration samples cost: EfficientNet-Lite0, each mistake alone.

    python -m benchmarks.calibration_mistakes [--samples 32] [--evaluate 32]

The model is calibrated with samples that have one mistake, and judged on held-out samples
without it against the float model. ``docs/calibration-data.md`` quotes the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from qbcompiler import mxq_compile
from qbcompiler.runtime import Accelerator, Model

from .quantization_models import _MEAN, _STD, ROOT, _photographs

Float32 = NDArray[np.float32]
DEVICE = "regulus-rb"


def mistakes(right: Float32) -> dict[str, Float32]:
    """Return the samples, right and with each mistake; ``right`` is N x 3 x 224 x 224."""
    mean, std = (np.asarray(x, np.float32).reshape(3, 1, 1) for x in (_MEAN, _STD))
    pixels = (right * std + mean) * 255
    rng = np.random.default_rng(0)
    return {
        "as in training": right,
        "BGR in the place of RGB": (pixels[:, ::-1] / 255 - mean) / std,
        "pixels of 0..255, not normalized": pixels,
        "pixels of 0..1, mean and deviation left out": pixels / 255,
        "normalized twice": (right - mean) / std,
        "rows and channels mixed up": right.transpose(0, 2, 3, 1).reshape(right.shape),
        "normal noise": rng.standard_normal(right.shape, np.float32),
        "one sample alone": right[:1],
    }


def judge(mxq: Path, samples: Float32, expected: Float32) -> tuple[float, float]:
    """Return the SQNR in dB and the share of samples with the float model's class."""
    model = Model(mxq)
    model.launch(Accelerator(DEVICE))
    got = np.stack([model.infer_chw(x)[0].reshape(-1) for x in samples])
    model.dispose()
    noise = float(np.square(got.astype(np.float64) - expected).sum())
    sqnr = 10 * np.log10(float(np.square(expected.astype(np.float64)).sum()) / noise)
    return sqnr, float((got.argmax(1) == expected.argmax(1)).mean())


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--evaluate", type=int, default=32)
    args = parser.parse_args()
    path = ROOT / "models" / "efficientnet_lite0.onnx"
    held_out = _photographs(1, args.evaluate)
    session = onnxruntime.InferenceSession(path)
    name = session.get_inputs()[0].name
    expected = np.concatenate([session.run(None, {name: x[None]})[0] for x in held_out])
    print("| calibration samples | SQNR, dB | same class as the float model |")
    print("| --- | --- | --- |")
    for what, samples in mistakes(_photographs(0, args.samples)).items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "calibration"
            folder.mkdir()
            for i, sample in enumerate(samples):
                np.save(folder / f"{i:03}.npy", sample.astype(np.float32))
            mxq = Path(scratch) / "model.mxq"
            mxq_compile(
                model=path, calib_data_path=folder, target_device=DEVICE, save_path=mxq,
                compile_config={"calibration": {"mode": 1}, "preprocessing": {"apply": False}},
            )  # fmt: skip
            sqnr, same = judge(mxq, held_out, expected)
            print(f"| {what} | {sqnr:.1f} | {same:.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
