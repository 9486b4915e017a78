"""A process that stood still says so, and one that worked, slept a little or waited for a processor does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mlflow_ngraph.measure import stability
from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.processes import stops

LOOP = """
import json, sys, threading, time
from mlflow_ngraph.processes import stops

def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))

if sys.argv[1] in ("sleeping", "held"):  # work of unknown length
    print("begun", flush=True)
    with stops.watched() as found:
        time.sleep(1) if sys.argv[1] == "sleeping" else sum(range(3 * 10**7))
    print(json.dumps(sum(found)), flush=True)
    sys.exit()
if sys.argv[1] == "beside":  # another thread works all the time, as one that spins does
    threading.Thread(target=work, args=(3,), daemon=True).start()
watch, durations = stops.Watch(), []
print("begun", flush=True)
for _ in range(40):
    start = time.perf_counter_ns()
    work(0.02)
    durations.append(time.perf_counter_ns() - start)
print(json.dumps(watch.stopped_s(durations, 0.02, accelerated=False)), flush=True)
"""


def stopped(way: str, seconds: float) -> float:
    process = subprocess.Popen([sys.executable, "-c", LOOP, way], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    if seconds:
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGCONT)
    found = float(json.loads(process.stdout.readline()))
    process.wait(30)
    return found


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("way", ["alone", "beside", "sleeping", "held"])
def test_a_stop_is_found_with_its_length(way: str) -> None:
    assert stopped(way, 1.0) == pytest.approx(1.0, abs=0.4)
    assert not stopped(way, 0.0)


@pytest.mark.parametrize(
    ("durations_s", "call_s", "accelerated", "found"),
    [
        ((0.1, 0.1, 2.1), 0.1, False, 2.0),
        ((0.1, 0.1, 2.1), 0.0, False, 2.0),
        ((0.1, 0.1, 0.55), 0.1, False, 0.0),  # others may delay it so much
        ((4.0, 4.9), 4.0, False, 0.0),  # less than a quarter of an inference
        ((0.1, 0.1, 2.1), 0.1, True, 2.0),
        ((0.5, 2.0), 0.5, True, 0.0),
    ],
)
def test_a_stop_is_within_one_inference(
    durations_s: tuple[float, ...], call_s: float, accelerated: bool, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0, round(sum(durations_s) * 1e9)])
    monkeypatch.setattr("mlflow_ngraph.processes.stops.perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(stops, "_busy_ns", lambda: {"1": 0})
    durations_ns = [round(seconds * 1e9) for seconds in durations_s]
    assert stops.Watch().stopped_s(durations_ns, call_s, accelerated=accelerated) == pytest.approx(found)


def test_work_and_waiting_for_a_processor_explain_a_long_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    now, busy = iter([0, 3_000_000_000]), iter([{"1": 0}, {"1": 2_900_000_000, "2": 1}])
    monkeypatch.setattr("mlflow_ngraph.processes.stops.perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(stops, "_busy_ns", lambda: next(busy))
    assert not stops.Watch().stopped_s([100_000_000, 2_900_000_000], 0.1, accelerated=False)


def test_waiting_for_the_next_request_is_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0, 3_000_000_000])
    monkeypatch.setattr("mlflow_ngraph.processes.stops.perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(stops, "_busy_ns", lambda: {"1": 0})
    # Three seconds of which two were idle: a request that took two of them was late for at most one.
    assert stops.Watch().stopped_s([2_000_000_000], 0.1, accelerated=False, idle_s=2.0) == pytest.approx(1.0)


def test_stops_are_named_and_make_a_cell_unsteady_where_no_attempt_was_without() -> None:
    quiet, once, always = (
        SliceFacts(0.1, 1.0, stopped_s=stopped_s) for stopped_s in ((), (20.0,), (1.0,) * stops.AGAIN)
    )
    assert not stability.stops([quiet, quiet])
    assert stability.stops([quiet, once]).startswith("its process stood still for 20 s")
    assert stability.problem([quiet, once], 2, 10.0, 0.1) is None
    assert "in each of 3 attempts" in str(stability.problem([quiet, always], 2, 10.0, 0.1))
