"""Samples into a model's inputs: layouts, element types, doubts, random data, other models."""

from __future__ import annotations

import hashlib
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from qbcompiler.calibration import (
    Dataset,
    InputSpec,
    Mapped,
    RandomSpec,
    Subset,
    combine,
    infer_layout,
    open_dataset,
    sample_digest,
    specs_of_graph,
)
from qbcompiler.config import PreprocessingConfig
from qbcompiler.errors import CalibrationDataError
from qbcompiler.ir import Attrs, DType, Graph, NoAttrs, Node, TensorType

F32 = DType.FLOAT32
NCHW = InputSpec("x", (1, 3, 4, 5), F32, "NCHW")
NHWC = InputSpec("x", (1, 4, 5, 3), F32, "NHWC")
CHW_PIXELS = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
HWC_PIXELS = np.ascontiguousarray(CHW_PIXELS.transpose(1, 2, 0))


def one(tmp_path: Path, array: Any, spec: InputSpec, preprocessing: Any = None) -> np.ndarray:
    np.save(tmp_path / "a.npy", array)
    return open_dataset(tmp_path, [spec], preprocessing)[0]["x"]


def refused(tmp_path: Path, array: Any, spec: InputSpec, said: str, **opts: Any) -> Any:
    with pytest.raises(CalibrationDataError, match=said) as found:
        one(tmp_path, array, spec, **opts)
    assert found.value.details["sample"] == "a.npy"
    assert "expected" in found.value.details and "got" in found.value.details
    return found.value


# -- layouts ------------------------------------------------------------------------------


ALL_LAYOUTS = [CHW_PIXELS, CHW_PIXELS[None], HWC_PIXELS, HWC_PIXELS[None]]


@pytest.mark.parametrize("layout", ["NCHW", None])
@pytest.mark.parametrize("array", ALL_LAYOUTS)
def test_every_layout_gives_a_channel_first_model_the_same(
    tmp_path: Path, array: np.ndarray, layout: Any
) -> None:
    got = one(tmp_path, array, InputSpec("x", (1, 3, 4, 5), F32, layout))
    np.testing.assert_array_equal(got, CHW_PIXELS[None])
    assert got.flags.c_contiguous and got.dtype == np.float32


@pytest.mark.parametrize("layout", ["NHWC", None])
@pytest.mark.parametrize("array", ALL_LAYOUTS)
def test_every_layout_gives_a_channel_last_model_the_same(
    tmp_path: Path, array: np.ndarray, layout: Any
) -> None:
    got = one(tmp_path, array, InputSpec("x", (1, 4, 5, 3), F32, layout))
    np.testing.assert_array_equal(got, HWC_PIXELS[None])


def test_feature_maps_are_turned_too(tmp_path: Path) -> None:
    spec = InputSpec("x", (1, 64, 7, 9), F32)
    array = np.random.default_rng(0).normal(size=(7, 9, 64)).astype(np.float32)
    np.testing.assert_array_equal(one(tmp_path, array, spec)[0], array.transpose(2, 0, 1))


def test_one_channel_needs_no_channel_dimension(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    for spec in (
        InputSpec("x", (1, 1, 4, 5), F32, "NCHW"),
        InputSpec("x", (1, 4, 5, 1), F32, "NHWC"),
    ):
        for form in (array, array[None], array[..., None], array[None, None]):
            assert one(tmp_path, form, spec).shape == spec.shape


def test_a_cube_is_ambiguous_and_the_option_settles_it(tmp_path: Path) -> None:
    cube = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    spec = InputSpec("x", (1, 3, 3, 3), F32, "NCHW")
    error = refused(tmp_path, cube, spec, "can be read as CHW or HWC")
    assert error.details["candidates"] == ["CHW", "HWC"]
    assert "preprocessing.autoConvertFormat=false" in error.hint
    own = {"autoConvertFormat": False}
    np.testing.assert_array_equal(one(tmp_path, cube, spec, own)[0], cube)
    # no ambiguity where both readings give the same tensor
    same = np.full((3, 3, 3), 2.0, np.float32)
    np.testing.assert_array_equal(one(tmp_path, same, spec)[0], same)
    error = refused(tmp_path, cube, InputSpec("x", (1, 3, 3, 3), F32), "can be read as")
    assert len(error.details["candidates"]) == 3


def test_the_models_own_order_can_be_demanded(tmp_path: Path) -> None:
    own = {"autoConvertFormat": False}
    np.testing.assert_array_equal(one(tmp_path, CHW_PIXELS, NCHW, own)[0], CHW_PIXELS)
    refused(tmp_path, HWC_PIXELS, NCHW, "fits no layout", preprocessing=own)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, 5, 4), "resize"),
        ((4, 5), "resize"),
        ((8, 3, 4, 5), "holds 8 samples"),
        ((2, 3, 4, 4), "exactly"),
        ((60,), "exactly"),
        ((), "exactly"),
        ((1, 1, 3, 4, 5), "exactly"),
    ],
)
def test_a_shape_that_does_not_fit_is_said_with_a_way_out(
    tmp_path: Path, shape: tuple[int, ...], hint: str
) -> None:
    error = refused(tmp_path, np.zeros(shape, np.float32), NCHW, "fits no layout")
    assert error.details["got"] == f"float32{list(shape)}"
    assert error.details["expected"] == "float32[1,3,4,5] NCHW"
    assert hint in error.hint


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6),
        elements=st.floats(-8, 8, width=32),
    ),
    layout=st.sampled_from(["NCHW", "NHWC", None]),
)
def test_a_channel_last_sample_is_read_back_or_refused(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, layout: Any
) -> None:
    """Never a third outcome: another tensor than the one that was meant."""
    chw = np.ascontiguousarray(array.transpose(2, 0, 1))
    want = array if layout == "NHWC" else chw
    spec = InputSpec("x", (1, *want.shape), F32, layout)
    folder = tmp_path_factory.mktemp("layout")
    for form in (array, chw):
        try:
            got = one(folder, form, spec)
        except CalibrationDataError as exc:
            assert "can be read as" in exc.message
        else:
            np.testing.assert_array_equal(got[0], want)


def test_other_ranks_are_taken_as_they_are(tmp_path: Path) -> None:
    spec = InputSpec("x", (1, 80, 30), F32)
    array = np.random.default_rng(0).normal(size=(80, 30)).astype(np.float32)
    np.testing.assert_array_equal(one(tmp_path, array, spec), array[None])
    np.testing.assert_array_equal(one(tmp_path, array[None], spec), array[None])
    refused(tmp_path, array.T, spec, "fits no layout")
    batch = InputSpec("x", (2, 3), F32)
    assert one(tmp_path, np.zeros((2, 3), np.float32), batch).shape == (2, 3)
    refused(tmp_path, np.zeros(3, np.float32), batch, "fits no layout")
    scalar = InputSpec("x", (), F32)
    assert one(tmp_path, np.float32(2), scalar).shape == ()


def test_layouts_are_inferred_from_the_shape_only_when_it_tells() -> None:
    assert infer_layout((1, 3, 224, 224)) == "NCHW"
    assert infer_layout((1, 224, 224, 3)) == "NHWC"
    assert infer_layout((1, 1, 28, 28)) == "NCHW"
    assert infer_layout((1, 3, 224, 3)) is None
    assert infer_layout((1, 64, 56, 56)) is None
    assert infer_layout((1, 64, 56, 56), 64) == "NCHW"
    assert infer_layout((1, 3, 224, 1), 1) == "NHWC"
    assert infer_layout((1, 197, 768)) is None


@dataclass(frozen=True, slots=True)
class Perm(Attrs):
    perm: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Axis(Attrs):
    axis: int = 0


def test_layouts_and_bounds_come_from_the_layers_that_read_the_input() -> None:
    g = Graph()
    g.add_input("last", TensorType(F32, (1, 3, 3, 3)))
    g.add_input("first", TensorType(F32, (1, 3, 3, 3)))
    g.add_input("ids", TensorType(DType.INT64, (1, 7)))
    g.add_input("table", TensorType(F32, (1, 3, 224, 224)))
    g.add_value("rows", TensorType(F32, (99, 2)), np.zeros((99, 2), np.float32))
    g.add_value("w", TensorType(F32, (8, 3, 1, 1)), np.zeros((8, 3, 1, 1), np.float32))
    for name in ("a", "b"):
        g.add_value(name, TensorType(F32, (1, 3, 3, 3)))
    g.add_value("c", TensorType(F32, (1, 7, 2)))
    g.add_node(Node("t", "Transpose", ["last"], ["a"], Perm((0, 3, 1, 2))))
    g.add_node(Node("conv", "Convolution", ["first", "w"], ["b"], NoAttrs()))
    g.add_node(Node("g", "Gather", ["rows", "ids"], ["c"], Axis()))
    specs = {s.name: s for s in specs_of_graph(g, image_channels=3)}
    assert [s.layout for s in specs.values()] == ["NHWC", "NCHW", None, "NCHW"]
    assert specs["ids"].upper == 99 and specs["ids"].channels is None
    assert specs["table"].image_channels == 3 and specs["table"].image_size == (224, 224)


# -- element types ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("target", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_floats_become_the_models_float(tmp_path: Path, dtype: str, target: DType) -> None:
    spec = InputSpec("x", (1, 4), target)
    got = one(tmp_path, np.asarray([[0.5, 1.25, -2, 3]], dtype), spec)
    assert got.dtype == target.numpy
    np.testing.assert_array_equal(got, [[0.5, 1.25, -2, 3]])


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u2", "u8"])
@pytest.mark.parametrize("target", [DType.INT64, DType.INT32, DType.UINT8])
def test_integers_become_the_models_integer(tmp_path: Path, dtype: str, target: DType) -> None:
    spec = InputSpec("x", (1, 3), target)
    got = one(tmp_path, np.asarray([0, 7, 101], dtype), spec)
    assert got.dtype == target.numpy
    np.testing.assert_array_equal(got, [[0, 7, 101]])


@pytest.mark.parametrize(
    ("array", "target", "said"),
    [
        (np.zeros((1, 2), np.int64), F32, "element type int64"),
        (np.zeros((1, 2), bool), F32, "element type bool"),
        (np.zeros((1, 2), np.float32), DType.INT64, "element type float32"),
        (np.full((1, 2), 2**40), DType.INT32, "int32 cannot hold"),
        (np.full((1, 2), -1), DType.UINT8, "uint8 cannot hold"),
        (np.full((1, 2), 2**63, np.uint64), DType.INT64, "int64 cannot hold"),
        (np.full((1, 2), 2), DType.BOOL, "element type int64"),
        (
            np.full((1, 2), 1e300),
            F32,
            "2 values that are not finite, first inf at .* element type cannot hold",
        ),
        (np.full((1, 2), 7e4), DType.FLOAT16, "element type cannot hold"),
        (
            np.asarray([[0, np.nan]]),
            F32,
            r"has a value that is not finite, first NaN at index \[0, 1\]$",
        ),
        (np.asarray([[np.inf, -np.inf]]), F32, "2 values that are not finite, first inf"),
        (np.zeros((1, 2)), DType.STRING, "takes text"),
    ],
)
def test_values_never_change_silently(
    tmp_path: Path, array: np.ndarray, target: DType, said: str
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(CalibrationDataError, match=said) as found:
        open_dataset(tmp_path, [InputSpec("x", (1, 2), target)])[0]
    assert found.value.details["sample"] == "a.npy"


def test_booleans(tmp_path: Path) -> None:
    spec = InputSpec("x", (1, 2), DType.BOOL)
    assert one(tmp_path, np.asarray([[0, 1]]), spec).tolist() == [[False, True]]
    assert one(tmp_path, np.asarray([[True, True]]), spec).tolist() == [[True, True]]


def test_a_bad_value_is_found_where_the_file_has_it(tmp_path: Path) -> None:
    array = HWC_PIXELS.copy()
    array[3, 2, 1] = np.nan
    refused(tmp_path, array, NCHW, r"NaN at index \[3, 2, 1\]")


# -- doubts -------------------------------------------------------------------------------


def test_pixels_that_nobody_normalized_are_doubted_once(tmp_path: Path) -> None:
    spec = InputSpec("x", (1, 3, 8, 8), F32, "NCHW")
    rng = np.random.default_rng(0)
    for i, dtype in enumerate(["u1", "f4", "f4"]):
        np.save(tmp_path / f"{i}.npy", rng.integers(0, 256, (8, 8, 3)).astype(dtype))
    np.save(tmp_path / "3.npy", rng.normal(size=(8, 8, 3)))
    dataset = open_dataset(tmp_path, [spec])
    assert dataset.warnings == []
    for sample in dataset:
        assert sample["x"].dtype == np.float32
    assert dataset.warnings == [
        "input 'x' gets pixels of 0..255 that are not normalized; add a normalize step unless "
        "the model takes such values (3 samples, first '0.npy')"
    ]
    uint8 = open_dataset(tmp_path / "0.npy", [InputSpec("x", (1, 3, 8, 8), DType.UINT8, "NCHW")])
    list(uint8)
    assert uint8.warnings == []


# -- the digest ---------------------------------------------------------------------------


def test_the_digest_is_what_its_description_says() -> None:
    def field(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    sample = {"b": np.asarray([[1, 2, 3]], ">i8"), "a": np.float32(1.5).reshape(())}
    stream = field(b"a") + field(b"float32") + struct.pack("<Q", 0)
    stream += field(struct.pack("<f", 1.5))
    stream += field(b"b") + field(b"int64") + struct.pack("<3Q", 2, 1, 3)
    stream += field(struct.pack("<3q", 1, 2, 3))
    assert sample_digest(sample) == hashlib.sha256(stream).digest()
    assert (
        combine([sample_digest(sample)])
        == hashlib.sha256(
            b"qbcompiler calibration 1\n" + hashlib.sha256(stream).digest()
        ).hexdigest()
    )


def test_reading_in_any_order_and_from_threads_gives_one_digest(tmp_path: Path) -> None:
    for i in range(20):
        np.save(tmp_path / f"{i:02d}.npy", np.full((1, 4), i, np.float32))
    spec = InputSpec("x", (1, 4), F32)
    want = open_dataset(tmp_path, [spec]).digest()
    dataset = open_dataset(tmp_path, [spec])
    threads = [
        threading.Thread(target=lambda s=s: [dataset[i] for i in range(s, 20, 4)])  # type: ignore[misc]
        for s in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dataset.digest() == want
    assert dataset.summary() == {
        "digest": want,
        "samples": 20,
        "random": False,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [1, 4]}],
    }


DIGEST_OF_RANDOM = "1819bef0027e05c144118f73a38870ab5c03df55219770dcf7bd8ebdec825f41"


# -- random data --------------------------------------------------------------------------


def test_random_data_is_the_same_everywhere() -> None:
    specs = [
        InputSpec("x", (1, 3, 5, 7), F32, "NCHW"),
        InputSpec("ids", (1, 6), DType.INT64, upper=1000),
        InputSpec("mask", (1, 6), DType.INT32),
        InputSpec("flag", (3,), DType.BOOL),
        InputSpec("pixels", (1, 2, 2, 3), DType.UINT8, "NHWC"),
    ]
    dataset = open_dataset(RandomSpec(count=3), specs)
    assert isinstance(dataset, Dataset) and dataset.is_random and len(dataset) == 3
    assert "not for release" in dataset.warnings[0]
    # from the definition of PCG64 alone; it must never change, or builds would
    assert dataset.digest() == DIGEST_OF_RANDOM
    assert open_dataset(RandomSpec(count=3, seed=1), specs).digest() != dataset.digest()
    for sample in dataset:
        for spec in specs:
            assert sample[spec.name].shape == spec.shape
            assert sample[spec.name].dtype == spec.dtype.numpy
        assert sample["ids"].min() >= 0 and 200 < sample["ids"].max() < 1000
        assert set(np.unique(sample["mask"])) <= {0, 1}


def test_random_floats_are_about_normal_and_differ_by_sample() -> None:
    dataset = open_dataset(RandomSpec(2), [InputSpec("x", (1, 100_000), F32)])
    x, y = dataset[0]["x"], dataset[1]["x"]
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and abs(x).max() < 6
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.02


def test_random_pixels_go_through_the_value_steps() -> None:
    pre = PreprocessingConfig.model_validate(
        {
            "apply": True,
            "pipeline": [
                {"op": "resize", "size": 9},
                {"op": "normalize", "mean": [0.5], "std": [0.5], "scaleToUint8": True},
            ],
        }
    )
    spec = InputSpec("x", (2, 3, 40, 50), F32, "NCHW")
    x = open_dataset(RandomSpec(1), [spec], pre)[0]["x"]
    assert x.shape == spec.shape
    np.testing.assert_allclose(np.unique(x), (np.arange(256) / 255 - 0.5) / 0.5, atol=1e-6)


# -- other views --------------------------------------------------------------------------


def test_a_subset_and_a_mapped_data_set(tmp_path: Path) -> None:
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.full((1, 2), i, np.float32))
    whole = open_dataset(tmp_path, [InputSpec("x", (1, 2), F32)])
    part = Subset(whole, [3, 1])
    assert list(part.sample_names) == ["3.npy", "1.npy"]
    assert [s["x"][0, 0] for s in part] == [3, 1]
    assert (
        part.digest()
        == open_dataset(
            [tmp_path / "3.npy", tmp_path / "1.npy"], [InputSpec("x", (1, 2), F32)]
        ).digest()
    )
    mapped = Mapped(whole, lambda s: {"y": s["x"] * 2}, [InputSpec("y", (1, 2), F32)])
    assert isinstance(mapped, Dataset)
    assert [s["y"][0, 0] for s in mapped] == [0, 2, 4, 6]
    assert mapped.digest() == whole.digest()
    with pytest.raises(IndexError):
        whole[4]


# -- pictures -----------------------------------------------------------------------------


def save_picture(path: Path, height: int, width: int, mode: str = "RGB") -> np.ndarray:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return pixels


def test_pictures_feed_either_layout_without_guessing(tmp_path: Path) -> None:
    pixels = save_picture(tmp_path / "a.png", 3, 3)
    for layout, want in (("NCHW", pixels.transpose(2, 0, 1)), ("NHWC", pixels)):
        spec = InputSpec("x", (1, 3, 3, 3), F32, layout)  # type: ignore[arg-type]
        np.testing.assert_array_equal(open_dataset(tmp_path, [spec])[0]["x"][0], want)


def test_a_picture_of_another_size_asks_for_preprocessing(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png", 6, 5)
    with pytest.raises(CalibrationDataError, match="the image is 6x5x3") as found:
        open_dataset(tmp_path, [NCHW])[0]
    assert found.value.details["sample"] == "a.png"
    assert found.value.details["expected"] == [4, 5, 3]
    assert "resize or letterbox" in (found.value.hint or "")


def test_a_picture_is_no_batch(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png", 4, 5)
    with pytest.raises(CalibrationDataError, match="a batch of 2, an image is one"):
        open_dataset(tmp_path, [InputSpec("x", (2, 3, 4, 5), F32, "NCHW")])[0]


def test_grey_pictures_get_the_channels_of_the_model(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.png", 4, 5, "L")
    x = open_dataset(tmp_path, [NCHW])[0]["x"][0]
    np.testing.assert_array_equal(x[0], x[2])
    with pytest.raises(CalibrationDataError, match="4x5x1") as found:
        open_dataset(tmp_path, [NCHW], {"autoConvertFormat": False})[0]
    assert "imageChannels" in (found.value.hint or "")


PIPELINE = [
    {"op": "resize", "height": 4, "width": 5},
    {"op": "normalize", "mean": [0.5], "std": [0.25], "scaleToUint8": True},
]


def test_raw_pictures_and_arrays_go_through_the_pipeline(tmp_path: Path) -> None:
    pixels = save_picture(tmp_path / "0.png", 8, 9)
    np.save(tmp_path / "1.npy", pixels)
    np.save(tmp_path / "2.npy", pixels[None])
    np.save(tmp_path / "3.npy", pixels.transpose(2, 0, 1))
    for spec in (NCHW, NHWC):
        dataset = open_dataset(tmp_path, [spec], {"apply": True, "pipeline": PIPELINE})
        samples = [s["x"] for s in dataset]
        for other in samples[1:]:
            np.testing.assert_array_equal(samples[0], other)
        assert samples[0].shape == spec.shape and samples[0].min() < 0
        assert dataset.warnings == []


def test_arrays_in_the_models_own_shape_are_prepared_already(tmp_path: Path) -> None:
    pre = {"apply": True, "pipeline": PIPELINE}
    np.testing.assert_array_equal(one(tmp_path, CHW_PIXELS, NCHW, pre)[0], CHW_PIXELS)
    raw = np.random.default_rng(0).integers(0, 256, (3, 4, 5)).astype(np.uint8)
    want = (raw.astype(np.float32) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(one(tmp_path, raw, NCHW, pre)[0], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("array", "said"),
    [(HWC_PIXELS, "values down to -"), (np.clip(HWC_PIXELS, 0, 1), "divides by 255")],
)
def test_normalizing_twice_is_refused(tmp_path: Path, array: np.ndarray, said: str) -> None:
    pre = {"apply": True, "pipeline": PIPELINE}
    error = refused(tmp_path, array, NCHW, said, preprocessing=pre)
    assert "preprocessing.apply=false" in error.hint


def test_inputs_have_their_own_pipelines(tmp_path: Path) -> None:
    pixels = save_picture(tmp_path / "p.png", 4, 5)
    for name in ("x", "y"):
        (tmp_path / "d" / "s").mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / "s" / f"{name}.png").write_bytes((tmp_path / "p.png").read_bytes())
    specs = [NCHW, InputSpec("y", (1, 3, 4, 5), F32, "NCHW")]
    pre = PreprocessingConfig.model_validate(
        {
            "apply": True,
            "pipeline": [{"op": "normalize", "mean": [0.0], "std": [1.0], "scaleToUint8": True}],
            "inputConfigs": {"y": {"pipeline": [{"op": "colorConvert", "target": "BGR"}]}},
        }
    )
    sample = open_dataset(tmp_path / "d", specs, pre)[0]
    np.testing.assert_array_equal(sample["x"][0, 0], pixels[..., 0].astype(np.float32) / 255)
    np.testing.assert_array_equal(sample["y"][0, 0], pixels[..., 2])
    pre.input_configs["z"] = pre.input_configs["y"]
    with pytest.raises(CalibrationDataError, match="names 'z', no input of the model"):
        open_dataset(tmp_path / "d", specs, pre)
