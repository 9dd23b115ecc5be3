"""ONNX's own back-end suite through parse, MBLT, read and the float engine.

Each case is parsed, written as an MBLT, read back and run; its outputs must equal the suite's
at the suite's tolerances. ``onnx_suite/exclusions.yaml`` lists what is left out, by name and
reason. The list can only shrink: an excluded case that passes is a failure here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml

from qbcompiler.errors import QbCompilerError
from qbcompiler.frontend import load_model, parse
from qbcompiler.package import MbltMeta, read_mblt, write_mblt
from qbcompiler.partition import partition
from qbcompiler.runtime.float_engine import FloatEngine

from .onnx_suite.cases import SuiteCase, file_cases, light_models, max_error, node_cases

EXCLUSIONS: dict[str, str] = yaml.safe_load(
    (Path(__file__).parent / "onnx_suite" / "exclusions.yaml").read_text(encoding="utf-8")
)
GOAL = 0.97


def run_case(case: SuiteCase, folder: Path) -> str | None:
    """Return None when the case passes, else one line that says what failed."""
    inputs, expected = case.data[0]
    names = [i.name for i in case.model.graph.input]
    feed = {n: as_array(x) for n, x in zip(names, inputs, strict=False)}
    shapes = {n: x.shape for n, x in feed.items()}
    try:
        source = load_model(case.model)
        graph = parse(source, input_shapes=shapes)
        path = folder / "case.mblt"
        write_mblt(path, partition(graph), MbltMeta(source.sha256))
        with read_mblt(path) as mblt:
            engine = FloatEngine(mblt.graph)
            outputs = engine.run({n: x for n, x in feed.items() if n in mblt.graph.inputs})
    except QbCompilerError as exc:
        return f"{exc.code}: {exc.message}"
    for info, want in zip(case.model.graph.output, expected, strict=False):
        problem = compare(outputs[info.name], as_array(want), case)
        if problem:
            return f"output {info.name!r}: {problem}"
    return None


def as_array(value: Any) -> Any:
    """Types that NumPy lacks come as ``TensorProto``."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def compare(got: Any, want: Any, case: SuiteCase) -> str | None:
    """Compare as the suite's own runner does: dtype, shape, then the tolerances."""
    got = np.asarray(got)
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, expected {want.dtype}"
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype == object:
        texts = [[_text(v) for v in a.reshape(-1)] for a in (got, want)]
        return None if texts[0] == texts[1] else f"strings {texts[0]}, expected {texts[1]}"
    if want.dtype.kind not in "fiub" or want.dtype.itemsize < 4:
        got, want = got.astype(np.float64), want.astype(np.float64)
    if np.allclose(got, want, rtol=case.rtol, atol=case.atol, equal_nan=True):
        return None
    return max_error(got, want)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("name", sorted({**node_cases(), **file_cases()}))
def test_case(name: str, tmp_path: Path) -> None:
    case = node_cases().get(name) or file_cases()[name]
    if not case.tensors_only:
        assert name in EXCLUSIONS, f"{name} takes or gives more than tensors: list it"
        return
    problem = run_case(case, tmp_path)
    if name in EXCLUSIONS:
        assert problem is not None, f"{name} passes now: take it off the list of exclusions"
    else:
        assert problem is None, problem


def test_at_least_97_percent_of_the_node_suite_is_covered() -> None:
    cases = node_cases()
    left_out = [n for n in cases if n in EXCLUSIONS]
    assert len(left_out) <= (1 - GOAL) * len(cases)
    assert set(EXCLUSIONS) <= {*cases, *file_cases()}, "an exclusion names no case"
    assert all(str(reason).strip() for reason in EXCLUSIONS.values())


@pytest.mark.parametrize("name", sorted(light_models()))
def test_light_model(name: str, tmp_path: Path) -> None:
    """The zoo models with weights computed in the graph: every one folds to plain constants."""
    model_path = light_models()[name]
    model = onnx.load(str(model_path))
    constants = {i.name for i in model.graph.initializer}
    (entry,) = [i for i in model.graph.input if i.name not in constants]
    shape = tuple(d.dim_value for d in entry.type.tensor_type.shape.dim)
    feed = np.random.default_rng(0).random(shape, dtype=np.float32)
    session = ort.InferenceSession(str(model_path), providers=["CPUExecutionProvider"])
    want = session.run(None, {entry.name: feed})[0]
    source = load_model(model_path)
    write_mblt(
        tmp_path / "m.mblt", partition(parse(source, input_shapes={})), MbltMeta(source.sha256)
    )
    with read_mblt(tmp_path / "m.mblt") as mblt:
        values = mblt.graph.values
        assert not [n for n in mblt.graph if all(values[i].is_const for i in n.inputs if i)]
        got = next(iter(FloatEngine(mblt.graph).run({entry.name: feed}).values()))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
