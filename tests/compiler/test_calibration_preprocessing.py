"""Preprocessing steps against Pillow, ONNX Runtime's Resize and values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import skimage
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from PIL import Image

from qbcompiler import config
from qbcompiler.calibration.preprocessing import (
    STEPS,
    CenterCrop,
    ColorConvert,
    Letterbox,
    Normalize,
    Pipeline,
    Preprocessing,
    Resize,
)
from qbcompiler.calibration.preprocessing.pipeline import by_op
from qbcompiler.errors import CalibrationDataError, ConfigError

SAMPLES = Path(skimage.__file__).parent / "data"


def photo(name: str = "chelsea.png") -> np.ndarray:
    return np.asarray(Image.open(SAMPLES / name).convert("RGB"))


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels)).astype(np.uint8)


# -- resize -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "size", "want"),
    [
        (300, 451, 256, (256, 384)),  # 384.85: truncated
        (451, 300, 256, (384, 256)),
        (480, 640, 256, (256, 341)),  # 341.33
        (256, 256, 224, (224, 224)),
        (100, 1000, 256, (256, 2560)),
        (1000, 3, 8, (2666, 8)),
        (7, 5, 5, (7, 5)),
    ],
)
def test_the_shorter_side_gets_the_size(
    height: int, width: int, size: int, want: tuple[int, int]
) -> None:
    assert Resize(size=size).target(height, width) == want


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(150, 90), (256, 384), (600, 1000)])
def test_resizing_a_photo_is_what_pillow_does(mode: str, size: tuple[int, int]) -> None:
    image = photo()
    got = Resize(height=size[0], width=size[1], mode=mode).apply(image)
    resample = getattr(Image.Resampling, mode.upper())
    want = np.asarray(Image.fromarray(image).resize(size[::-1], resample))
    np.testing.assert_array_equal(got, want)
    assert got.dtype == np.uint8


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_float_images_are_resized_like_pictures(mode: str) -> None:
    image = photo()
    step = Resize(height=100, width=140, mode=mode)
    got = step.apply(image.astype(np.float32))
    assert got.dtype == np.float32
    want = step.apply(image).astype(np.float32)
    inside = np.clip(got, 0, 255) if mode == "bicubic" else got
    assert np.abs(inside - want).max() <= (0 if mode == "nearest" else 1.001)


def test_any_number_of_channels_can_be_resized() -> None:
    image = pixels(30, 40, 6)
    for array in (image, image.astype(np.float32)):
        got = Resize(height=11, width=13).apply(array)
        assert got.shape == (11, 13, 6) and got.dtype == array.dtype
        for c in range(6):
            alone = Resize(height=11, width=13).apply(array[..., c : c + 1])
            np.testing.assert_array_equal(got[..., c : c + 1], alone)


def ort_resize(image: np.ndarray, height: int, width: int, mode: str, align: bool) -> np.ndarray:
    """ONNX's Resize, whose modes are PyTorch's ``interpolate`` (opset 19)."""
    node = helper.make_node(
        "Resize",
        ["x", "", "", "size"],
        ["y"],
        mode={"bilinear": "linear", "bicubic": "cubic"}[mode],
        coordinate_transformation_mode="align_corners" if align else "half_pixel",
        cubic_coeff_a=-0.75,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("size", TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = image.astype(np.float32).transpose(2, 0, 1)[None]
    size = np.asarray([1, image.shape[2], height, width])
    return np.asarray(session.run(None, {"x": x, "size": size})[0])[0].transpose(1, 2, 0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(5, 9), (17, 31), (40, 60), (1, 1), (17, 60)])
def test_interpolation_without_antialiasing_is_pytorchs(
    mode: str, align: bool, size: tuple[int, int]
) -> None:
    image = pixels(17, 23, seed=4)
    want = ort_resize(image, *size, mode, align)
    if align and 1 in size:  # PyTorch maps a single pixel to the first one
        want = np.broadcast_to(image[:1, :1].astype(np.float32), (*size, 3))
    step = Resize(*(None, *size), mode, align, antialias=align)  # corners imply no antialiasing
    got = step.apply(image.astype(np.float32))
    np.testing.assert_allclose(got, want, atol=2e-3)
    eight_bit = step.apply(image)
    assert eight_bit.dtype == np.uint8
    assert np.abs(eight_bit - np.clip(want, 0, 255)).max() < 0.502


def test_a_constant_image_stays_constant() -> None:
    image = np.full((20, 31, 3), 77, np.uint8)
    for mode in ("bilinear", "bicubic", "nearest"):
        for antialias in (True, False):
            for align in (True, False):
                got = Resize(None, 13, 47, mode, align, antialias).apply(image)
                assert (got == 77).all()


# -- crop ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "want", "first"),
    [(256, 224, 16), (257, 224, 16), (259, 224, 18), (5, 2, 2), (6, 3, 2), (8, 3, 2), (4, 4, 0)],
)
def test_an_odd_gap_is_split_half_to_even(have: int, want: int, first: int) -> None:
    """round(16.5) is 16, round(17.5) is 18: as torchvision's center_crop has it."""
    ramp = np.arange(have, dtype=np.float32)
    image = np.broadcast_to(ramp[:, None, None], (have, have, 1))
    got = CenterCrop(want, want).apply(image)
    assert got.shape == (want, want, 1)
    assert got[0, 0, 0] == first
    across = CenterCrop(want, want).apply(image.transpose(1, 0, 2))
    assert across[0, 0, 0] == first


def test_a_crop_larger_than_the_image_pads_with_zeros() -> None:
    image = np.full((3, 4, 1), 9, np.uint8)
    got = CenterCrop(6, 4).apply(image)[..., 0]
    assert got.tolist() == [[0] * 4, [9] * 4, [9] * 4, [9] * 4, [0] * 4, [0] * 4]
    got = CenterCrop(2, 7).apply(image)[..., 0]
    assert got.tolist() == [[0, 9, 9, 9, 9, 0, 0]] * 2


# -- letterbox ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "rows", "columns"),
    [
        (480, 640, (80, 560), (0, 640)),
        (640, 480, (0, 640), (80, 560)),
        (300, 451, (107, 533), (0, 640)),  # 425.72 -> 426; 214 rows left
        (333, 640, (153, 486), (0, 640)),  # 307 rows left: 153 above, 154 below
        (640, 640, (0, 640), (0, 640)),
        (1, 1000, (319, 320), (0, 640)),  # 0.64 -> 1
        (10, 20, (160, 480), (0, 640)),  # small images grow
    ],
)
def test_the_box_is_filled_around_the_image(
    height: int, width: int, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    image = np.full((height, width, 3), 200, np.uint8)
    got = Letterbox(640, 640).apply(image)
    inside = got[rows[0] : rows[1], columns[0] : columns[1]]
    assert (inside == 200).all()
    assert (got == 200).sum() == inside.size
    assert (got == 114).sum() == got.size - inside.size


def test_the_letterboxed_photo_is_scaled_bilinearly_at_half_pixels() -> None:
    image = photo("astronaut.png")
    got = Letterbox(320, 640, pad_value=0).apply(image)
    want = ort_resize(image, 320, 320, "bilinear", False)
    assert np.abs(got[:, 160:480].astype(np.float32) - want).max() < 0.51
    assert (got[:, :160] == 0).all() and (got[:, 480:] == 0).all()


def test_the_filling_may_differ_by_channel() -> None:
    got = Letterbox(2, 4, pad_value=(1, 2, 3)).apply(np.zeros((2, 2, 3), np.uint8))
    assert got[0, 0].tolist() == [1, 2, 3] and got[0, 1].tolist() == [0, 0, 0]
    with pytest.raises(ConfigError, match="3 values for 1 channels"):
        Letterbox(2, 4, pad_value=(1, 2, 3)).apply(np.zeros((2, 2, 1), np.uint8))


# -- values -------------------------------------------------------------------------------


def test_normalize_is_torchvisions_totensor_and_normalize() -> None:
    image = np.asarray([[[0, 128, 255]]], np.uint8)
    step = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), scale_to_uint8=True)
    got = step.apply(image)
    assert got.dtype == np.float32
    want = [(0 / 255 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-6)
    np.testing.assert_allclose(
        Normalize((127.5,), (127.5,)).apply(image)[0, 0], [-1, 0.5 / 127.5, 1], rtol=1e-6
    )
    assert image.tolist() == [[[0, 128, 255]]]  # the image itself is left alone
    with pytest.raises(CalibrationDataError, match="2 values for an image of 3 channels"):
        Normalize((1, 2), (1, 1)).apply(image)


def test_colours_are_reversed_and_alpha_stays() -> None:
    image = pixels(2, 2, 4)
    got = ColorConvert().apply(image)
    np.testing.assert_array_equal(got, image[..., [2, 1, 0, 3]])
    np.testing.assert_array_equal(ColorConvert("BGR", "RGB").apply(got), image)
    np.testing.assert_array_equal(ColorConvert("RGB", "RGB").apply(image), image)
    with pytest.raises(CalibrationDataError, match="1 channels"):
        ColorConvert().apply(image[..., :1])


# -- pipelines ----------------------------------------------------------------------------


def test_the_torchvision_recipe_on_a_photo() -> None:
    """Resize(256), CenterCrop(224), ToTensor, Normalize - written with Pillow and NumPy alone."""
    path = SAMPLES / "coffee.png"
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    picture = Image.open(path).convert("RGB")  # 600 x 400
    picture = picture.resize((384, 256), Image.Resampling.BILINEAR)
    picture = picture.crop((80, 16, 304, 240))
    want = (np.asarray(picture, np.float32) / np.float32(255) - mean) / std
    pipeline = Pipeline.from_options(
        [
            {"op": "resize", "size": 256, "mode": "bilinear"},
            {"op": "centerCrop", "height": 224, "width": 224},
            {
                "op": "normalize",
                "mean": mean.tolist(),
                "std": std.tolist(),
                "scaleToUint8": True,
                "fuseIntoFirstLayer": True,
            },
        ]
    )
    np.testing.assert_array_equal(pipeline.apply(photo("coffee.png")), want)
    assert pipeline.normalizes and pipeline.scales_from_255
    assert [s.op for s in pipeline.values_only().steps] == ["normalize"]


EXAMPLES: list[dict[str, Any]] = [
    {"op": "resize", "size": 256, "mode": "bicubic", "alignCorners": True, "antialias": False},
    {"op": "resize", "height": 3, "width": 4, "mode": "nearest"},
    {"op": "centerCrop", "height": 3, "width": 4},
    {"op": "letterbox", "height": 3, "width": 4, "padValue": 7.0},
    {"op": "normalize", "mean": [1.0, 2.0], "std": [3.0, 4.0], "scaleToUint8": True},
    {"op": "colorConvert", "source": "BGR", "target": "RGB"},
]


@pytest.mark.parametrize("options", EXAMPLES, ids=lambda o: o["op"])
def test_every_step_round_trips_through_the_configuration(options: dict[str, Any]) -> None:
    section = config.PreprocessingConfig.model_validate({"apply": True, "pipeline": [options]})
    pipeline = Preprocessing.from_config(section).common.pipeline
    assert pipeline is not None
    again = pipeline.to_options()
    assert all(again[0][k] == v for k, v in options.items())
    assert Pipeline.from_options(again) == pipeline
    config.PreprocessingConfig.model_validate({"apply": True, "pipeline": again})


def test_every_step_of_the_configuration_is_registered_and_tested() -> None:
    assert {o["op"] for o in EXAMPLES} == {s.op for s in STEPS}
    with pytest.raises(ValueError, match="registered twice"):
        by_op([*STEPS, Resize])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"op": "rotate"}, "unknown preprocessing step 'rotate'"),
        ({}, "unknown preprocessing step None"),
        ({"op": "resize"}, "size, or height and width"),
        ({"op": "resize", "size": 3, "height": 3}, "not both"),
        ({"op": "resize", "height": 3}, "size, or height and width"),
        ({"op": "resize", "size": 0}, "whole number in 1"),
        ({"op": "resize", "size": True}, "whole number"),
        ({"op": "resize", "size": 3, "mode": "lanczos"}, "one of bilinear"),
        ({"op": "resize", "size": 3, "Mode": "x"}, "no option 'Mode'"),
        ({"op": "centerCrop", "height": 3}, "lacks an option"),
        ({"op": "letterbox", "height": 3, "width": 3, "padValue": 300}, "0..255"),
        ({"op": "normalize", "std": [1, 0]}, "must not be zero"),
        ({"op": "normalize", "mean": [float("nan")]}, "finite"),
        ({"op": "normalize", "mean": []}, "not be empty"),
        ({"op": "colorConvert", "source": "HSV"}, "one of RGB, BGR"),
        ("resize", "a str where a map belongs"),
    ],
)
def test_bad_steps_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pipeline.from_options([options])


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    channels=st.sampled_from([1, 3, 4]),
    box=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_any_image_fills_the_box(
    height: int, width: int, channels: int, box: tuple[int, int]
) -> None:
    image = pixels(height, width, channels)
    for step in (Letterbox(*box), CenterCrop(*box), Resize(height=box[0], width=box[1])):
        got = step.apply(image)
        assert got.shape == (*box, channels) and got.dtype == np.uint8
