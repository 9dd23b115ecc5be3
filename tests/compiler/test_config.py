"""The configuration: spellings, groups, bounds, messages, templates, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from qbcompiler.config import (
    BitConfig,
    CalibrationConfig,
    CompileConfig,
    EquivalentTransformationConfig,
    LlmConfig,
    PreprocessingConfig,
    Section,
    config_schema,
    dump_default_config,
    load_config_file,
    preset_names,
    render_config,
)
from qbcompiler.config.documents import MAX_BYTES, parse_json, parse_yaml, read_document
from qbcompiler.config.load import GROUPS
from qbcompiler.errors import ConfigError, OutputWriteError

CONTRACT_FIELDS = [
    "modelPaths",
    "calibDataPaths",
    "savePaths",
    "useRandomCalib",
    "inferenceScheme",
    "cpuOffload",
    "forceNpuInputReposition",
    "forceNpuOutputReposition",
    "bufferMode",
    "inputShapeDict",
    "device",
    "dtype",
    "debug",
    "trace",
    "imageChannels",
    "configVersion",
    "splitBlocks",
    "splitParts",
    "uint8Input",
    "preprocessing",
    "resourceManagement",
    "calibration",
    "bit",
    "hessianQuant",
    "layerBiasCorrection",
    "mod",
    "llm",
    "moe",
    "equivalentTransformation",
    "searchWeightScale",
    "loadScale",
    "runtimeOptions",
    "saveSample",
]


def refused(data: Any, source: str = "f.json") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        CompileConfig.from_data(data, source=source)
    return caught.value


def sections(model: type[Section] = CompileConfig) -> list[type[Section]]:
    found = [model]
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += sections(field.annotation)
    return found


def test_every_field_of_the_contract_exists_under_its_name() -> None:
    assert [f.alias for f in CompileConfig.model_fields.values()] == CONTRACT_FIELDS


def test_every_field_says_what_it_is_for() -> None:
    missing = [
        f"{section.__name__}.{name}"
        for section in sections()
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert missing == []


def test_defaults_of_the_contract() -> None:
    config = CompileConfig()
    assert config.inference_scheme == "single"
    assert config.calibration.max_percentile.percentile == 0.9999
    assert config.calibration.max_percentile.topk_ratio == 0.01
    assert config.calibration.max_sample_size_for_quant_scheme == 16
    assert config.hessian_quant.attributes.block_size == 256
    assert config.layer_bias_correction.attributes.num_samples == 256
    assert config.layer_bias_correction.attributes.iterations == 5
    assert config.layer_bias_correction.attributes.correction_rate == 0.05
    assert config.image_channels == 0
    assert config.buffer_mode == 1


@pytest.mark.parametrize(
    "data",
    [
        {"calibration": {"maxPercentile": {"percentile": 0.5}, "mode": 1}},
        {"calibration": {"max_percentile": {"percentile": 0.5}, "mode": 1}},
        {"quantization": {"calibration": {"maxPercentile": {"percentile": 0.5}, "mode": 1}}},
    ],
)
def test_both_spellings_and_the_group_mean_the_same(data: dict[str, Any]) -> None:
    config = CompileConfig.from_data(data)
    assert (config.calibration.mode, config.calibration.max_percentile.percentile) == (1, 0.5)


@pytest.mark.parametrize("group", list(GROUPS))
def test_each_grouped_section_is_read(group: str) -> None:
    for name in GROUPS[group]:
        value = {
            "calibration": {"mode": 2},
            "bit": {"layerOverrides": {"weight8Bits": ["a"]}},
            "equivalentTransformation": {"qk": {"apply": True}},
        }.get(name, {"apply": True})
        assert CompileConfig.from_data({group: {name: value}}).settings() == {name: value}


def test_the_old_spelling_of_a_grouped_section() -> None:
    data = {"advancedQuantization": {"EquivalentTransformation": {"qk": {"apply": True}}}}
    assert CompileConfig.from_data(data).equivalent_transformation.qk.apply


def test_a_section_given_both_ways_names_both_places() -> None:
    error = refused({"quantization": {"calibration": {}}, "calibration": {}})
    assert error.details["pointers"] == ["/quantization/calibration", "/calibration"]
    assert "/quantization/calibration" in error.message and "/calibration" in error.message


def test_a_field_in_both_spellings_names_both_places() -> None:
    error = refused({"calibration": {"max_percentile": {}, "maxPercentile": {}}})
    assert error.details["pointers"] == [
        "/calibration/max_percentile",
        "/calibration/maxPercentile",
    ]


@pytest.mark.parametrize(
    ("data", "pointer", "nearest"),
    [
        ({"calibraton": {}}, "/calibraton", "calibration"),
        ({"calibration": {"mod": 1}}, "/calibration/mod", "mode"),
        ({"cpu_ofload": True}, "/cpu_ofload", "cpuOffload"),
        ({"quantization": {"calib": {}}}, "/quantization/calib", "calibration"),
        (
            {"calibration": {"maxPercentile": {"percentil": 1}}},
            "/calibration/maxPercentile/percentil",
            "percentile",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "resize", "heigth": 3, "width": 3}]}},
            "/preprocessing/pipeline/0/heigth",
            "height",
        ),
        (
            {"preprocessing": {"inputConfigs": {"a/b": {"pipelin": []}}}},
            "/preprocessing/inputConfigs/a~1b/pipelin",
            "pipeline",
        ),
        (
            {"bit": {"layerOverrides": {"activations16Bits": []}}},
            "/bit/layerOverrides/activations16Bits",
            "activation16Bits",
        ),
        ({"zzz": 1}, "/zzz", None),
    ],
)
def test_an_unknown_key_gives_its_place_and_the_nearest_name(
    data: dict[str, Any], pointer: str, nearest: str | None
) -> None:
    error = refused(data)
    assert error.code == "CONFIG_ERROR" and error.exit_code == 2
    assert error.details["pointer"] == pointer
    assert error.details["nearest"] == nearest
    assert error.message.startswith(
        f"f.json: unknown key {pointer.rsplit('/', 1)[1]!r} at {pointer}"
    )
    if nearest:
        assert f"did you mean {nearest!r}?" in error.message
    else:
        assert "calibration" in str(error.hint)


@pytest.mark.parametrize(
    ("data", "pointer", "words"),
    [
        ({"calibration": {"mode": "1"}}, "/calibration/mode", "0, 1 or 2"),
        ({"calibration": {"mode": True}}, "/calibration/mode", "whole number"),
        ({"calibration": {"mode": 1.0}}, "/calibration/mode", "whole number"),
        ({"quantization": {"calibration": {"mode": 7}}}, "/quantization/calibration/mode", "0, 1"),
        ({"useRandomCalib": "yes"}, "/useRandomCalib", "boolean"),
        (
            {"calibration": {"maxPercentile": {"percentile": 1.5}}},
            "/calibration/maxPercentile/percentile",
            "less than or equal to 1",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "blur"}]}},
            "/preprocessing/pipeline/0",
            "'resize', 'centerCrop', 'letterbox', 'normalize', 'colorConvert'",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "resize"}]}},
            "/preprocessing/pipeline/0",
            "either size, or height and width",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "resize", "size": 3, "height": 3, "width": 3}]}},
            "/preprocessing/pipeline/0",
            "either size, or height and width",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "centerCrop", "height": 0, "width": 1}]}},
            "/preprocessing/pipeline/0/height",
            "greater than or equal to 1",
        ),
        (
            {"preprocessing": {"pipeline": [{"op": "normalize", "mean": [0.0], "std": [0.0]}]}},
            "/preprocessing/pipeline/0/std",
            "must not be 0",
        ),
        ({"bit": {"transformer": {"weight": {"ffn": 5}}}}, "/bit/transformer/weight/ffn/up", "4"),
        ({"inputShapeDict": {"x": [1, 0]}}, "/inputShapeDict/x/1", "greater than or equal to 1"),
        ({"inferenceScheme": "global"}, "/inferenceScheme", "'global4' or 'global8'"),
        ({"configVersion": "2.0.0"}, "/configVersion", "newer"),
        ({"configVersion": "new"}, "/configVersion", "version"),
        ({"calibration": [1]}, "/calibration", "map"),
        ([1], "", "map"),
    ],
)
def test_a_wrong_value_gives_its_place_and_what_is_allowed(
    data: Any, pointer: str, words: str
) -> None:
    error = refused(data)
    assert error.details["pointer"] == pointer
    assert words in error.message
    assert error.message.startswith(f"f.json: {pointer or '/'}: ")


def test_all_wrong_values_are_in_the_details() -> None:
    error = refused({"calibration": {"mode": 9, "method": 9}, "splitParts": -1})
    pointers = {e["pointer"] for e in error.details["errors"]}
    assert pointers == {"/calibration/mode", "/calibration/method", "/splitParts"}
    assert "(and 2 more)" in error.message


def test_one_integer_stands_for_the_three_projections() -> None:
    config = CompileConfig.from_data({"bit": {"transformer": {"weight": {"ffn": 4}}}})
    ffn = config.bit.transformer.weight.ffn
    assert (ffn.up, ffn.gate, ffn.down) == (4, 4, 4)
    assert BitConfig.Transformer.Weight(ffn=4).ffn == ffn  # type: ignore[arg-type]


def test_classes_nest_as_scripts_write_them() -> None:
    et = EquivalentTransformationConfig
    assert et(ud=et.Ud(apply=True, smoothing_factor=0.8)).ud.smoothing_factor == 0.8
    percentile = CalibrationConfig.MaxPercentile(percentile=0.999)
    assert CalibrationConfig(mode=1, max_percentile=percentile).max_percentile.topk_ratio == 0.01
    given: Any = {"percentile": 0.9, "topk_ratio": 0.1}
    assert CalibrationConfig(max_percentile=given).max_percentile.percentile == 0.9
    runtime = LlmConfig.Attributes.Runtime(batch_size=2)
    assert LlmConfig(attributes=LlmConfig.Attributes(runtime=runtime)).attributes.runtime == runtime
    steps: Any = [{"op": "centerCrop", "height": 2, "width": 2}]
    assert PreprocessingConfig(pipeline=steps).pipeline[0].op == "centerCrop"


def test_settings_see_what_was_assigned_inside_a_default_section() -> None:
    config = CompileConfig()
    assert config.settings() == {}
    config.calibration.mode = 2
    config.bit.layer_overrides.weight_8bits = ["fc*"]
    assert config.settings() == {
        "calibration": {"mode": 2},
        "bit": {"layerOverrides": {"weight8Bits": ["fc*"]}},
    }


def test_assignment_is_checked() -> None:
    with pytest.raises(ValueError, match="0, 1 or 2"):
        CompileConfig().calibration.mode = 5  # type: ignore[assignment]


# -- the resolved form ----------------------------------------------------------------------


def test_resolved_fills_in_every_field_in_a_fixed_order() -> None:
    one = CompileConfig.from_data({"inputShapeDict": {"b": [1], "a": [2]}})
    two = CompileConfig.from_data({"inputShapeDict": {"a": [2], "b": [1]}})
    assert json.dumps(one.resolved()) == json.dumps(two.resolved())
    assert list(one.resolved()) == CONTRACT_FIELDS


def test_the_portable_form_has_nothing_of_the_caller() -> None:
    config = CompileConfig(model_paths=["/home/me/m.onnx"], device="gpu", debug=True)
    assert config.resolved(portable=True) == CompileConfig().resolved(portable=True)
    assert "/home/me" not in json.dumps(config.resolved(portable=True))


@pytest.mark.parametrize("preset", [None, *preset_names()])
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_a_template_reads_back_as_what_it_was(
    tmp_path: Path, preset: str | None, suffix: str
) -> None:
    path = tmp_path / f"template{suffix}"
    dump_default_config(path, preset)
    expected = CompileConfig() if preset is None else CompileConfig.from_preset(preset)
    assert CompileConfig.from_file(path).resolved() == expected.resolved()
    assert list(tmp_path.iterdir()) == [path]


def test_the_yaml_template_explains_every_field_in_lines_that_fit() -> None:
    text = render_config(CompileConfig())
    assert max(map(len, text.splitlines())) <= 110
    assert text.count("# ") > len(CONTRACT_FIELDS)


def test_a_template_needs_a_known_suffix_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="JSON or YAML"):
        dump_default_config(tmp_path / "a.toml")
    with pytest.raises(OutputWriteError, match="cannot write"):
        dump_default_config(tmp_path / "no" / "a.yaml")


def test_the_schema_accepts_templates_and_refuses_what_the_model_refuses() -> None:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for name in preset_names():
        validator.validate(CompileConfig.from_preset(name).resolved())
    for bad in ({"calibraton": {}}, {"calibration": {"mode": 5}}, {"inputShapeDict": {"x": [0]}}):
        assert not validator.is_valid(bad)


# -- documents ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x 1", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: !!python/object/apply:os.system ['true']", "tags are not allowed"),
        ("a: !custom 1", "tags are not allowed"),
        ("a: 1\na: 2", "'a' is given twice"),
        ("1: 2", "not a string"),
        ("a: b: c", "line 1"),
        ("a: {" * 80, "nested deeper"),
        ("--- 1\n--- 2", "another document"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_yaml_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    assert words in caught.value.message and caught.value.message.startswith("f.yaml: ")


def test_yaml_has_only_the_values_that_json_has() -> None:
    words = "a: yes\nb: 012\nc: 2024-01-01\nd: 1:30\ne: 1e-3\nf: .5\ng: ~\nh: off\ni: 0x10\n"
    assert parse_yaml(words + '"<<": {j: 1}', "f.yaml") == {
        "a": "yes",
        "b": "012",
        "c": "2024-01-01",
        "d": "1:30",
        "e": 0.001,
        "f": 0.5,
        "g": None,
        "h": "off",
        "i": "0x10",
        "<<": {"j": 1},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": Infinity}', "Infinity is not a JSON number"),
        ("[" * 100 + "]" * 100, "nested deeper"),
        ("[" * 1_000_000, "nested deeper"),
        ("{", "line 1, column 2"),
        ("9" * 5000, "digits"),
    ],
)
def test_json_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text, "f.json")
    assert words in caught.value.message and caught.value.message.startswith("f.json: ")


@pytest.mark.parametrize("name", ["c.toml", "c", "c.yaml.bak"])
def test_other_kinds_of_file_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="neither JSON nor YAML"):
        read_document(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_document(tmp_path / "no.json")
    (tmp_path / "d.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(tmp_path / "d.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_document(tmp_path / "b.json")
    (tmp_path / "l.yaml").write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_document(tmp_path / "l.yaml")


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("# nothing\n")
    assert load_config_file(tmp_path / "e.yaml") == {}
    assert CompileConfig.from_file(tmp_path / "e.yaml") == CompileConfig()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*CONTRACT_FIELDS, *GROUPS, "apply", "mode", "pipeline", "op", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_configuration_or_a_typed_error(data: Any) -> None:
    try:
        config = CompileConfig.from_data(data)
    except ConfigError as exc:
        assert exc.message and "\n" not in exc.message
        json.dumps(exc.as_dict(), allow_nan=True)
    else:
        assert CompileConfig.from_data(config.resolved()).resolved() == config.resolved()
