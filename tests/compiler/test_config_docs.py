"""``docs/configuration.md`` is true: its reference is the code's, its examples load."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from qbcompiler.config import CompileConfig
from qbcompiler.config.documents import parse_yaml
from qbcompiler.config.reference import BEGIN, END, render_reference, update

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_reference_is_current(tmp_path: Path) -> None:
    copy = tmp_path / "configuration.md"
    shutil.copy(DOCUMENT, copy)
    update(copy)
    assert copy.read_text("utf-8") == DOCUMENT.read_text("utf-8"), (
        "run `python -m qbcompiler.config.reference docs/configuration.md`"
    )


def test_the_reference_has_every_field() -> None:
    text = render_reference()
    for name, field in CompileConfig.model_fields.items():
        assert f"`{field.alias or name}`" in text


def test_the_yaml_examples_load() -> None:
    text = DOCUMENT.read_text("utf-8").partition(BEGIN)[0]
    examples = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        assert CompileConfig.from_data(parse_yaml(example, "example")).settings()


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(f"{END} {BEGIN}")
    with pytest.raises(ValueError, match="lacks"):
        update(path)
