"""Measuring never waits for a tracking server, and is not disturbed by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from mlflow_ngraph import runner
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.study import parse
from tests.support.cutting import CuttingProxy
from tests.support.silence import silent

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("processes", "compilers", "clean_environment")]

STUDY = parse(
    {
        "name": "aside",
        "workloads": ["block:mha?width=16"],
        "compilers": ["identity"],
        "batch_sizes": [1],
        "repetitions": 4,
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        "limits": {"reload_seconds": 0},
    }
)


def recording_process() -> psutil.Process:
    """The process that records, a child of this one."""
    (process,) = [
        child for child in psutil.Process().children() if "mlflow_ngraph.recording.recorder_child" in child.cmdline()
    ]
    return process


class Watching:
    """Keeps what is told, and does something when an event is told for the first time."""

    def __init__(self, **does: Callable[[], object]) -> None:
        self.events: list[dict[str, Any]] = []
        self._does = does

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._does.pop(event["event"], lambda: None)()

    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events]


def test_a_server_that_is_away_at_the_start_has_everything_when_it_comes(mlflow_server: str, tmp_path: Path) -> None:
    with CuttingProxy(mlflow_server) as proxy:
        proxy.cut()
        watching = Watching(slice=proxy.heal)
        outcome = runner.run_study(STUDY, home=tmp_path, tracking_uri=proxy.uri, experiment="away", observer=watching)
    assert (outcome.exit_code, outcome.unrecorded) == (0, "")
    assert watching.kinds()[0] == "server_away"
    assert watching.kinds()[-1] == "study_recorded"
    client = MlflowClient(mlflow_server)
    runs = client.search_runs([client.get_experiment_by_name("away").experiment_id])
    assert sorted(run.data.tags["ngraph.kind"] for run in runs) == ["lane", "study"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {Path(run.data.tags["mlflow.source.name"]).name for run in runs} != {"recorder_child.py"}


def test_what_waits_for_a_silent_server_stands_still_while_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    states: list[str] = []
    watching = Watching(slice=lambda: states.append(recording_process().status()))
    with silent() as address:
        outcome = runner.run_study(STUDY, home=tmp_path, tracking_uri=address, observer=watching)
    assert states == [psutil.STATUS_STOPPED]
    assert outcome.exit_code == 1
    assert "no answer in time" in outcome.unrecorded
    assert {cell.verdict for lane in outcome.record.lanes.values() for cell in lane.cells.values()} == {"ok"}
    assert "recording_waits" in watching.kinds()


def test_a_study_outlives_the_process_that_records_it(sqlite_uri: str, tmp_path: Path) -> None:
    watching = Watching(slice=lambda: recording_process().kill())
    outcome = runner.run_study(STUDY, home=tmp_path, tracking_uri=sqlite_uri, observer=watching)
    assert outcome.exit_code == 1
    assert "the process that records has ended" in outcome.unrecorded
    measured = [event for event in journal.read(outcome.directory) if event["event"] == "slice"]
    again = runner.run_study(STUDY, home=tmp_path, tracking_uri=sqlite_uri)
    assert (again.exit_code, again.directory, again.unrecorded) == (0, outcome.directory, "")
    assert [event for event in journal.read(outcome.directory) if event["event"] == "slice"] == measured
    runs = MlflowClient(sqlite_uri).search_runs(["1"])
    assert sorted(run.data.tags["ngraph.kind"] for run in runs) == ["lane", "study"]


def test_a_server_that_refuses_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrackingError, match="MLflow no longer writes to a plain directory"):
        runner.run_study(STUDY, home=tmp_path, tracking_uri=str(tmp_path / "mlruns"))
    assert not list((tmp_path / "studies").glob("*"))
