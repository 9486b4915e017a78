"""What is told of a contract suite, from what its processes wrote."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.devices.profiles import Host
from mlflow_ngraph_testing.first_contact.bench import Bench, Form
from mlflow_ngraph_testing.first_contact.command import CommandResult
from mlflow_ngraph_testing.first_contact.contract import PROOF, contract
from mlflow_ngraph_testing.first_contact.finding import Finding

Ending = tuple[int | None, list[dict[str, Any]]]
"""The exit code of a suite, and what it wrote."""
Told = dict[str, Ending]
COLLECTED = {"collected": ["test_a", "test_b", "test_c"]}


def line(test: str, outcome: str, reason: str = "") -> dict[str, Any]:
    return {"test": test, "outcome": outcome, "reason": reason}


def suites(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    told: Told,
    form: Form = "short",
    proven: Ending = (0, []),
) -> Finding:
    """Judge suites that ended with a code, and wrote some lines before."""

    def run(bench: Bench, name: str, command: list[str], seconds: float) -> CommandResult:
        _, compiler, part = name.split("-")
        code, lines = proven if part == "proven" else told[compiler]
        path = folder / "contract" / compiler / f"{part}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in lines))
        return CommandResult(code, "", "", 1.0)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # nothing of it is needed here
    monkeypatch.setattr(Bench, "compilers", list(told))
    monkeypatch.setattr(Bench, "run", run)
    return contract(Bench(Host(), folder, form), 100.0)


def test_every_test_is_told_by_name_with_its_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failure = "def test_b():\n>   assert 1 == 2\nE   assert 1 == 2\n\nmodule.py:3: AssertionError"
    lines = [
        COLLECTED,
        line("test_a", "passed"),
        line("test_b", "failed", failure),
        line("test_c", "skipped", "Skipped: fake has no mode async"),
    ]
    found = suites(monkeypatch, tmp_path, {"fake": (1, lines)})
    assert found.status == "wrong"
    assert [list(row) for row in found.tables[1].rows] == [
        ["test_a", "passed", ""],
        ["test_b", "failed", "assert 1 == 2"],
        ["test_c", "skipped", "fake has no mode async"],
    ]


def test_a_suite_that_is_cut_off_tells_what_it_knew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = [{"collected": ["test_a", f"{PROOF}[cnn-1]", "test_c"]}, line("test_a", "passed")]
    found = suites(monkeypatch, tmp_path, {"fake": (None, told)})
    assert found.status == "incomplete"
    assert found.tables[0].rows[0][2] == "1 passed, 2 not reached"


def test_the_short_form_is_content_with_an_engine_that_computes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = [{"collected": [f"{PROOF}[cnn-1]", "test_c"]}, line(f"{PROOF}[cnn-1]", "passed")]
    assert suites(monkeypatch, tmp_path, {"fake": (None, told)}).status == "right"
    assert suites(monkeypatch, tmp_path, {"fake": (None, told)}, "full").status == "incomplete"


def test_the_short_form_asks_every_compiler_for_an_engine_before_the_suite_of_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proof = [{"collected": [f"{PROOF}[cnn-1]"]}, line(f"{PROOF}[cnn-1]", "passed")]
    unbegun: Told = {"first": (None, []), "second": (None, [])}
    found = suites(monkeypatch, tmp_path, unbegun, proven=(0, proof))
    assert [row[:3] for row in found.tables[0].rows] == [
        [name, "right", "1 passed, no time for the others"] for name in unbegun
    ]
    wrong = [proof[0], line(f"{PROOF}[cnn-1]", "failed")]
    assert suites(monkeypatch, tmp_path / "wrong", unbegun, proven=(1, wrong)).status == "wrong"
    crashed: Told = {"first": (-11, []), "second": (None, [])}
    found = suites(monkeypatch, tmp_path / "crashed", crashed, proven=(0, proof))
    assert [row[1] for row in found.tables[0].rows] == ["wrong", "right"]


def test_a_suite_that_breaks_off_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = suites(monkeypatch, tmp_path, {"fake": (-11, [COLLECTED, line("test_a", "passed")])})
    assert found.status == "wrong"
    assert suites(monkeypatch, tmp_path, {"fake": (2, [])}).status == "wrong"


def test_one_compiler_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = [COLLECTED, *(line(name, "passed") for name in COLLECTED["collected"])]
    found = suites(monkeypatch, tmp_path, {"first": (3, []), "second": (0, whole)})
    assert [row[1] for row in found.tables[0].rows] == ["wrong", "right"]


def test_what_came_to_its_end_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = [COLLECTED, *(line(name, "passed") for name in COLLECTED["collected"])]
    suites(monkeypatch, tmp_path, {"first": (0, whole), "second": (None, [COLLECTED])})
    again = suites(monkeypatch, tmp_path, {"first": (1, [line("test_a", "failed")]), "second": (0, whole)})
    assert [row[1] for row in again.tables[0].rows] == ["right", "right"]


def test_without_pytest_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest" else object())
    found = contract(Bench(Host(), tmp_path, "short"), 100.0)
    assert found.status == "lacking"
    assert "pip install pytest" in found.said
