"""Reports find their way into the documents, and nothing else there changes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_testing.first_contact.finding import Finding
from mlflow_ngraph_testing.first_contact.report import Report
from tests.support.scripts import loaded

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script() -> ModuleType:
    return loaded(ROOT / "benchmarks" / "record_contact.py")


def report(device: str, smoke: Finding) -> Report:
    machine = Finding("right", "fine", (Sheet("This machine", ("what", "found"), [["machine", "a box"]]),))
    made = Report(device, "short", "1.0", [("machine", "machine"), ("smoke", "study smoke")], started_at=0.0)
    made.parts = {"machine": machine, "smoke": smoke}
    return made


def test_a_row_a_device_is_kept_between_the_markers(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    path = tmp_path / "verification.md"
    path.write_text(f"before\n\n{script.BEGIN}\n{script.END}\n\nafter\n")
    script.record(report("xeon", Finding("wrong", "it broke")), tmp_path)
    script.record(report("gpu", Finding("right", "4 ok")), tmp_path)
    script.record(report("xeon", Finding("right", "4 ok")), tmp_path)
    text = path.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row.split("]")[0] for row in rows] == ["| [gpu", "| [xeon"]
    assert "it broke" not in text
    assert (
        (tmp_path / "reference" / "first-contact-xeon.md").read_text().startswith("# First contact with device `xeon`")
    )


def test_documents_without_the_markers_are_left_alone(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "verification.md").write_text("no place\n")
    with pytest.raises(SystemExit, match="lacks the markers"):
        script.record(report("gpu", Finding("right", "")), tmp_path)
    assert (tmp_path / "verification.md").read_text() == "no place\n"


def test_the_documents_have_the_markers(script: ModuleType) -> None:
    text = (ROOT / "docs" / "verification.md").read_text()
    assert text.index(script.BEGIN) < text.index(script.END)
