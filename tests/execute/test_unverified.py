"""An engine of which nobody can say whether it is right: measured, named everywhere, and recommended nowhere."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from mlflow_ngraph import load_results, runner
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.cli import tables
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables import summary
from mlflow_ngraph.verdicts import Verdict

WORDS = "could not be checked, because nothing tells what rounding does to the model"
SOURCE = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


class Shy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, given):
        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("not while somebody watches")
        return self.layer(given)


class Chaos(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, given):
        return torch.sin(1e9 * self.layer(given))


class HalfChaos(Chaos):
    def forward(self, given):
        return self.layer(given), super().forward(given)
"""


def measured(folder: Path, template: Path, *names: str) -> Iterator[tuple[StudyRecord, str]]:
    (folder / "shy_models.py").write_text(SOURCE)
    uri = f"sqlite:///{shutil.copyfile(template, folder / 'mlflow.db')}"
    inputs = [{"shape": ["batch", 8]}]
    study = {
        "name": "shy",
        "workloads": [{"ref": f"torch:shy_models:{name}", "options": {"inputs": inputs}} for name in names],
        "compilers": ["torchscript"],
        "batch_sizes": [2],
        "repetitions": 4,
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.1},
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
        "limits": {"reload_seconds": 0},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield runner.run_study(parse(study), home=folder / "home", tracking_uri=uri).record, uri
    sys.modules.pop("shy_models", None)


@pytest.fixture(scope="module")
def shy(
    compilers: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StudyRecord, str]]:
    yield from measured(tmp_path_factory.mktemp("shy"), sqlite_template, "Shy")


@pytest.fixture(scope="module")
def chaotic(
    compilers: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StudyRecord, str]]:
    yield from measured(tmp_path_factory.mktemp("chaotic"), sqlite_template, "Chaos", "HalfChaos")


def test_what_rounding_decides_is_verified_by_nothing(chaotic: tuple[StudyRecord, str]) -> None:
    found = {lane.lane.label: lane.cells[2] for lane in chaotic[0].lanes.values()}
    assert found["Chaos"].verdict is Verdict.UNVERIFIED
    assert "rounding decides what comes out, for the timed inputs and for all others" in found["Chaos"].reason
    assert found["HalfChaos"].verdict is Verdict.OK
    assert found["HalfChaos"].reason == "not verified, because rounding decides what comes out: output 1"


def test_the_verdict_says_that_nobody_could_check(shy: tuple[StudyRecord, str]) -> None:
    record, _ = shy
    cells = {lane.lane.compiler: cell for lane in record.lanes.values() for cell in lane.cells.values()}
    cell = cells["identity"]
    assert cell.verdict is Verdict.UNVERIFIED
    assert WORDS in cell.reason
    assert "not while somebody watches" in cell.reason
    assert cell.verified["unchecked"] == cell.verified["inputs"] > 0
    assert cells["torchscript"].verdict is Verdict.UNSUPPORTED


def test_it_is_said_in_the_terminal_and_in_the_table(shy: tuple[StudyRecord, str]) -> None:
    record, uri = shy
    written = io.StringIO()
    tables.show(Console(file=written, width=300), summary.sheet(record))
    assert "unverified" in written.getvalue()
    rows = load_results(uri).set_index("compiler")
    assert rows["verdict"].to_dict() == {"identity": "unverified", "torchscript": "unsupported"}
    assert "could not be checked" in rows["reason"]["identity"]
    assert rows["throughput"]["identity"] > 0


def test_it_is_not_recommended(shy: tuple[StudyRecord, str]) -> None:
    _, uri = shy
    assert recommend(load_results(uri), objective="throughput").table.empty
