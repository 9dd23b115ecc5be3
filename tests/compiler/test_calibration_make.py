"""``make_calib``, ``make_calib_man`` and the look at a folder without a model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from PIL import Image

from qbcompiler.calibration import (
    InputSpec,
    Limits,
    inspect_folder,
    make_calib,
    make_calib_man,
    open_dataset,
)
from qbcompiler.calibration.recipe import read_recipe
from qbcompiler.errors import (
    ArgumentError,
    CalibrationDataError,
    ConfigError,
    OutputWriteError,
)
from qbcompiler.ir import DType

SAMPLES = Path(skimage.__file__).parent / "data"
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "camera.png")

RECIPE = """
Datatype: Image
GetImage:
    to_float32: false
    channel_order: RGB

Pre-Order: [ResizeTorch, CenterCrop, Normalize, SetOrder]
Pre-processing:
    ResizeTorch:
        size: 256
        interpolation: bilinear
    CenterCrop:
        size: [224, 224]
    Normalize:
        mean: [0.485, 0.456, 0.406]
        std: [0.229, 0.224, 0.225]
        to_float_div255: true
    SetOrder:
        shape: HWC
"""


@pytest.fixture()
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in PHOTOS:
        shutil.copy(SAMPLES / name, folder / name)
    (folder / "labels.csv").write_text("1")
    return folder


def test_the_recipe_makes_the_samples_that_the_pipeline_gives(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    listing = make_calib(
        args_pre=str(tmp_path / "r.yaml"),
        data_dir=photos,
        save_dir=tmp_path / "out",
        save_name="net",
        max_size=100,
    )
    assert listing == str(tmp_path / "out" / "net.txt")
    assert Path(listing).read_text() == "".join(f"net/00{i}.npy\n" for i in range(5))
    assert np.load(tmp_path / "out" / "net" / "000.npy").dtype == np.float32
    spec = InputSpec("x", (1, 3, 224, 224), DType.FLOAT32, "NCHW")
    prepared = open_dataset(listing, [spec])
    pipeline = [
        {"op": "resize", "size": 256},
        {"op": "centerCrop", "height": 224, "width": 224},
        {
            "op": "normalize",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "scaleToUint8": True,
        },
    ]
    raw = open_dataset(photos, [spec], {"apply": True, "pipeline": pipeline})
    assert prepared.digest() == raw.digest()
    assert prepared.digest() == open_dataset(tmp_path / "out" / "net", [spec]).digest()
    assert prepared.warnings == []
    # a grey photo became three equal channels before normalization
    assert raw.sample_names[1] == "camera.png"


@pytest.mark.parametrize(
    ("args_pre", "shape"),
    [
        ([{"op": "resize", "height": 5, "width": 6}], (5, 6, 3)),
        ({"pipeline": [{"op": "resize", "height": 5, "width": 6}], "imageChannels": 1}, (5, 6, 1)),
        ({"preprocessing": {"apply": True, "pipeline": []}}, (300, 451, 3)),
        (
            {
                "Pre-Order": ["LetterBox", "SetOrder"],
                "Pre-processing": {"LetterBox": {"size": 8}, "SetOrder": {"shape": "CHW"}},
            },
            (3, 8, 8),
        ),
    ],
)
def test_other_forms_of_the_recipe(
    tmp_path: Path, photos: Path, args_pre: Any, shape: tuple[int, ...]
) -> None:
    make_calib(args_pre, photos, tmp_path, "n")
    assert np.load(tmp_path / "n" / "002.npy").shape == shape  # chelsea


def test_bgr_recipes_swap_the_colours(tmp_path: Path, photos: Path) -> None:
    recipe = read_recipe({"GetImage": {"channel_order": "BGR"}, "Pre-processing": {}})
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(recipe.pipeline.apply(image), image[..., ::-1])


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("Pre-Order: [Blur]\nPre-processing: {Blur: {}}", "unknown preprocessing step 'Blur'"),
        ("Pre-Order: [Resize]\nPre-processing: {}", "which 'Pre-processing' lacks"),
        (
            "Pre-processing: {Resize: {size: 3, sise: 4}}",
            "step 'Resize' has no option 'sise'",
        ),
        ("Pre-processing: {SetOrder: {shape: WHC}}", "SetOrder.shape cannot be 'WHC'"),
        ("GetImage: {channel_order: HSV}\nPre-processing: {}", "channel_order cannot be 'HSV'"),
        ("Pre-processing: [1]", "is a map of steps"),
        ("a: 1", "has no pipeline"),
        ("a: [", "cannot be read"),
        ("3", "cannot be a int"),
        ("!!python/object/apply:os.abort []", "cannot be read"),
    ],
)
def test_bad_recipes_are_refused(tmp_path: Path, photos: Path, recipe: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text(recipe)
    with pytest.raises(ConfigError, match=said):
        make_calib(tmp_path / "r.yaml", photos, tmp_path, "n")
    assert not (tmp_path / "n").exists()


def test_a_function_makes_samples_of_any_file(tmp_path: Path) -> None:
    for i in range(10):
        (tmp_path / "in" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / "sub" / f"{i}.wav").write_text(str(i))
    seen: list[str] = []

    def prepare(path: str) -> np.ndarray:
        seen.append(path)
        return np.full((1, 2), float(Path(path).read_text()))

    listing = make_calib_man(prepare, tmp_path / "in", tmp_path, "out", max_size=4)
    assert [Path(p).stem for p in seen] == ["0", "2", "5", "7"]  # evenly spaced
    assert [np.load(tmp_path / line)[0, 0] for line in Path(listing).read_text().split()] == [
        0,
        2,
        5,
        7,
    ]
    assert np.load(tmp_path / "out" / "000.npy").dtype == np.float32
    # fewer samples later: the rest of the former ones go
    make_calib_man(prepare, tmp_path / "in", tmp_path, "out", max_size=2)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["000.npy", "001.npy"]
    seen.clear()
    make_calib_man(prepare, tmp_path / "in", tmp_path, "out", max_size=4, seed=42)
    chosen = list(seen)
    seen.clear()
    make_calib_man(prepare, tmp_path / "in", tmp_path, "out", max_size=4, seed=42)
    assert seen == chosen == sorted(chosen) and len(set(chosen)) == 4
    seen.clear()
    make_calib_man(prepare, tmp_path / "in", tmp_path, "out")
    assert len(seen) == 10


def test_samples_of_others_are_kept_unless_asked(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "n").mkdir()
    np.save(tmp_path / "n" / "mine.npy", np.zeros(3))
    with pytest.raises(ArgumentError, match=r"holds other samples: mine\.npy") as found:
        make_calib([], photos, tmp_path, "n")
    assert "remove_npy=True" in (found.value.hint or "")
    make_calib([], photos, tmp_path, "n", remove_npy=True)
    assert not (tmp_path / "n" / "mine.npy").exists()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.asarray([np.nan]), "not finite"),
        ("text", "returned str"),
        (np.zeros(0), "returned ndarray"),
        ([[1, 2], [3]], "failed"),
        (None, "returned NoneType"),
    ],
)
def test_what_the_function_returns_is_checked(
    tmp_path: Path, photos: Path, result: Any, said: str
) -> None:
    def prepare(path: str) -> Any:
        return np.asarray(result) if isinstance(result, list) else result

    with pytest.raises(CalibrationDataError, match=said) as found:
        make_calib_man(prepare, photos, tmp_path, "n")
    assert found.value.details["sample"] == "astronaut.png"
    assert not (tmp_path / "n.txt").exists()


def test_bad_arguments_are_refused(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(ArgumentError, match="not a plain name"):
        make_calib([], photos, tmp_path, "../n")
    with pytest.raises(ArgumentError, match="whole number"):
        make_calib([], photos, tmp_path, "n", max_size="many")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be a function"):
        make_calib_man("f", photos, tmp_path, "n")  # type: ignore[arg-type]
    with pytest.raises(CalibrationDataError, match="does not exist"):
        make_calib([], tmp_path / "none", tmp_path, "n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CalibrationDataError, match="has no images"):
        make_calib([], tmp_path / "empty", tmp_path, "n")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputWriteError, match="cannot be written"):
        make_calib([], photos, tmp_path / "file", "n")
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no")
    with pytest.raises(CalibrationDataError, match=r"'broken\.jpg'.*corrupt or truncated"):
        make_calib([], photos, tmp_path, "n")


# -- without a model ----------------------------------------------------------------------


def test_a_folder_of_photos_is_described(photos: Path) -> None:
    progress: list[tuple[int, int]] = []
    summary = inspect_folder(photos, progress=lambda *p: progress.append(p))
    assert summary.ok and summary.samples == 5
    assert progress == [(i, 5) for i in range(1, 6)]
    tensor = summary.tensors[""]
    assert tensor["samples"] == 5
    assert {"shape": [512, 512, 3], "samples": 1} in tensor["shapes"]
    assert tensor["dtypes"] == [{"dtype": "uint8", "samples": 5}]
    assert summary.warnings == ["1 files are not samples and were ignored: 1 .csv"]
    assert json.loads(json.dumps(summary.as_dict()))["digest"] == summary.digest


def test_the_digest_is_of_the_content(tmp_path: Path, photos: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(photos, copy)
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    Image.open(photos / "coffee.png").save(copy / "coffee.png", compress_level=1)
    assert inspect_folder(copy).digest == inspect_folder(photos).digest
    (copy / "coffee.png").unlink()
    assert inspect_folder(copy).digest != inspect_folder(photos).digest


def test_several_inputs_are_told_from_classes(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "d" / f"s{i}").mkdir(parents=True)
        np.save(tmp_path / "d" / f"s{i}" / "ids.npy", np.zeros((1, 4), np.int64))
        np.save(tmp_path / "d" / f"s{i}" / "mask.npy", np.ones((1, 4 + i), np.int64))
    summary = inspect_folder(tmp_path / "d")
    assert summary.samples == 3 and sorted(summary.tensors) == ["ids", "mask"]
    assert summary.tensors["mask"]["shapes"][0] == {"shape": [1, 4], "samples": 1}
    for kind in ("cat", "dog"):
        (tmp_path / "c" / kind).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (4, 4)).save(tmp_path / "c" / kind / f"{i}.png")
    assert inspect_folder(tmp_path / "c").samples == 4


def test_every_problem_is_listed_and_none_raised(tmp_path: Path, photos: Path) -> None:
    (photos / "broken.png").write_bytes(b"no")
    np.save(photos / "nan.npy", np.asarray([1, np.nan, np.inf], np.float32))
    np.save(photos / "empty.npy", np.zeros((0, 3)))
    np.save(photos / "objects.npy", np.asarray([None]), allow_pickle=True)
    summary = inspect_folder(photos)
    assert not summary.ok and summary.digest is None and summary.samples == 9
    found = {p.sample: p.message for p in summary.problems}
    assert list(found) == ["broken.png", "empty.npy", "nan.npy", "objects.npy"]
    assert "corrupt or truncated" in found["broken.png"]
    assert "is empty" in found["empty.npy"]
    assert "nan at index [1]" in found["nan.npy"]
    assert "Python objects" in found["objects.npy"]
    json.dumps(summary.as_dict())
    few = inspect_folder(photos, max_problems=1)
    assert len(few.problems) == 1 and few.more_problems == 3


def test_uploads_cannot_reach_outside_or_grow_without_bound(tmp_path: Path, photos: Path) -> None:
    (photos / "link.png").symlink_to(photos / "coffee.png")
    assert "symbolic link" in inspect_folder(photos).problems[0].message
    assert inspect_folder(photos, Limits()).samples == 6
    (photos / "link.png").unlink()
    small = inspect_folder(photos, Limits(max_pixels=512 * 500))
    assert {p.sample for p in small.problems} == {"astronaut.png", "camera.png", "rocket.jpg"}
    assert "has 5 samples" in inspect_folder(photos, Limits(max_samples=4)).problems[0].message
    assert "does not exist" in inspect_folder(tmp_path / "none").problems[0].message
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.save(tmp_path / "b.npy", np.zeros(3, np.float32))
    mixed = inspect_folder(tmp_path / "a.npy")
    assert mixed.ok and mixed.nbytes == 24
