"""A study over several devices, with an engine that starts real processes on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import FleetError
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph_fleet import description, fleet_plan, fleet_study
from mlflow_ngraph_fleet.fleet_study import FleetStudy
from mlflow_ngraph_fleet.wire import Event
from tests.support.local_engine import LocalEngine
from tests.support.scripted_study import interpreter


class Seen:
    """Remembers what an observer is told."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []

    def on_state(self, device: str, state: str) -> None:
        self.states.append((device, state))

    def on_event(self, device: str, event: Event) -> None:
        self.events.append((device, event["event"]))

    def await_event(self, device: str, event: str) -> None:
        deadline = time.monotonic() + 60
        while (device, event) not in self.events:
            assert time.monotonic() < deadline, self.events
            time.sleep(0.05)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    running = LocalEngine(tmp_path / "jobs")
    with running:
        yield running


@pytest.fixture
def home(tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "client"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def planned(home: Path, sqlite_uri: str, **scenarios: str) -> tuple[Path, Any]:
    devices = {}
    for name, scenario in scenarios.items():
        (home / name).mkdir()
        env = {"SCENARIO": scenario.replace("_", " ")}
        devices[name] = {"host": "h", "python": interpreter(home / "bin"), "home": str(home / name), "env": env}
    fleet = description.parse({"head": {"host": "h"}, "devices": devices}, home / "fleet.yaml")
    study = studies.load("smoke")
    return fleet_plan.plan(fleet, study, list(devices), resume="auto", tracking_uri=sqlite_uri, experiment="fleets")


def test_all_devices_work_at_once_and_are_children_of_one_run(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="ok", orin="ok")
    seen = Seen()
    study = FleetStudy(engine, place, run, seen)
    study.submit()
    outcomes = study.follow()
    assert [(each.device, each.code) for each in outcomes] == [("xeon", 0), ("orin", 0)]
    assert seen.events.count(("xeon", "cell_finished")) == 2
    run.close(fleet_study.status_of(outcomes), "| a |")
    recorded = connection.connect(sqlite_uri).get_run(run.run_id)
    assert recorded.info.status == "FINISHED"
    assert recorded.data.tags[Tag.KIND] == Kind.FLEET
    assert recorded.data.tags[Tag.DEVICES] == "xeon,orin"


def test_what_the_engine_changed_is_undone(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="ok")
    study = FleetStudy(engine, place, run, Seen())
    study.submit()
    study.follow()
    environment = json.loads((home / "xeon" / "environment.json").read_text())
    assert "OMP_NUM_THREADS" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert "RAY_JOB" not in environment
    assert environment["SCENARIO"] == "ok"
    assert environment["PYTHONPATH"].startswith(str(home / "xeon" / "fleet" / "code"))


def test_a_job_that_ends_without_a_word_is_taken_there_again(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="dies_once")
    seen = Seen()
    study = FleetStudy(engine, place, run, seen)
    study.submit()
    assert [each.code for each in study.follow()] == [0]
    assert [job.id[-1] for job in engine.submitted] == ["1", "2"]
    assert any("lost" in state for _, state in seen.states)


def test_nobody_tries_for_ever(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="dies", orin="ok")
    study = FleetStudy(engine, place, run, Seen())
    study.submit()
    outcomes = study.follow()
    assert [each.code for each in outcomes] == [1, 0]
    assert "lost 5 times" in outcomes[0].reason
    assert outcomes[0].last_lines[-1] == "a line for people"
    assert fleet_study.exit_code(outcomes) == 1


def test_a_device_that_refuses_is_not_asked_again(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, orin="refuses")
    study = FleetStudy(engine, place, run, Seen())
    study.submit()
    (outcome,) = study.follow()
    assert (outcome.code, outcome.reason) == (2, "device 'orin' needs an NVIDIA Jetson")
    assert len(engine.submitted) == 1


def test_cancelling_ends_what_runs_and_what_waits(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="sleeps")
    (home / "other").mkdir()
    other, _ = planned(home / "other", sqlite_uri, xeon="ok")
    seen = Seen()
    running, waiting = FleetStudy(engine, place, run, seen), FleetStudy(engine, other, run, Seen())
    running.submit()
    following = threading.Thread(target=running.follow, daemon=True)
    following.start()
    seen.await_event("xeon", "session_started")
    waiting.submit()
    assert [each.code for each in waiting.cancel()] == [130]
    assert [each.code for each in running.cancel()] == [143]
    following.join(30)
    assert not any(process.poll() is None for process in engine.processes.values())


def test_a_client_comes_back(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="ok")
    FleetStudy(engine, place, run, Seen()).submit()
    again = FleetStudy(engine, fleet_plan.find(None), run, Seen())
    again.submit()
    assert [each.code for each in again.follow()] == [0]
    assert len(engine.submitted) == 1


def test_an_engine_that_is_away_is_asked_again(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="ok")
    seen = Seen()
    study = FleetStudy(engine, place, run, seen)
    study.submit()
    engine.away = True
    back = threading.Timer(2.0, lambda: setattr(engine, "away", False))
    back.start()
    assert [each.code for each in study.follow()] == [0]
    assert any("the engine is away" in state for _, state in seen.states)


def test_a_study_whose_log_is_lost_is_not_measured_twice(home: Path, sqlite_uri: str, engine: LocalEngine) -> None:
    place, run = planned(home, sqlite_uri, xeon="ok")
    study = FleetStudy(engine, place, run, Seen())
    engine.silent = True
    study.submit()
    (outcome,) = study.follow()
    assert outcome.code == 0
    assert "its log is not to be had" in outcome.reason
    assert len(engine.submitted) == 1


def test_what_is_kept_is_for_its_owner_alone(home: Path, sqlite_uri: str) -> None:
    place, _ = planned(home, sqlite_uri, xeon="ok")
    assert place.stat().st_mode & 0o077 == 0
    assert (place / fleet_plan.KEPT).stat().st_mode & 0o077 == 0


def test_a_study_that_nobody_began_is_named(home: Path) -> None:
    with pytest.raises(FleetError, match="no study over several devices is called 'x'"):
        fleet_plan.find("x")
