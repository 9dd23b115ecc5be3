"""Presets, the order in which settings win, and what has no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qbcompiler.config import (
    CalibrationConfig,
    CompileConfig,
    check_effect,
    list_presets,
    load_preset,
    preset_names,
    remarks,
    resolve_config,
    settings_without_effect,
)
from qbcompiler.config.base import Section
from qbcompiler.config.effect import ACTED_ON, GAPS
from qbcompiler.config.inputs import Letterbox, Normalize, Resize
from qbcompiler.errors import ConfigError

# -- presets --------------------------------------------------------------------------------


def test_the_presets_of_the_contract() -> None:
    assert {p["name"]: p["extends"] for p in list_presets()} == {
        "classification": None,
        "classification_torchvision": "classification",
        "detection": None,
        "llm": None,
        "llm_fast": "llm",
        "multimodal": None,
        "text_encoder": None,
        "vision_transformer": None,
        "yolo_1280": "detection",
        "yolo_640": "detection",
    }


def test_what_the_vision_presets_set() -> None:
    improved = {
        "bit": {"innerActivations": 16, "elementwiseActivations": 16},
        "equivalentTransformation": {"crossLayerEqualization": {"apply": True}},
        "hessianQuant": {"apply": True},
        "layerBiasCorrection": {
            "apply": True,
            "attributes": {"numSamples": 32, "iterations": 1, "correctionRate": 1.0},
        },
    }
    assert CompileConfig.from_preset("classification").settings() == {
        "calibration": {
            "method": 2,
            "mode": 1,
            "output": 0,
            "maxPercentile": {"percentile": 0.999999},
        },
        **improved,
    }
    assert CompileConfig.from_preset("detection").settings() == {
        "calibration": {
            "method": 2,
            "mode": 1,
            "output": 1,
            "maxPercentile": {"percentile": 0.999999},
        },
        **improved,
    }
    # asked for by name, a method stays what it is
    assert CompileConfig().calibration.method == 0
    torchvision = CompileConfig.from_preset("classification_torchvision")
    assert torchvision.calibration.mode == 1
    assert torchvision.uint8_input.apply and torchvision.image_channels == 3
    resize, crop, normalize = torchvision.preprocessing.pipeline
    assert isinstance(resize, Resize) and (resize.size, resize.mode) == (256, "bilinear")
    assert crop.op == "centerCrop"
    assert isinstance(normalize, Normalize)
    assert normalize.mean == [0.485, 0.456, 0.406] and normalize.std == [0.229, 0.224, 0.225]
    assert normalize.scale_to_uint8 and normalize.fuse_into_first_layer
    for size in (640, 1280):
        yolo = CompileConfig.from_preset(f"yolo_{size}")
        (step,) = yolo.preprocessing.pipeline
        assert isinstance(step, Letterbox)
        assert (step.height, step.width, step.pad_value) == (size, size, 114)
        assert (yolo.calibration.mode, yolo.calibration.output) == (1, 1)


def test_what_the_transformer_presets_set() -> None:
    vit = CompileConfig.from_preset("vision_transformer")
    assert (vit.calibration.method, vit.calibration.mode) == (1, 0)
    activation = vit.bit.transformer.activation
    assert activation.output == 16 and activation.ffn.up == 16 and activation.query == 8
    llm, fast = CompileConfig.from_preset("llm"), CompileConfig.from_preset("llm_fast")
    six = ("qk", "ud", "vo", "spin_r1", "spin_r2", "optimize_ffn")
    assert all(getattr(llm.equivalent_transformation, n).apply for n in six)
    assert not any(getattr(fast.equivalent_transformation, n).apply for n in six)
    assert llm.llm.attributes.calibration.use_full_seq_length
    assert not fast.llm.attributes.calibration.use_full_seq_length
    assert fast.llm.apply and fast.llm.attributes.max_cache_length == 4096
    assert CompileConfig.from_preset("multimodal").calibration.method == 3


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        load_preset("clasification")
    assert caught.value.details["nearest"] == "classification"
    assert "yolo_640" in str(caught.value.hint)


# -- the order ------------------------------------------------------------------------------


def test_each_layer_wins_over_those_below(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("calibration: {mode: 2, output: 2}\nimageChannels: 1\n")
    layers: dict[str, Any] = {"preset": "yolo_640"}
    found = [resolve_config(**layers).config]
    layers["compile_config"] = file
    found.append(resolve_config(**layers).config)
    layers["sections"] = {"calibration": CalibrationConfig(output=0)}
    found.append(resolve_config(**layers).config)
    layers["arguments"] = {"image_channels": 4, "cpu_offload": None}
    found.append(resolve_config(**layers).config)
    assert [(c.calibration.mode, c.calibration.output, c.image_channels) for c in found] == [
        (1, 1, 3),
        (2, 2, 1),
        (2, 0, 1),
        (2, 0, 4),
    ]
    assert all(c.preprocessing.apply for c in found)


def test_the_log_says_what_overrode_what() -> None:
    resolved = resolve_config(
        preset="detection",
        compile_config={"calibration": {"mode": 1, "output": 0}},
        arguments={"inference_scheme": "all"},
    )
    assert resolved.notes == (
        "configuration: arguments over compile_config over preset detection over the defaults",
        "/calibration/output: compile_config overrides preset detection",
    )
    assert {k: v for k, v in resolved.origins.items() if v != "preset detection"} == {
        "/calibration/mode": "compile_config",
        "/calibration/output": "compile_config",
        "/inferenceScheme": "arguments",
    }
    assert resolved.preset == "detection"


def test_maps_merge_and_lists_are_replaced() -> None:
    low: Any = {
        "inputShapeDict": {"a": [1], "b": [1, 2]},
        "bit": {"layerOverrides": {"weight8Bits": ["x"]}},
    }
    high: Any = {
        "input_shape_dict": {"b": [3]},
        "bit": {"layer_overrides": {"weight_8bits": ["y"]}},
    }
    config = resolve_config(compile_config=low, arguments=high).config
    assert config.input_shape_dict == {"a": [1], "b": [3]}
    assert config.bit.layer_overrides.weight_8bits == ["y"]


def test_a_short_form_is_overridden_in_part() -> None:
    config = resolve_config(
        preset="vision_transformer",
        compile_config={"bit": {"transformer": {"activation": {"ffn": {"down": 8}}}}},
    ).config
    ffn = config.bit.transformer.activation.ffn
    assert (ffn.up, ffn.gate, ffn.down) == (16, 16, 8)


def test_an_object_lays_only_what_it_sets_over_the_preset() -> None:
    config = CompileConfig()
    config.calibration.mode = 2
    resolved = resolve_config(preset="detection", compile_config=config)
    assert (resolved.config.calibration.mode, resolved.config.calibration.output) == (2, 1)


def test_each_layer_is_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"quantization": {"calibration": {"mode": 9}}}))
    with pytest.raises(ConfigError) as caught:
        resolve_config(compile_config=file)
    assert caught.value.message.startswith(f"file {file}: /quantization/calibration/mode: ")
    with pytest.raises(ConfigError, match="arguments: /imageChannels"):
        resolve_config(arguments={"image_channels": -1})
    with pytest.raises(ConfigError, match="calibration: unknown key 'mod'"):
        resolve_config(sections={"calibration": {"mod": 1}})
    with pytest.raises(ConfigError, match="must be a path, a map or a CompileConfig"):
        resolve_config(compile_config=3)  # type: ignore[arg-type]


# -- effect ---------------------------------------------------------------------------------


def leaves(model: type[Section] = CompileConfig, here: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        where = f"{here}/{field.alias or name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += leaves(field.annotation, where)
        else:
            found.append(where)
    return found


def covers(pattern: str, where: str) -> bool:
    parts, path = pattern.split("/"), where.split("/")
    same = all(p in ("*", q) for p, q in zip(parts, path, strict=False))
    return same and len(parts) <= len(path)


def test_every_field_either_has_an_effect_or_says_that_it_has_none() -> None:
    silent = [
        where
        for where in leaves()
        if not any(covers(pattern, where) for pattern in ACTED_ON)
        and not any(covers(gap.where, where) for gap in GAPS)
    ]
    assert silent == []


def test_the_table_names_only_fields_that_exist() -> None:
    known = leaves()
    for pattern in ACTED_ON:
        assert any(covers(pattern, where) for where in known), pattern
    for gap in GAPS:
        stem = gap.where.split("/*")[0]
        assert any(covers(stem, where) for where in known), gap.where
        assert gap.severity in ("error", "warning") and gap.reason


def test_the_defaults_have_no_remark() -> None:
    assert settings_without_effect(CompileConfig()) == []


@pytest.mark.parametrize(
    ("data", "pointers"),
    [
        ({"calibration": {"output": 2}}, ["/calibration/output"]),
        ({"uint8Input": {"apply": True}}, ["/uint8Input"]),
        ({"bufferMode": 2}, ["/bufferMode"]),
        ({"hessianQuant": {"apply": True}}, []),
        ({"hessianQuant": {"apply": True, "hessianDtype": "bf16"}}, ["/hessianQuant/hessianDtype"]),
        ({"searchWeightScale": {"apply": True}}, []),
        (
            {"hessianQuant": {"attributes": {"blockSize": 128}}},
            ["/hessianQuant/attributes"],
        ),
        (
            {
                "preprocessing": {
                    "apply": True,
                    "pipeline": [
                        {"op": "normalize", "mean": [0], "std": [1], "fuseIntoFirstLayer": True}
                    ],
                }
            },
            ["/preprocessing/pipeline/0/fuseIntoFirstLayer"],
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "resize", "size": 3}]}},
            ["/preprocessing/pipeline"],
        ),
        (
            {"equivalentTransformation": {"qk": {"apply": True}, "spinR1": {"apply": True}}},
            ["/equivalentTransformation/spinR1"],
        ),
        (
            {"calibration": {"layerOverrides": {"output": {"fc*": 2}}}},
            ["/calibration/layerOverrides/output/fc*"],
        ),
    ],
)
def test_what_is_left_out_is_a_warning(data: dict[str, Any], pointers: list[str]) -> None:
    config = CompileConfig.from_data(data)
    assert [r.pointer for r in check_effect(config)] == pointers
    assert settings_without_effect(config) == [(r.pointer, r.reason) for r in remarks(config)]


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        (
            {"bit": {"transformer": {"mixedPrecision": {"activation": {"apply": True}}}}},
            "/bit/transformer/mixedPrecision",
        ),
        ({"llm": {"apply": True}}, "/llm"),
        ({"loadScale": {"apply": True, "path": "x"}}, "/loadScale"),
        ({"splitParts": 2}, "/splitParts"),
    ],
)
def test_what_cannot_be_left_out_is_an_error(data: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_effect(CompileConfig.from_data(data))
    assert caught.value.details["pointer"] == pointer
    assert pointer in caught.value.message and caught.value.hint


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_compiles_or_says_what_it_needs(name: str) -> None:
    config = CompileConfig.from_preset(name)
    if name in ("llm", "llm_fast", "multimodal"):
        with pytest.raises(ConfigError, match="cannot honour"):
            check_effect(config)
    else:
        assert all(r.severity == "warning" for r in check_effect(config))
