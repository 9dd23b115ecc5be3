"""A real network, from the source model to the bits of its integer graph."""

from __future__ import annotations

import numpy as np
import pytest

from qbcompiler import mxq_compile
from qbcompiler.package import read_mxq
from qbcompiler.runtime import Accelerator, IntegerEngine, Model, ModelConfig
from qbcompiler.runtime.float_engine import FloatEngine

SHAPES = {"x": [1, 3, 48, 192]}


@pytest.fixture(scope="module")
def built(ocr_cls, ocr_calibration, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cls")
    results = []
    for name in ("one", "two"):
        results.append(
            mxq_compile(
                model=str(ocr_cls),
                calib_data_path=str(ocr_calibration),
                target_device="regulus-rb",
                save_path=str(folder / f"{name}.mxq"),
                mblt_save_path=str(folder / f"{name}.mblt"),
                input_shape_dict=SHAPES,
            )
        )
    return folder, results


def test_two_builds_give_the_same_bytes(built):
    folder, _ = built
    assert (folder / "one.mxq").read_bytes() == (folder / "two.mxq").read_bytes()
    assert (folder / "one.mblt").read_bytes() == (folder / "two.mblt").read_bytes()


def test_held_out_images_are_read_as_the_float_model_reads_them(built, ocr_held_out):
    from qbcompiler.package import read_mblt

    folder, _ = built
    images, _ = ocr_held_out
    with read_mblt(folder / "one.mblt") as file:
        float_engine = FloatEngine(file.graph)
    (output,) = float_engine.output_names
    want = np.concatenate([float_engine.run({"x": x[None]})[output] for x in images])
    with Model(folder / "one.mxq") as model:
        model.launch(Accelerator("regulus-rb"))
        (got,) = model.infer_chw(images)
    assert got.shape == want.shape
    agreement = (got.argmax(axis=1) == want.argmax(axis=1)).mean()
    assert agreement >= 0.9


def test_bits_do_not_depend_on_threads(built, ocr_held_out):
    folder, _ = built
    images, _ = ocr_held_out
    with read_mxq(folder / "one.mxq") as file:
        body = file.body
    names = [o for layer in body.layers for o in layer.outputs if o]
    first = None
    for threads in (1, 2, 4):
        engine = IntegerEngine(body, threads)
        found = engine.run({"x": images[:1]}, outputs=names, integers=True)
        first = first or found
        for name in names:
            np.testing.assert_array_equal(found[name], first[name], err_msg=name)


def test_threads_of_the_model_change_nothing(built, ocr_held_out):
    folder, _ = built
    images, _ = ocr_held_out
    results = []
    for threads in (1, 3):
        model = Model(folder / "one.mxq", ModelConfig(threads=threads))
        model.launch(Accelerator("regulus-rb"))
        results.append(model.infer_chw(images[:4])[0])
        model.dispose()
    np.testing.assert_array_equal(*results)
