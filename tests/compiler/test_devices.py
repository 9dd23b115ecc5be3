"""Target devices: their data, the schemes, and a made-up one in a file of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qbcompiler.devices import (
    CORES_OF_SCHEME,
    DEVICE_PATH,
    list_devices,
    load_device,
    resolve_schemes,
)
from qbcompiler.errors import ConfigError, DeviceSchemeError

# fmt: off
IR_OPERATORS = frozenset(
    [
        "Abs", "AddPartial", "Adding", "AddingConstant", "Batchnorm", "Cast", "Ceil", "Celu",
        "Clip", "Concatenate", "Convolution", "Convolution3d", "Crop", "DepthwiseConvolution",
        "DeviceBridge", "Div", "DivConstant", "Einsum", "Elu", "Erf", "Exp", "Expand", "GLU",
        "Gather", "GatherElements", "Gelu", "GlobalAveragePooling",
        "GlobalResponseNormalization", "GridSample", "GroupConvolution", "GroupNormalization",
        "GRU", "HardSigmoid", "HardSwish", "Hardshrink", "Hardtanh", "HeaderView",
        "HeaderViewRevert", "Identity", "Input", "InputConstant", "InstanceNormalization",
        "InverseSigmoid", "L1Normalization", "L2Normalization", "LSTM", "LayerNormalization",
        "LeakyRelu", "Log", "LogSigmoid", "LogSoftmax", "Logical", "Logit", "MaskSoftmax",
        "MaskedFill", "MatMul", "MeanCentering", "Mish", "MoeAggregator", "MoeDispatcher",
        "Multiply", "MultiplyConstant", "Neg", "NonMaxSuppression", "OrderedPatchify", "Output",
        "PRelu", "Pad", "Pooling", "Pow", "QuickGelu", "ReduceL2", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceRMS", "ReduceSum", "RelShift", "Relu", "Reshape",
        "ReshapeV2", "Resize", "RmsNormalization", "RNN", "RotaryEmbedding", "Rsqrt", "Rstd",
        "ScatterND", "Selu", "Shape", "Sigmoid", "Sin", "Cos", "Slice", "Softmax", "Softplus",
        "Softshrink", "Softsign", "Sqrt", "StaggeredPadding", "StatefulAttentionMaskWrapper",
        "StatefulKVCacheWrapper", "StatefulCachedStack", "StatefulLSTMWrapper",
        "StatefulRNNWrapper", "StatefulGRUWrapper", "StatefulRoPEWrapper", "Sub", "SubConstant",
        "SubgraphCall", "SumNormalization", "Swish", "Tanh", "TensorCmp", "TopKIndices",
        "TopKValues", "Transpose", "TransposeConvolution", "Unsqueeze", "Where",
    ]
)
# fmt: on
"""Names of the public operator list, which the IR uses."""

BUILT_IN = ["aries-rb", "regulus-ra", "regulus-rb", "regulus-rb-usb"]

MADE_UP: dict[str, object] = {
    "name": "made-up",
    "chip": "TEST",
    "description": "Four cores.",
    "cores": 4,
    "clusters": 1,
    "schemes": ["single", "global4"],
    "compute": {"peak_int8_ops_per_s": 8, "macs_per_cycle": 1, "clock_hz": 1, "sync_cycles": 1},
    "memory": {
        "on_chip_bytes": {"value": 1024, "assumed": "for a test"},
        "bandwidth_bytes_per_s": 1,
        "alignment_bytes": 1,
        "channel_alignment": 1,
    },
    "io": {"integer": False, "input_types": ["float32"], "output_types": ["float32"]},
    "constraints": {"max_rank": 4},
    "unsupported": [{"reason": "it is a test", "operators": ["Relu"]}],
}


def write(folder: Path, file: str = "made-up", /, **changes: object) -> Path:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.safe_dump({**MADE_UP, **changes}))
    return path


def test_the_devices_of_the_contract() -> None:
    shapes = {
        d.name: (d.chip, d.cores, d.clusters, d.schemes, d.integer_io) for d in list_devices([])
    }
    assert shapes == {
        "aries-rb": ("ARIES", 8, 2, ("single", "multi", "global4", "global8"), False),
        "regulus-ra": ("REGULUS", 1, 1, ("single",), False),
        "regulus-rb": ("REGULUS", 1, 1, ("single",), False),
        "regulus-rb-usb": ("REGULUS", 1, 1, ("single",), True),
    }


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_figures_fit_together(name: str) -> None:
    device = load_device(name)
    tops = 80e12 if device.chip == "ARIES" else 10e12
    assert device.figure("compute.peak_int8_ops_per_s") == tops
    made = 2 * device.figure("compute.macs_per_cycle") * device.figure("compute.clock_hz")
    assert made * device.cores == tops
    # what is not public is marked, with a reason
    assert set(device.assumptions) == {
        "compute.macs_per_cycle",
        "compute.clock_hz",
        "compute.sync_cycles",
        "memory.on_chip_bytes",
        "memory.bandwidth_bytes_per_s",
        "memory.alignment_bytes",
        "memory.channel_alignment",
        "memory.link_bytes_per_cycle",
        "constraints.max_rank",
    }
    assert all(reason.startswith("Not public.") for reason in device.assumptions.values())


def test_what_regulus_ra_lacks() -> None:
    lacks = load_device("regulus-ra").unsupported_operators
    for operator in [
        "Exp",
        "Erf",
        "Gelu",
        "QuickGelu",
        "Softmax",
        "Tanh",
        "Sigmoid",
        "LogSigmoid",
        "InverseSigmoid",
        "LayerNormalization",
        "RmsNormalization",
        "Sqrt",
        "Rsqrt",
        "Sin",
        "Cos",
        "Log",
        "Swish",
        "Mish",
        "Softplus",
        "LSTM",
        "GRU",
        "Div",
    ]:
        assert "multi-function unit" in lacks[operator]
    for operator in ("Convolution", "Relu", "HardSwish", "HardSigmoid", "Clip", "Softshrink"):
        assert operator not in lacks
    assert load_device("regulus-rb").unsupported_operators == {}


def test_unsupported_operators_are_operators_of_the_ir() -> None:
    """Names come from the IR's list; a misspelt one would silently support the operator."""
    from qbcompiler.ops import default_registry

    lacks = set(load_device("regulus-ra").unsupported_operators)
    assert lacks <= IR_OPERATORS
    # and every operator that is built in has a name of that list, but for two of our own
    names = {spec.name for spec in default_registry().specs}
    assert names - {"Onnx", "PixelShuffle"} <= IR_OPERATORS


def test_an_unknown_device_names_the_nearest_and_lists_all() -> None:
    with pytest.raises(DeviceSchemeError) as caught:
        load_device("Regulus_RB", [])
    assert caught.value.exit_code == 2
    assert caught.value.details == {
        "device": "Regulus_RB",
        "nearest": "regulus-rb",
        "known": BUILT_IN,
    }
    assert caught.value.hint == f"target devices: {', '.join(BUILT_IN)}"


@pytest.mark.parametrize(
    ("device", "scheme", "expected"),
    [
        ("aries-rb", "single", ("single",)),
        ("aries-rb", "global8", ("global8",)),
        ("aries-rb", "all", ("single", "multi", "global4", "global8")),
        ("regulus-rb", "single", ("single",)),
        ("regulus-rb", "all", ("single",)),
        ("regulus-rb-usb", "all", ("single",)),
    ],
)
def test_schemes(device: str, scheme: str, expected: tuple[str, ...]) -> None:
    assert resolve_schemes(device, scheme) == expected
    assert resolve_schemes(load_device(device), scheme) == expected


@pytest.mark.parametrize(
    ("device", "scheme", "message", "hint"),
    [
        ("regulus-rb", "multi", "regulus-rb has no inference scheme 'multi'", "single"),
        ("regulus-ra", "global8", "regulus-ra has no inference scheme 'global8'", "single"),
        ("aries-rb", "global", "old spelling of 'global4' and 'global8'", "say global4 or global8"),
        ("regulus-rb", "global", "old spelling of 'global4' and 'global8'", "single"),
        ("aries-rb", "sinlge", "did you mean 'single'?", "single, multi, global4, global8, all"),
        ("aries-rb", "", "unknown inference scheme ''", "single"),
    ],
)
def test_schemes_that_are_refused(device: str, scheme: str, message: str, hint: str) -> None:
    with pytest.raises(DeviceSchemeError) as caught:
        resolve_schemes(device, scheme)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_device_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    assert [d.name for d in list_devices([tmp_path])] == sorted([*BUILT_IN, "made-up"])
    monkeypatch.setenv(DEVICE_PATH, str(tmp_path))
    device = load_device("made-up")
    assert device.max_rank == 4
    assert device.unsupported_operators == {"Relu": "it is a test"}
    assert device.assumptions["memory.on_chip_bytes"] == "for a test"
    # a figure that the file leaves out is assumed too
    assert set(device.assumptions) == {"memory.on_chip_bytes", "memory.link_bytes_per_cycle"}
    assert resolve_schemes("made-up", "all") == ("single", "global4")
    # a changed file is read again
    write(tmp_path, schemes=["single"], description="Changed, with another size.")
    assert resolve_schemes("made-up", "all") == ("single",)


def test_a_made_up_device_refuses_and_takes_a_model(tmp_path: Path) -> None:
    """The partition asks a device from a file what it asks a built-in one."""
    from qbcompiler.errors import UnsupportedOperatorError
    from qbcompiler.ir import DType, Graph, NoAttrs, Node, TensorType
    from qbcompiler.ops import OpSpec, Registry
    from qbcompiler.partition import partition

    class Relu(OpSpec[NoAttrs]):
        name = "Relu"
        attrs_type = NoAttrs

    def graph(rank: int) -> Graph:
        g = Graph("g")
        type_ = TensorType(DType.FLOAT32, (1,) * rank)
        g.add_input("x", type_)
        g.add_value("y", type_)
        g.add_node(Node("relu", "Relu", ["x"], ["y"], NoAttrs(), ()))
        g.outputs = ["y"]
        return g

    write(tmp_path)
    write(tmp_path, "other", name="other", unsupported=[])
    registry = Registry([Relu()])
    lacking, having = load_device("made-up", [tmp_path]), load_device("other", [tmp_path])
    with pytest.raises(UnsupportedOperatorError, match=r"relu .*it is a test"):
        partition(graph(4), lacking, registry=registry)
    assert partition(graph(4), having, registry=registry).body is not None
    with pytest.raises(UnsupportedOperatorError, match="rank 5; other takes up to 4"):
        partition(graph(5), having, registry=registry)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cores": 3, "clusters": 2}, "divide evenly"),
        ({"schemes": ["single", "global8"]}, "global8 needs 8 cores"),
        ({"schemes": ["single", "single"]}, "twice"),
        ({"schemes": ["solo"]}, "/schemes/0"),
        ({"cores": 0}, "/cores"),
        ({"surprise": 1}, "/surprise"),
        ({"name": "another"}, "defines 'another'"),
        ({"unsupported": [{"reason": "r", "operators": ["A", "A"]}]}, "listed twice"),
        ({"constraints": {"max_rank": {"value": 4}}}, "/constraints/max_rank"),
    ],
)
def test_a_wrong_device_file(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        load_device("made-up", [tmp_path])
    assert words in caught.value.message and "made-up.yaml" in caught.value.message


def test_a_name_taken_twice_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, "regulus-rb", name="regulus-rb")
    with pytest.raises(ConfigError, match="'regulus-rb' is defined twice"):
        list_devices([tmp_path])
    with pytest.raises(ConfigError, match="does not exist"):
        list_devices([tmp_path / "no"])


def test_every_scheme_knows_its_cores() -> None:
    for device in list_devices([]):
        for scheme in device.schemes:
            assert CORES_OF_SCHEME[scheme] <= device.cores
        assert device.cores_per_cluster * device.clusters == device.cores
        assert device.as_dict()["schemes"] == [*device.schemes, "all"]


def test_what_the_service_imports_is_light() -> None:
    code = (
        "import sys, qbcompiler, qbcompiler.config, qbcompiler.errors, qbcompiler.devices\n"
        "qbcompiler.devices.list_devices([]); qbcompiler.config.list_presets()\n"
        "qbcompiler.config.config_schema(); qbcompiler.CompileConfig()\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'onnxscript', 'PIL', 'networkx'}\n"
        "print(sorted(heavy & {m.partition('.')[0] for m in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
