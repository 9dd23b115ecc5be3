"""The compiler as a library: the manual's calls, inputs of every kind, callbacks, provenance."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qbcompiler
from qbcompiler import (
    CalibrationConfig,
    CompileConfig,
    HessianQuantConfig,
    LayerBiasCorrectionConfig,
    PreprocessingConfig,
    get_body_subgraph,
    mblt_compile,
    mblt_compile_with_callback,
    mxq_compile,
    mxq_compile_from_mblt,
    mxq_compile_from_source,
    mxq_compile_with_callback,
    read_provenance,
)
from qbcompiler.errors import (
    ArgumentError,
    CalibrationMissingError,
    ConfigError,
    FormatError,
    OutputWriteError,
)
from qbcompiler.package import read_mblt, read_mxq

from .test_cli import network


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    onnx.save(network(), folder / "m.onnx")
    (folder / "cal").mkdir()
    rng = np.random.default_rng(3)
    for i in range(4):
        np.save(folder / "cal" / f"{i}.npy", rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32))
    return folder


@pytest.fixture
def build(data: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "target_device": "regulus-rb",
        "calib_data_path": data / "cal",
        "save_path": tmp_path / "m.mxq",
    }


def sha256(path: Path | str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_every_public_name_exists() -> None:
    for name in qbcompiler.__all__:
        assert getattr(qbcompiler, name) is not None
    assert set(qbcompiler.__all__) <= set(dir(qbcompiler))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = qbcompiler.nothing  # type: ignore[attr-defined]


def test_one_version() -> None:
    from importlib import metadata

    assert qbcompiler.__version__ == metadata.version("qb-compile-server")


def test_the_names_that_existing_scripts_import() -> None:
    from qbcompiler import configs

    for name in configs.__all__:
        assert getattr(configs, name) is getattr(qbcompiler, name)


def test_a_model_may_be_a_path_bytes_or_a_proto(data: Path, build: dict[str, Any]) -> None:
    digests = set()
    path = data / "m.onnx"
    for model in (path, str(path), path.read_bytes(), onnx.load(path)):
        result = mxq_compile(model, **build)
        assert result.path == build["save_path"]
        digests.add(sha256(result.path))
    assert len(digests) == 1


def test_an_mblt_goes_to_quantization(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    mblt = tmp_path / "m.mblt"
    mblt_compile(data / "m.onnx", mblt, "regulus-rb")
    first = sha256(mxq_compile(mblt, **build).path)
    assert sha256(mxq_compile_from_mblt(mblt, **build).path) == first
    assert sha256(mxq_compile_from_source(data / "m.onnx", **build).path) == first
    with pytest.raises(FormatError):
        mxq_compile_from_mblt(data / "m.onnx", **build)


def test_two_ways_to_keep_the_mblt(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    one, two = tmp_path / "one.mblt", tmp_path / "two.mblt"
    mxq_compile(data / "m.onnx", **build, mblt_save_path=one)
    mxq_compile(data / "m.onnx", **build, save_subgraph_type=2, output_subgraph_path=two)
    assert sha256(one) == sha256(two)
    with pytest.raises(ArgumentError, match="needs output_subgraph_path"):
        mxq_compile(data / "m.onnx", **build, save_subgraph_type=2)
    with pytest.raises(ArgumentError, match="save_subgraph_type must be"):
        mxq_compile(data / "m.onnx", **build, save_subgraph_type=1)
    with pytest.raises(ArgumentError, match="two files"):
        mxq_compile(data / "m.onnx", **build, output_subgraph_path=one, mblt_save_path=two)


def test_threads_and_folders_change_no_byte(
    data: Path, build: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sha256(mxq_compile(data / "m.onnx", **build, threads=1).path)
    assert sha256(mxq_compile(data / "m.onnx", **build, threads=2).path) == first
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "copy.onnx").write_bytes((data / "m.onnx").read_bytes())
    build["save_path"] = "out.mxq"
    labels = {"source_revision": "r", "labels": {"a": "b"}}
    assert sha256(mxq_compile("copy.onnx", **build, **labels).path) == first


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("method", [0, 1, 2, 3])
def test_methods_and_modes(data: Path, build: dict[str, Any], method: int, mode: int) -> None:
    config: Any = CalibrationConfig(method=method, mode=mode)  # type: ignore[arg-type]
    result = mxq_compile(data / "m.onnx", **build, calibration_config=config)
    with read_mxq(result.path) as mxq:
        assert mxq.manifest["config"]["calibration"]["method"] == method
        assert mxq.manifest["config"]["calibration"]["mode"] == mode
    assert result.summary["accuracy"]["outputs"][0]["sqnr_db"] > 20
    assert result.summary["warnings"] == []


def test_settings_without_effect_are_warned_about(data: Path, build: dict[str, Any]) -> None:
    report = build["save_path"].with_suffix(".json")
    result = mxq_compile(
        data / "m.onnx",
        **build,
        hessian_quant_config=HessianQuantConfig(apply=True, hessian_dtype="bf16"),
        buffer_mode=2,
        report_path=report,
    )
    warnings = result.summary["warnings"]
    assert [w.split()[0] for w in warnings] == ["/bufferMode", "/hessianQuant/hessianDtype"]
    assert set(warnings) <= set(json.loads(report.read_text())["warnings"])


def test_biases_are_corrected_where_asked_for(
    data: Path, build: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for index, switch in enumerate((None, True, True)):
        messages: list[Any] = []
        options = {**build, "save_path": tmp_path / f"{index}.mxq", "threads": 1 + index}
        result = mxq_compile_with_callback(
            data / "m.onnx", messages.append, **options, layer_bias_correction=switch
        )
        told = [m["message"] for m in messages if m["type"] == "log"]
        assert any("biases have moved" in m for m in told) is bool(switch)
        steps = [m for m in messages if m["type"] == "progress" and m["phase"] == "quantize"]
        assert bool(switch) is bool(steps)
        found.append(result.path.read_bytes())
    assert found[1] == found[2] != found[0]


def test_the_layers_of_the_configuration(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"calibration": {"mode": 2}}')
    for source in (file, {"calibration": {"mode": 2}}, CompileConfig.from_file(file)):
        result = mxq_compile(
            data / "m.onnx", **build, config_preset="classification", compile_config=source
        )
        with read_mxq(result.path) as mxq:
            assert mxq.preset == "classification"
            assert mxq.manifest["config"]["calibration"]["mode"] == 2
    mxq_compile(
        data / "m.onnx",
        **build,
        compile_config=file,
        calibration_config=CalibrationConfig(mode=0),
        layer_bias_correction=False,
        layer_bias_correction_config=LayerBiasCorrectionConfig(),
    )
    with read_mxq(build["save_path"]) as mxq:
        assert mxq.manifest["config"]["calibration"]["mode"] == 0


def test_preprocessing_of_images(build: dict[str, Any], data: Path, tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    steps: Any = [
        {"op": "resize", "size": 20},
        {"op": "centerCrop", "height": 16, "width": 16},
        {
            "op": "normalize",
            "mean": [0.5] * 3,
            "std": [0.25] * 3,
            "scaleToUint8": True,
            "fuseIntoFirstLayer": True,
        },
    ]
    build["calib_data_path"] = str(folder)
    result = mxq_compile(
        data / "m.onnx",
        **build,
        image_channels=3,
        preprocessing_config=PreprocessingConfig(apply=True, pipeline=steps),
    )
    assert result.summary["calibration"]["samples"] == 3
    assert any("fuseIntoFirstLayer has no effect" in w for w in result.summary["warnings"])


def test_callbacks(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    found: list[Any] = []
    mxq_compile_with_callback(data / "m.onnx", found.append, **build)
    assert [m["type"] for m in found][-1] == "result"
    assert {m["phase"] for m in found if m["type"] == "progress"} >= {"calibrate", "verify"}
    found.clear()
    mblt_compile_with_callback(data / "m.onnx", found.append, tmp_path / "m.mblt", "regulus-rb")
    assert found[-1]["files"][0]["kind"] == "mblt"

    def stop(message: Any) -> None:
        if message["type"] == "progress" and message["phase"] == "calibrate":
            raise InterruptedError("enough")

    build["save_path"] = tmp_path / "stopped.mxq"
    with pytest.raises(InterruptedError, match="enough"):
        mxq_compile_with_callback(data / "m.onnx", stop, **build)
    assert not [p for p in tmp_path.iterdir() if "stopped" in p.name]


def test_provenance(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    mblt = tmp_path / "m.mblt"
    mblt_compile(data / "m.onnx", mblt, "regulus-rb", source_revision="abc")
    record = read_provenance(mblt)
    assert record["source"]["sha256"] == sha256(data / "m.onnx")
    assert record["caller"]["source_revision"] == "abc"
    assert record["compiler"]["name"] == "qbcompiler"
    mxq_compile(mblt, **build)
    record = read_provenance(build["save_path"])
    assert record["device"] == "regulus-rb" and record["calibration"]["samples"] == 4
    # a record of other bytes does not belong to the file
    sidecar = tmp_path / "m.mxq.provenance.json"
    text = json.loads(sidecar.read_text())
    text["output"]["sha256"] = "0" * 64
    sidecar.write_text(json.dumps(text))
    assert read_provenance(build["save_path"])["caller"] is None
    sidecar.unlink()
    assert read_provenance(build["save_path"])["caller"] is None
    for bad in ("[]", "{", '{"version": 2}', '{"version": 1}', '{"version": 1, "output": 3}'):
        sidecar.write_text(bad)
        with pytest.raises(FormatError, match=r"m.mxq.provenance.json"):
            read_provenance(build["save_path"])


def test_the_body_as_an_mblt(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(network(odd=True), tmp_path / "odd.onnx")
    mblt, body = tmp_path / "odd.mblt", tmp_path / "body.mblt"
    mblt_compile(tmp_path / "odd.onnx", mblt, "regulus-rb", cpu_offload=True)
    get_body_subgraph(mblt, body)
    with read_mblt(mblt) as whole, read_mblt(body) as part:
        assert whole.partitioned.tail is not None
        assert part.partitioned.tail is None and part.partitioned.head is None
        assert part.graph.outputs == whole.partitioned.body.outputs  # type: ignore[union-attr]
        assert part.meta.source_sha256 == whole.meta.source_sha256
    mxq_compile(body, **build)
    with pytest.raises(ArgumentError, match="is an input too"):
        get_body_subgraph(mblt, mblt)


def test_mistakes(data: Path, build: dict[str, Any], tmp_path: Path) -> None:
    model = data / "m.onnx"
    with pytest.raises(ArgumentError, match="did you mean 'save_path'"):
        mxq_compile(model, **build, save_pth="x")
    with pytest.raises(ArgumentError, match="unknown argument 'zzz'"):
        mblt_compile(model, tmp_path / "m.mblt", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="no target device"):
        mxq_compile(model, **{**build, "target_device": None})
    with pytest.raises(ArgumentError, match="no output is given"):
        mxq_compile(model, **{**build, "save_path": None})
    with pytest.raises(CalibrationMissingError, match=r"^No calibration dataset is provided$"):
        mxq_compile(model, **{**build, "calib_data_path": None})
    with pytest.raises(CalibrationMissingError):
        mxq_compile(model, **{**build, "calib_data_path": []})
    with pytest.raises(ConfigError, match="arguments: /imageChannels"):
        mxq_compile(model, **build, image_channels="3")
    with pytest.raises(ArgumentError, match="imageChannels is 1"):
        mxq_compile(model, **build, image_channels=1)
    with pytest.raises(ArgumentError, match="threads"):
        mxq_compile(model, **build, threads=0)
    with pytest.raises(OutputWriteError):
        mxq_compile(model, **{**build, "save_path": tmp_path / "no" / "m.mxq"})
    assert list(tmp_path.iterdir()) == []


def test_compilation_imports_nothing_of_the_server() -> None:
    code = (
        "import sys, qbcompiler.api, qbcompiler.cli\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules}"
        " & {'service', 'worker', 'fastapi', 'numpy', 'onnx', 'onnxruntime'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
