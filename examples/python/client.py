"""Compile on a server from Python, and run what came back.

python client.py --server http://127.0.0.1:8000 model.onnx calibration model.mxq
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from qbcompiler import mxq_compile
from qbcompiler.errors import QbCompilerError
from qbcompiler.runtime import Accelerator, Model


def main() -> int:
    """Compile; say how well it went; run the model once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--target-device", default="regulus-rb")
    for name in ("model", "calibration", "output"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    try:
        result = mxq_compile(
            model=args.model,
            calib_data_path=args.calibration,
            target_device=args.target_device,
            save_path=args.output,
            server=args.server,
        )
    except QbCompilerError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"job {result.summary['job']} (cache: {result.summary['cache']})")
    for output in result.summary["accuracy"]["outputs"]:
        print(f"{output['name']}: SQNR {output['sqnr_db']} dB, cosine {output['cosine']}")

    model = Model(args.output)
    model.launch(Accelerator(args.target_device))
    for sample in sorted(args.calibration.glob("*.npy"))[:3]:
        outputs = model.infer(np.load(sample))
        print(sample.name, *(f"{array.shape} largest at {array.argmax()}" for array in outputs))
    model.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
