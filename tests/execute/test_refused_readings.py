"""A worker whose clocks and sensors lie, as the parent hears it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_ngraph.devices.sensors import Change, Reading, Sensors
from mlflow_ngraph.execute.worker import Running, Worker
from mlflow_ngraph.measure.loop import WATCHED_S
from mlflow_ngraph.processes import stops
from mlflow_ngraph.processes.parent import Parent

SLICE = {"command": "slice", "repetitions": 10, "seconds": 5.0, "settle_s": 0.01, "settle_below_s": 0.5}
ARRIVALS = {
    "command": "arrive", "rate": 200.0, "window_s": 0.2, "process": "uniform", "seed": [1, 1], "limit_s": 1.0,
    "settle_s": 0.0, "settle_below_s": 0.5,
}  # fmt: skip


class Invocation:
    """Sleeps for a moment."""

    requests = 1

    @staticmethod
    def call() -> None:
        time.sleep(20e-6)

    @contextmanager
    def repeated(self) -> Iterator[Any]:
        yield self.call

    def each(self) -> list[Any]:
        return [SimpleNamespace(call=self.call)]


class Lying(Sensors):
    """Sensors of this machine, but for what a test puts in their place."""

    def __init__(self, **lies: Any) -> None:
        super().__init__()
        self._lies = lies

    def since(self, start: Reading) -> Change:
        change = super().since(start)
        changed: dict[str, Any] = {
            name: {**getattr(change, name), **lie} if isinstance(lie, dict) else lie for name, lie in self._lies.items()
        }
        return replace(change, **changed)


def answer(command: dict[str, Any], **lies: Any) -> dict[str, Any]:
    """What a worker says that has an engine loaded."""
    said = io.StringIO()
    parent = Parent(io.StringIO(), said)
    worker = Worker(parent.stage)
    worker._sensors, worker._running = Lying(**lies), Running(None, Invocation(), call_s=20e-6, accelerated=False)
    parent.answer(command, worker.commands)
    found: dict[str, Any] = json.loads(said.getvalue().splitlines()[-1])
    return found


@pytest.mark.usefixtures("compilers")
def test_a_short_slice_is_watched_for_longer_than_it_takes() -> None:
    taken = answer(SLICE)["result"]
    assert taken["wall_s"] < 0.05
    assert taken["machine"]["seconds"] >= 0.9 * WATCHED_S
    assert taken["settle_s"] >= 0.9 * WATCHED_S
    long = answer({**SLICE, "repetitions": 5000})["result"]
    assert long["machine"]["seconds"] >= long["wall_s"] > WATCHED_S
    assert long["settle_s"] < taken["settle_s"]


@pytest.mark.parametrize("command", [SLICE, ARRIVALS], ids=["slice", "arrivals"])
def test_a_clock_that_steps_changes_nothing(command: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(1, 1000))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: 3_600_000_000_000 * next(hours))
    taken = answer(command)["result"]
    assert 0 < taken["wall_s"] <= taken["machine"]["seconds"] < 60
    assert max(taken.get("durations_ns") or taken["served_ns"]) < 10e9


@pytest.mark.parametrize("command", [SLICE, ARRIVALS], ids=["slice", "arrivals"])
@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_what_has_a_stop_in_it_is_measured_again(
    command: dict[str, Any], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([5.0] * (attempts - 1) + [0.0])
    monkeypatch.setattr(stops.Watch, "stopped_s", lambda *args, **fields: next(found))
    assert answer(command)["result"].get("stopped_s", []) == [5.0] * (attempts - 1)


@pytest.mark.parametrize("command", [SLICE, ARRIVALS], ids=["slice", "arrivals"])
@pytest.mark.parametrize(
    ("lies", "named"),
    [
        ({"cpu_s": -1.0}, "the CPU time of its process [s] is -1"),
        ({"cpu_s": 1e6}, "the CPU time of its process [s] is 1000000"),
        ({"seconds": 0.0}, "its length [s]"),
        ({"seconds": float("nan")}, "the time in which it was watched [s] is nan"),
    ],
)
def test_times_that_cannot_be_are_a_failure_of_the_cell(command: dict[str, Any], lies: Any, named: str) -> None:
    error = answer(command, **lies)["error"]
    assert error["verdict"] == "failed"
    assert error["reason"].startswith("impossible reading of a ")
    assert named in error["reason"]


@pytest.mark.parametrize("command", [SLICE, ARRIVALS], ids=["slice", "arrivals"])
def test_a_sensor_that_lies_is_a_sensor_less(command: dict[str, Any]) -> None:
    lies = {
        "values": {"temperature_c": -273.1, "clock_mhz": 0.0},
        "counted": {"machine_busy_s": -4.0, "swapped_mb": 0.0},
    }
    machine = answer(command, **lies)["result"]["machine"]
    assert not {"temperature_c", "clock_mhz"} & set(machine["values"])
    assert "machine_busy_s" not in machine["counted"]
    assert machine["counted"]["swapped_mb"] == 0.0
