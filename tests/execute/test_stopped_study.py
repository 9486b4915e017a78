"""A study whose children are stopped while they compile, load and serve names the stops, and has no figure of them."""

from __future__ import annotations

from pathlib import Path
from threading import Timer
from typing import Any

import psutil
import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.study import parse

pytestmark = pytest.mark.long

STOP_S = 1.5
STOPS = {"tune": ("search", 0.0), "first inference": ("run", 0.0), "requests": ("run", 0.5)}
"""Moments of the stops: stages, with their lane, and the seconds from their beginning."""


class Stopper:
    """Stops the workers once in each stage."""

    def __init__(self) -> None:
        self._left = dict(STOPS)
        self._lanes: dict[str, str] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "study_started":
            self._lanes = {lane["id"]: lane["flags"].get("at") for lane in event["lanes"]}
        for stage, (lane, after_s) in list(self._left.items()):
            if str(event.get("stage")).startswith(stage) and self._lanes.get(event["lane"]) == lane:
                del self._left[stage]
                Timer(after_s, _stop).start()


def _resume(workers: list[psutil.Process]) -> None:
    for worker in workers:
        worker.resume()


def _stop() -> None:
    children = psutil.Process().children(recursive=True)
    workers = [child for child in children if "mlflow_ngraph.execute.worker" in child.cmdline()]
    for worker in workers:
        worker.suspend()
    Timer(STOP_S, _resume, [workers]).start()


@pytest.mark.usefixtures("processes", "fake_compiler")
def test_stops_of_compilations_loads_and_rates_are_named(tmp_path: Path) -> None:
    searching = {"behaviour": "slow", "at": "search", "search_batches": 1, "delay_ms": 600}
    running = {"behaviour": "slow", "delay_ms": 400}
    given = {
        "name": "stopped",
        "workloads": ["block:mha?width=16"],
        "compilers": [{"name": "fake", "flags": searching}, {"name": "fake", "flags": running}],
        "batch_sizes": [1],
        "repetitions": 4,
        "slice_repetitions": 2,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        "limits": {"reload_seconds": 0},
        "arrivals": {"rates": 100, "seconds": 1},
    }
    outcome = runner.run_study(parse(given), home=tmp_path, offline=True, observer=Stopper())
    lanes = {lane.lane.flags.get("at"): lane for lane in outcome.record.lanes.values()}
    (engine,), cell = lanes["search"].engines, lanes["search"].cells[1]
    assert engine.stopped_s == [pytest.approx(STOP_S, abs=0.5)]
    assert "compile_total_s" not in cell.metrics
    assert "no compile time is known" in cell.reason
    cell = lanes["run"].cells[1]
    assert "compile_total_s" in cell.metrics
    assert "the engine was loaded again" in cell.reason
    assert cell.metrics["first_inference_s"] < STOP_S
    (rate,) = cell.arrivals
    assert rate["stopped_s"] == [pytest.approx(STOP_S, abs=0.5)]
    assert "what it measured then does not count" in str(cell.arrivals_note)
