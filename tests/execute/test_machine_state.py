"""Whole studies: what they see of the machine, and how they share it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.cli.app import run as cli
from mlflow_ngraph.errors import DeviceBusyError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.machine_lock import ExclusiveMachine, holder
from mlflow_ngraph.measure.loop import WATCHED_S
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.study import Study, parse

pytestmark = pytest.mark.usefixtures("fake_compiler")

TINY = "block:mha?width=16"
SPINS_MS = 30


def study(**changes: Any) -> Study:
    spinning = {"name": "fake", "flags": {"behaviour": "slow", "delay_ms": SPINS_MS, "wait": "spin"}}
    base = {
        "name": "mine",
        "workloads": [TINY],
        "compilers": [spinning],
        "batch_sizes": [1],
        "repetitions": 20,
        "slice_repetitions": 10,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.2},
        "stability": {"max_foreign_cpu_percent": 1000, "max_spread": 1e9, "max_drift": 1e9},
    }
    return parse({**base, **changes})


def run(home: Path, **options: Any) -> Outcome:
    return runner.run_study(study(), home=home, offline=True, **options)


class Listener:
    """Keeps every event, and who held the machine at that moment."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.holders: list[str] = []

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        found = holder()
        self.holders.append(found.study if found is not None else "")

    def held(self, kind: str) -> set[str]:
        return {who for event, who in zip(self.events, self.holders, strict=True) if event["event"] == kind}


@pytest.fixture(scope="module")
def observed(
    processes: None, tmp_path_factory: pytest.TempPathFactory, fake_compiler: None
) -> tuple[Outcome, Listener]:
    listener = Listener()
    return run(tmp_path_factory.mktemp("home"), observer=listener), listener


@pytest.mark.usefixtures("processes")
def test_every_slice_says_what_the_machine_did_meanwhile(observed: tuple[Outcome, Listener]) -> None:
    outcome, _ = observed
    slices = [event for event in journal.read(outcome.directory) if event["event"] == "slice"]
    assert len(slices) == 4
    for taken in slices:
        machine = taken["machine"]
        assert machine["seconds"] >= taken["wall_s"]
        assert 0 < machine["cpu_s"] <= machine["counted"]["machine_busy_s"] + 0.1
        assert machine["seconds"] < taken["wall_s"] + 5, "nothing long lies between the looks and the timed loop"
        assert {"swapped_mb", "stolen_s", "machine_busy_s"} <= set(machine["counted"])
        assert machine["values"]["available_memory_mb"] > 0
        assert taken["peak_bytes"] >= taken["resident_bytes"] > 10_000_000
        assert taken["harness_wall_s"] > taken["wall_s"]
        assert taken["harness_cpu_s"] >= 0
    # What it knows of a call it knows from before: one that was held up then seems to be enough by itself.
    assert max(taken["machine"]["seconds"] for taken in slices) >= 0.5 * WATCHED_S


def test_a_lane_that_spins_keeps_one_processor_busy(observed: tuple[Outcome, Listener]) -> None:
    outcome, _ = observed
    (lane,) = (lane for lane in outcome.record.lanes.values() if lane.lane.compiler == "fake")
    found = lane.cells[1].metrics
    assert 0.4 < found["cpu_cores"] < 1.3, "one thread that does nothing but spin, on a machine with other work"
    assert found["cpu_percent_busiest_core"] > 30
    assert found["steady_memory_mb"] <= found["peak_memory_mb"]
    assert 0 <= found["harness_cpu_percent"] < 20, "the parent sleeps"


def test_the_machine_is_held_while_anything_is_compiled_or_measured_and_no_longer(
    observed: tuple[Outcome, Listener],
) -> None:
    _, listener = observed
    for kind in ("session_started", "engine_built", "round", "slice", "cell_finished"):
        assert listener.held(kind) == {"mine"}, kind
    assert not listener.held("machine_busy")
    assert holder() is None


@pytest.mark.usefixtures("processes")
def test_a_busy_machine_refuses_before_anything_is_written(tmp_path: Path) -> None:
    with ExclusiveMachine("theirs"), pytest.raises(DeviceBusyError, match="is measuring study 'theirs' of"):
        run(tmp_path, when_busy="refuse")
    assert not list(tmp_path.glob("studies/*"))


@pytest.mark.usefixtures("processes")
def test_a_study_waits_for_its_turn_and_says_for_whom(tmp_path: Path) -> None:
    listener, theirs = Listener(), ExclusiveMachine("theirs")
    with theirs:
        waits = threading.Thread(target=run, args=(tmp_path,), kwargs={"observer": listener})
        waits.start()
        deadline = time.monotonic() + 60
        while not listener.events and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        assert [event["event"] for event in listener.events] == ["machine_busy"]
        assert "study 'theirs'" in listener.events[0]["holder"]
        assert not list(tmp_path.glob("studies/*"))
    waits.join(60)
    assert not waits.is_alive()
    assert listener.held("slice") == {"mine"}


@pytest.mark.usefixtures("processes")
def test_who_waits_can_be_told_to_end(tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from mlflow_ngraph import runner
        from mlflow_ngraph.processes.interruption import Interrupted
        from mlflow_ngraph.study import Study
        study = Study(workloads=["{TINY}"], compilers=["identity"], batch_sizes=[1])
        try:
            runner.run_study(study, home=Path({str(tmp_path)!r}), offline=True)
        except Interrupted as error:
            print("interrupted by", error)
    """
    with ExclusiveMachine("theirs"):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert "waiting: this machine is measuring study 'theirs'" in process.stderr.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=30)[0] == "interrupted by SIGTERM\n"
    assert not list(tmp_path.glob("studies/*"))


@pytest.mark.usefixtures("processes")
def test_the_command_line_refuses_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clean_environment: None
) -> None:
    options = [
        "--workloads",
        TINY,
        "--compilers",
        "identity",
        "--batch-sizes",
        "1",
        "--offline",
        "--home",
        str(tmp_path),
    ]
    with ExclusiveMachine("theirs"):
        assert cli(["benchmark", *options, "--when-busy", "refuse"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: this machine is measuring study 'theirs' of ")
    assert said[-1].endswith("wait for its end with --when-busy wait")
