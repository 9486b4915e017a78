"""Requests that arrive by themselves, in whole studies with real child processes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.analysis import results
from mlflow_ngraph.execute import journal, rate_search, replay
from mlflow_ngraph.processes.child import ChildFailure
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables import arrivals
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Artifact
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_archives.recompute import recompute

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("fake_compiler")]
DELAY_MS = 5.0


def study(compilers: list[Any] | None = None, **changes: Any) -> Any:
    fake = {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": DELAY_MS}}
    base = {
        "name": "serving",
        "workloads": ["block:mha?width=16"],
        "compilers": compilers or [fake],
        "batch_sizes": [1],
        "repetitions": 6,
        "slice_repetitions": 3,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        # What is tested here must not depend on who else uses the machine.
        "stability": {
            "max_foreign_cpu_percent": 1000,
            "max_spread": 1e9,
            "max_drift": 1e9,
            "max_clock_change": 1e9,
            "max_temperature_rise_c": 1e9,
        },
        "arrivals": {"rates": [50, 100], "seconds": 0.5},
    }
    return parse({**base, **changes})


def run(given: Any, home: Path, **options: Any) -> Any:
    return runner.run_study(given, home=home, offline=True, **options)


def cell_of(record: Any, compiler: str) -> Any:
    (found,) = [lane.cells[1] for lane in record.lanes.values() if lane.lane.compiler == compiler]
    return found


@pytest.fixture(scope="module")
def offered(
    processes: None, fake_compiler: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, str]:
    """A study of two rates, and where it is recorded."""
    home = tmp_path_factory.mktemp("offered")
    uri = f"sqlite:///{shutil.copyfile(sqlite_template, home / 'mlflow.db')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return runner.run_study(study(), home=home, tracking_uri=uri), uri


def test_every_ok_cell_is_offered_every_rate(offered: tuple[Any, str]) -> None:
    outcome, _ = offered
    for compiler in ("identity", "fake"):
        cell = cell_of(outcome.record, compiler)
        assert cell.verdict is Verdict.OK
        assert [(row["rate"], row["requests"], row["servers"]) for row in cell.serving] == [(50, 100, 1), (100, 100, 1)]
        assert cell.arrivals_note == ""
        assert all(len(event["served_ns"]) == 100 for event in cell.arrivals)
    slow = cell_of(outcome.record, "fake")
    assert all(row["service_mean_ms"] >= DELAY_MS for row in slow.serving)
    assert replay.load(outcome.directory) == outcome.record
    table = arrivals.from_record(outcome.record)
    assert len(table) == 4
    assert [sheet.title for sheet in arrivals.parts(outcome.record)] == ["Requests that arrive by themselves"]


@pytest.mark.usefixtures("processes")
def test_in_async_mode_as_many_are_served_as_are_in_flight(tmp_path: Path) -> None:
    """Two requests of 5 ms at a time: one server alone could not keep up with 300 a second."""
    outcome = run(study(mode="async", arrivals={"rates": 300, "seconds": 0.5, "process": "uniform"}), tmp_path)
    (row,) = cell_of(outcome.record, "fake").serving
    assert row["servers"] == 2
    assert row["unserved"] == 0
    assert row["utilisation"] > 0.5
    assert cell_of(outcome.record, "identity").serving == []


@pytest.mark.usefixtures("processes")
def test_cells_that_are_not_ok_are_offered_nothing(tmp_path: Path) -> None:
    wrong = {"name": "fake", "flags": {"behaviour": "wrong"}}
    outcome = run(study([wrong]), tmp_path)
    assert cell_of(outcome.record, "fake").verdict is Verdict.PARITY_FAILED
    assert cell_of(outcome.record, "fake").arrivals == []


@pytest.mark.usefixtures("processes")
def test_a_failure_costs_the_arrivals_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(station: Any, *args: Any) -> Any:
        raise ChildFailure(Verdict.CRASHED, "as told")

    monkeypatch.setattr(rate_search.ServedCell, "offer", fail)
    outcome = run(study(), tmp_path)
    for compiler in ("identity", "fake"):
        cell = cell_of(outcome.record, compiler)
        assert (cell.verdict, cell.arrivals_note) == (Verdict.OK, "crashed: as told")
        assert cell.metrics["throughput"] > 0
        assert "serve_peak_rate" not in cell.metrics
    assert outcome.exit_code == 0


@pytest.mark.usefixtures("processes")
def test_a_study_that_is_killed_while_requests_arrive_offers_them_again(tmp_path: Path) -> None:
    class Stop:
        def on_event(self, event: dict[str, Any]) -> None:
            if event["event"] == "arrivals":
                raise KeyboardInterrupt

    given = study()
    with pytest.raises(KeyboardInterrupt):
        run(given, tmp_path, observer=Stop())
    (directory,) = (tmp_path / "studies").iterdir()
    before = replay.load(directory)
    assert {cell_of(before, name).verdict for name in ("identity", "fake")} == {Verdict.OK}, "verdicts are safe"
    outcome = run(given, tmp_path)
    assert outcome.directory == directory
    for compiler in ("identity", "fake"):
        cell = cell_of(outcome.record, compiler)
        assert (len(cell.serving), cell.arrivals_note) == (2, ""), (
            cell.verdict,
            cell.reason,
            [e["event"] for e in journal.read(directory)],
        )
    assert sum(event["event"] == "engine_built" for event in journal.read(directory)) == 2


def test_rates_that_take_too_long_are_not_offered_and_said() -> None:
    settings = study(arrivals={"rates": [10, 100], "seconds": 1, "max_seconds": 5}).arrivals
    offered = []

    def offer(rate: float, seconds: float, step: int, purpose: str) -> dict[str, Any]:
        offered.append((rate, seconds, step, purpose))
        return {"valid": True, "overloaded": False}

    note = rate_search.offer_rates(settings, 200.0, 1, offer)
    assert offered == [(100, 1.0, 0, "rate")]
    assert note == "10/s was not offered: it takes 10 s, and 5 s are left of max_seconds"


def test_the_search_offers_rates_between_what_kept_the_bound_and_what_did_not() -> None:
    settings = study(arrivals={"rates": [100], "seconds": 1, "max_p99_ms": 10}).arrivals
    offered = []

    def offer(rate: float, seconds: float, step: int, purpose: str) -> dict[str, Any]:
        offered.append((step, purpose, rate))
        return {"valid": True, "overloaded": False, "latency_p99_ms": 1000 / (200 - rate)}

    assert rate_search.offer_rates(settings, 200.0, 1, offer) == ""
    assert offered[:2] == [(0, "rate", 100), (1, "search", 150)], "between 100, where p99 was 10 ms, and 200"
    assert [purpose for _, purpose, _ in offered[1:]] == ["search"] * (len(offered) - 1)
    assert max(rate for *_, rate in offered if 1000 / (200 - rate) <= 10) == 100


def test_a_rate_that_is_not_valid_is_offered_once_more() -> None:
    settings = study(arrivals={"rates": [100], "seconds": 1, "max_p99_ms": 10}).arrivals
    offered = []

    def offer(rate: float, seconds: float, step: int, purpose: str) -> dict[str, Any]:
        offered.append(rate)
        return {"valid": False, "overloaded": False, "reason": "noise"}

    note = rate_search.offer_rates(settings, 200.0, 1, offer)
    assert offered == [100, 100, 100]
    assert note == "the search ended at 100/s: noise"


def test_the_table_of_rates_follows_from_the_journal_and_a_changed_one_is_found(
    offered: tuple[Any, str], tmp_path: Path
) -> None:
    _, uri = offered
    run_id = str(results.load(uri)["run_id"].iloc[0])
    assert len(recompute(run_id, uri).differences) == 0
    client = connection.connect(uri)
    path = Path(client.download_artifacts(run_id, Artifact.ARRIVALS, str(tmp_path)))
    table = pd.read_parquet(path)
    table["queue_share"] += np.where(table.index == 0, 1e-9, 0.0)
    table.to_parquet(path)
    client.log_artifact(run_id, str(path))
    assert recompute(run_id, uri).differences["figure"].tolist() == ["arrivals, step 0: queue_share"]
