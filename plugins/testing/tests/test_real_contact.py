"""A first contact of the machine that the tests run on, with the parts that are quick."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.devices.profiles import Host
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.course import PARTS, follow
from mlflow_ngraph_testing.first_contact.report import MARKDOWN_NAME, Report

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]


def test_a_machine_is_described_and_a_killed_study_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Bench, "compilers", ["identity"])
    parts = [part for part in PARTS if part.name in ("machine", "interruption")]
    report = Report("host", "full", "1.0", [(part.name, part.title) for part in parts])
    follow(report, Host(), tmp_path, lambda line: None, parts)
    assert {name: (part.status, part.said) for name, part in report.parts.items()} == {
        "machine": ("right", report.parts["machine"].said),
        "interruption": ("right", "2 cells, each measured once; nothing left behind"),
    }
    assert "| its children end with it | yes |" in (tmp_path / MARKDOWN_NAME).read_text()
