"""The integer engine and the user's model."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from qbcompiler.errors import (
    ArgumentError,
    DeviceSchemeError,
    InternalError,
    ResourceLimitError,
)
from qbcompiler.ops.fixedpoint import dequantize
from qbcompiler.ops.fixedpoint import quantize as to_grid
from qbcompiler.package import write_mxq
from qbcompiler.quantization import quantize, validate
from qbcompiler.quantization.metrics import Agreement, Difference, is_classifier
from qbcompiler.runtime import Accelerator, CoreMode, IntegerEngine, Model, ModelConfig
from qbcompiler.runtime.float_engine import FloatEngine

from .quant_nets import Net, Rules, config, cut, observe, residual_net, samples
from .test_package_files import META, contents


@pytest.fixture(scope="module")
def net():
    graph = residual_net()
    data = samples(graph, 6)
    return graph, quantize(graph, observe(graph, data), config()), data


# -- engine -------------------------------------------------------------------------------


def test_bits_do_not_depend_on_threads(net):
    _, int_graph, data = net
    names = list(int_graph.values)
    results = [
        IntegerEngine(int_graph, t).run(data[0], outputs=names, integers=True) for t in (1, 2, 4)
    ]
    for other in results[1:]:
        for name in names:
            np.testing.assert_array_equal(results[0][name], other[name])


def test_callers_on_several_threads_get_the_same_bits(net):
    _, int_graph, data = net
    engine = IntegerEngine(int_graph, 2)
    expected = [engine.run(s, integers=True)["scores.out"] for s in data]
    found = [None] * len(data)

    def work(i):
        found[i] = engine.run(data[i], integers=True)["scores.out"]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(data))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_result_is_close_to_float(net):
    graph, int_graph, data = net
    accuracy = validate(graph, int_graph, data, layer_samples=2)
    (output,) = accuracy.outputs
    assert output.difference.sqnr_db > 25
    assert output.difference.cosine > 0.998
    assert output.agreement is not None and output.agreement.rows == 6
    assert accuracy.layer_samples == 2 and len(accuracy.layers) == len(int_graph.layers)
    for layer in accuracy.layers:
        assert layer.own.sqnr_db > 30
    counted = {layer.name: layer.elements for layer in accuracy.layers}
    assert counted["c1"] == 0, "a clamp cuts it off next: its limits say nothing"
    assert counted["r1"] == 2 * 8 * 16 * 16


def test_accuracy_does_not_depend_on_threads(net):
    graph, int_graph, data = net
    one = validate(graph, int_graph, data, threads=1).as_dict()
    assert one == validate(graph, int_graph, data, threads=2).as_dict()


def test_floats_and_their_integers_are_the_same_input(net):
    _, int_graph, data = net
    engine = IntegerEngine(int_graph)
    quant = int_graph.values["image"].quant
    q = to_grid(data[0]["image"], quant)
    a = engine.run(data[0])["scores.out"]
    b = engine.run({"image": q})["scores.out"]
    c = engine.run({"image": data[0]["image"].astype(np.float64)}, integers=True)["scores.out"]
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, dequantize(c, int_graph.values["scores.out"].quant))
    assert a.dtype == np.float32


def test_any_value_can_be_asked_for_and_the_rest_is_freed(net):
    _, int_graph, data = net
    seen = []
    engine = IntegerEngine(int_graph)
    found = engine.run(
        data[0],
        outputs=["c1.out", "image", "c1.out"],
        visit=lambda layer, made: seen.append(layer.name),
    )
    assert set(found) == {"c1.out", "image"}
    assert seen == [x.name for x in int_graph.layers]


def test_wrong_inputs_are_named(net):
    _, int_graph, data = net
    engine = IntegerEngine(int_graph)
    image = data[0]["image"]
    for inputs, message in [
        ({}, "'image' is missing"),
        ({"image": image, "other": image}, "no input 'other'"),
        ({"image": image[:, :, :8]}, r"shape \[1, 3, 16, 16\], got \[1, 3, 8, 16\]"),
        ({"image": image.astype(np.int32)}, "got int32"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            engine.run(inputs)
    with pytest.raises(ArgumentError, match="no value 'zzz'"):
        engine.run(data[0], outputs=["zzz"])


def test_a_layer_that_fails_is_named(net):
    _, int_graph, data = net
    layer = int_graph.layers[0]
    kept = layer.tensors["weight"]
    layer.tensors["weight"] = kept[:, :2]
    try:
        with pytest.raises(InternalError, match=r"layer 'c1' \(Convolution\) failed") as caught:
            IntegerEngine(int_graph).run(data[0])
    finally:
        layer.tensors["weight"] = kept
    assert caught.value.details == {"layer": "c1", "operator": "Convolution"}


def test_a_layer_that_needs_too_much_memory_says_so(net):
    _, int_graph, data = net
    attrs = int_graph.layers[0].attrs
    kept = attrs["pads"]
    attrs["pads"] = [1 << 26] * 4
    try:
        with pytest.raises(ResourceLimitError, match=r"layer 'c1' \(Convolution\): out of memory"):
            IntegerEngine(int_graph).run(data[0])
    finally:
        attrs["pads"] = kept


# -- metrics ------------------------------------------------------------------------------


def test_metrics_have_the_textbook_values():
    difference = Difference()
    difference.add(np.array([3.0, 4.0]), np.array([3.0, 3.5]))
    assert difference.sqnr_db == pytest.approx(10 * np.log10(25 / 0.25))
    assert difference.cosine == pytest.approx((9 + 14) / (5 * np.hypot(3, 3.5)))
    assert difference.peak == 0.5
    same = Difference()
    same.add(np.zeros(3), np.zeros(3))
    assert (same.sqnr_db, same.cosine) == (200.0, 1.0)
    lost = Difference()
    lost.add(np.zeros(3), np.ones(3))
    assert (lost.sqnr_db, lost.cosine) == (-200.0, 0.0)
    assert Difference().as_dict()["sqnr_db"] == 200.0


def test_agreement_counts_rows():
    found = Agreement()
    found.add(np.array([[1, 2], [2, 1], [0, 5]]), np.array([[1, 2], [1, 2], [0, 1]]))
    assert (found.same, found.rows) == (2, 3)
    assert is_classifier((1, 10)) and is_classifier((4, 10, 1, 1))
    assert not is_classifier((1, 1)) and not is_classifier((1, 3, 8, 8)) and not is_classifier((5,))


# -- Model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.mxq"
    write_mxq(path, contents(cut(residual_net(), Rules())))
    return path


def launched(path, **options):
    model = Model(path, ModelConfig(**options))
    model.launch(Accelerator("toy-device"))
    return model


def test_the_first_page_of_the_manual(package):
    (sample,) = samples(residual_net(), 1, seed=8)
    image = sample["image"][0].transpose(1, 2, 0)
    with launched(package, core_mode=CoreMode.SINGLE) as model:
        (scores,) = model.infer(image)
    assert scores.shape == (1, 1, 1, 10), "channel-last"
    want = FloatEngine(residual_net()).run(sample)["scores.out"]
    assert np.abs(scores.ravel() - want.ravel()).max() < 0.3


def test_layouts_batches_and_names_agree(package):
    data = samples(residual_net(), 3, seed=8)
    chw = np.concatenate([s["image"] for s in data])
    model = launched(package)
    (last,) = model.infer(chw.transpose(0, 2, 3, 1))
    (first,) = model.infer_chw(chw)
    assert last.shape == (3, 1, 1, 10) and first.shape == (3, 10, 1, 1)
    np.testing.assert_array_equal(last.reshape(3, 10), first.reshape(3, 10))
    for i, sample in enumerate(data):
        for given in (sample["image"], sample["image"][0]):
            np.testing.assert_array_equal(model.infer_chw(given)[0], first[i : i + 1])
            np.testing.assert_array_equal(model.infer_chw([given])[0], first[i : i + 1])
            np.testing.assert_array_equal(model.infer_chw({"image": given})[0], first[i : i + 1])
    np.testing.assert_array_equal(model.infer_chw(chw.astype(np.float64))[0], first)


def test_wrong_shapes_and_types_say_what_is_taken(package):
    model = launched(package)
    image = samples(residual_net(), 1)[0]["image"]
    with pytest.raises(
        ArgumentError, match=r"\[1, 16, 16, 3\] or \[16, 16, 3\], got \[1, 3, 16, 16\]"
    ) as e:
        model.infer(image)
    assert "infer_chw" in e.value.hint
    with pytest.raises(ArgumentError, match="takes shape") as e:
        model.infer_chw(image.transpose(0, 2, 3, 1))
    assert "use infer " in e.value.hint
    with pytest.raises(ArgumentError, match="takes float32, got uint8") as e:
        model.infer_chw((image * 0).astype(np.uint8))
    assert "uint8Input" in e.value.hint
    with pytest.raises(ArgumentError, match="1 inputs, got 2"):
        model.infer_chw([image, image])
    with pytest.raises(ArgumentError, match="not those of the model"):
        model.infer_chw({"picture": image})
    with pytest.raises(ArgumentError, match="takes shape"):
        model.infer_chw(image[:0])


def test_life_cycle(package):
    model = Model(package)
    image = samples(residual_net(), 1)[0]["image"]
    with pytest.raises(ArgumentError, match="not launched"):
        model.infer_chw(image)
    model.launch(Accelerator("toy-device"))
    model.infer_chw(image)
    model.dispose()
    model.dispose()
    with pytest.raises(ArgumentError, match="not launched"):
        model.infer_chw(image)
    with pytest.raises(ArgumentError, match="disposed"):
        model.launch(Accelerator("toy-device"))


def test_another_device_or_mode_is_refused_with_what_the_package_holds(package):
    model = Model(package)
    with pytest.raises(DeviceSchemeError, match="built for toy-device, not for aries-rb"):
        model.launch(Accelerator("aries-rb"))
    with pytest.raises(DeviceSchemeError, match="built for single, not for core mode global8"):
        Model(package, ModelConfig(core_mode=CoreMode.GLOBAL8))
    with pytest.raises(ArgumentError, match="unknown core mode 'global'"):
        ModelConfig(core_mode="global")


def test_a_package_of_several_modes_needs_one_named(tmp_path):
    made = contents(cut(residual_net(), Rules()))
    object.__setattr__(made, "schemes", ("single", "global4"))
    write_mxq(tmp_path / "m", made)
    with pytest.raises(DeviceSchemeError, match="several core modes: single, global4"):
        Model(tmp_path / "m")
    assert Model(tmp_path / "m", ModelConfig(core_mode="global4")).core_mode is CoreMode.GLOBAL4


def test_head_and_tail_run_in_floating_point(tmp_path):
    net = Net("around")
    head = net.layer("Sigmoid", "first", [net.input("image", 1, 3, 8, 8)])
    graph = net.finish(net.layer("Sigmoid", "last", [net.conv("c", head, 4)]))
    parts = cut(graph, Rules(Sigmoid="none"), cpu_offload=True)
    write_mxq(tmp_path / "m", contents(parts))
    (sample,) = samples(graph, 1)
    model = launched(tmp_path / "m")
    (got,) = model.infer_chw(sample["image"])
    want = FloatEngine(graph).run(sample)["last.out"]
    assert np.abs(got - want).max() < 0.02
    assert len(np.unique(got)) > 20, "the tail's output is not on a grid of the body"


def test_devices_with_an_integer_interface(tmp_path):
    made = contents(cut(residual_net(), Rules()))
    object.__setattr__(made, "integer_io", True)
    write_mxq(tmp_path / "m", made)
    model = launched(tmp_path / "m")
    (sample,) = samples(residual_net(), 1)
    port, out = model.inputs[0], model.outputs[0]
    assert port.dtype == "int8" and port.quant == made.body.values["image"].quant
    (raw,) = model.infer_chw(to_grid(sample["image"], port.quant))
    assert raw.dtype == np.int8
    want = IntegerEngine(made.body).run(sample)["scores.out"]
    np.testing.assert_array_equal(out.to_real(raw), want)
    np.testing.assert_array_equal(model.infer_chw(sample["image"])[0], raw)


def test_the_package_meta_is_at_hand(package):
    with Model(package) as model:
        assert model.device == "toy-device" and model.schemes == ("single",)
        assert model.manifest["mblt"]["source"]["sha256"] == META.source_sha256
        assert [p.name for p in model.inputs] == ["image"]
