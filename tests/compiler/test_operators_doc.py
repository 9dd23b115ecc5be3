"""``docs/operators.md`` is what the code says, and says it of every operator."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from qbcompiler.devices import list_devices
from qbcompiler.ops import default_registry
from qbcompiler.report.limits import reasons
from qbcompiler.report.operators_doc import main, render

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_the_document_is_current() -> None:
    assert main(["--check", str(DOCUMENT)]) == 0, (
        "run `python -m qbcompiler.report.operators_doc --write docs/operators.md`"
    )


def test_every_operator_has_a_row_with_every_device() -> None:
    devices = list_devices()
    table = render().partition("## Operators of com.microsoft")[0]
    rows = dict(re.findall(r"^\| (\w+)[^|]*\| (.*) \|$", table, flags=re.MULTILINE))
    schemas = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    assert not schemas - set(rows)
    for name in schemas:
        cells = rows[name].split(" | ")
        assert len(cells) == 2 + len(devices) and set(cells[2:]) <= {"NPU", "CPU"}, name
    place = dict(zip([d.name for d in devices], rows["Sigmoid"].split(" | ")[2:], strict=True))
    assert place["regulus-ra"] == "CPU" and place["regulus-rb"] == "NPU"
    assert rows["Acos"].split(" | ")[1] == "CPU layer"
    assert "[Convolution](#convolution)" in rows["Conv"]


def test_every_layer_has_a_section_that_links_reach() -> None:
    text = render()
    anchors = {f"#{h.lower()}" for h in re.findall(r"^### (\S+)$", text, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\((#[^)]+)\)", text)) <= anchors
    assert {f"#{s.name.lower()}" for s in default_registry().specs if s.name != "Onnx"} == anchors


@pytest.mark.parametrize(
    ("operator", "method", "limit"),
    [
        ("Convolution", "lower", "its weights are not constant"),
        ("Convolution", "lower", "it has … groups"),
        ("Clip", "lower", "its bounds are not constant"),  # said by a helper
        ("DivConstant", "unsupported", "it divides by zero"),
        ("MultiplyConstant", "unsupported", "… is not constant"),  # said by a base class
    ],
)
def test_limits_are_read_from_the_operators_own_words(
    operator: str, method: str, limit: str
) -> None:
    assert limit in reasons(default_registry()[operator], method)


def test_a_stale_document_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "operators.md"
    assert main(["--write", str(path)]) == 0 and main(["--check", str(path)]) == 0
    path.write_text(path.read_text("utf-8") + "more\n", "utf-8")
    assert main(["--check", str(path)]) == 1
    assert "--write" in capsys.readouterr().err
