"""Real transformers: each encoder block, attention included, is in one NPU body."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qbcompiler import mxq_compile
from qbcompiler.devices import load_device
from qbcompiler.frontend import load_model, parse
from qbcompiler.ir import Graph
from qbcompiler.partition import partition
from qbcompiler.runtime.float_engine import FloatEngine

TOKENS = 64
SENTENCES = (
    "the cat sat on the mat",
    "a cat was sitting on the mat",
    "interest rates rose again this quarter",
)


def graph_of(path: Path) -> Graph:
    return parse(load_model(path), input_shapes={})


@pytest.fixture(scope="module")
def minilm(models_dir: Path) -> Path:
    """all-MiniLM-L6-v2 as torch exports it, for one sentence of 64 tokens."""
    return models_dir / "minilm.onnx"


@pytest.fixture(scope="module")
def tokens(models_dir: Path) -> list[dict[str, Any]]:
    """The sentences word by word: each of their words is a token of its own."""
    known = json.loads((models_dir / "minilm_tokenizer.json").read_text())["model"]["vocab"]
    found = []
    for sentence in SENTENCES:
        ids = [known["[CLS]"], *(known[w] for w in sentence.split()), known["[SEP]"]]
        mask = np.zeros((1, TOKENS), np.int64)
        mask[0, : len(ids)] = 1
        padded = np.zeros((1, TOKENS), np.int64)
        padded[0, : len(ids)] = ids
        found.append(
            {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
        )
    return found


def embedding(hidden: Any, mask: Any) -> Any:
    """Mean over the sentence's tokens, of length 1."""
    mean = (hidden * mask[..., None]).sum(1)[0]
    return mean / np.linalg.norm(mean)


def test_minilm_gives_onnx_runtimes_outputs(minilm: Path, tokens: Any) -> None:
    session = ort.InferenceSession(str(minilm), providers=["CPUExecutionProvider"])
    engine = FloatEngine(graph_of(minilm))
    for feed in tokens:
        (want,) = session.run(None, feed)
        got = engine.run(feed)["last_hidden_state"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.parametrize("device", ["aries-rb", "regulus-rb"])
def test_minilms_blocks_are_one_body(minilm: Path, device: str) -> None:
    parts = partition(graph_of(minilm), load_device(device), cpu_offload=True)
    assert parts.body is not None and parts.head is not None and parts.tail is None
    assert dict(sorted(Counter(n.op for n in parts.body.nodes).items())) == {
        "Adding": 19,
        "AddingConstant": 1,
        "Gelu": 6,
        "HeaderView": 18,
        "HeaderViewRevert": 6,
        "LayerNormalization": 13,
        "MatMul": 48,
        "Softmax": 6,
    }
    # only the look-up of tokens and the mask are before it
    assert {n.op for n in parts.head.nodes} <= {"Gather", "Cast", "Reshape", "Logical", "Where"}


@pytest.mark.parametrize("device", ["aries-rb", "regulus-rb"])
def test_the_vits_blocks_are_one_body(digits_vit: Path, device: str) -> None:
    parts = partition(graph_of(digits_vit), load_device(device), cpu_offload=False)
    assert parts.body is not None and parts.head is None and parts.tail is None
    found = Counter(n.op for n in parts.body.nodes)
    assert (found["HeaderView"], found["HeaderViewRevert"], found["Softmax"]) == (9, 3, 3)


def test_minilm_compiles_and_keeps_its_neighbours(
    minilm: Path, tokens: Any, tmp_path: Path
) -> None:
    from qbcompiler.runtime import Accelerator, Model

    for number, feed in enumerate(tokens):
        np.savez(tmp_path / f"{number}.npz", **feed)
    result = mxq_compile(
        minilm, save_path=tmp_path / "minilm.mxq", target_device="regulus-rb", cpu_offload=True,
        calib_data_path=[tmp_path / f"{n}.npz" for n in range(3)],
        compile_config={"calibration": {"method": 2}},
    )  # fmt: skip
    assert result.summary["accuracy"]["outputs"][0]["cosine"] > 0.7
    model = Model(tmp_path / "minilm.mxq")
    model.launch(Accelerator("regulus-rb"))
    names = ("input_ids", "attention_mask", "token_type_ids")
    vectors = [
        embedding(model.infer([feed[n] for n in names])[0], feed["attention_mask"])
        for feed in tokens
    ]
    model.dispose()
    close, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert close > far + 0.3, (close, far)


def test_efficientnet_gives_onnx_runtimes_outputs(models_dir: Path) -> None:
    path = models_dir / "efficientnet_lite0.onnx"
    from skimage import data

    image = data.astronaut()[:448:2, :448:2].astype(np.float32)
    x = ((image - 127.0) / 128.0).transpose(2, 0, 1)[None]
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"image": x})
    graph = graph_of(path)
    got = FloatEngine(graph).run({"image": x})["logits"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
    assert {n.op for n in graph.nodes} == {
        "Adding", "Clip", "Convolution", "DepthwiseConvolution", "GlobalAveragePooling", "MatMul",
        "Reshape",
    }  # fmt: skip
