"""Slurm behind the interface of engines: a real cluster, whose nodes are all on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import FleetError
from mlflow_ngraph_fleet import connection as engines
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.bundle import Travelling
from mlflow_ngraph_fleet.description import Fleet
from mlflow_ngraph_fleet.engine import Engine, Job, State
from mlflow_ngraph_fleet.wire import Listener
from tests.support.scripted_study import interpreter


@pytest.fixture
def fleet(slurm: Path, tmp_path: Path) -> Fleet:
    devices = {}
    for name, scenario in (("xeon", "measures"), ("orin", "sleeps")):
        (tmp_path / name).mkdir()
        env = {"SCENARIO": scenario}
        devices[name] = {
            "host": name,
            "python": interpreter(tmp_path / "bin"),
            "home": str(tmp_path / name),
            "env": env,
        }
    return description.parse(
        {"engine": "slurm", "shared": str(tmp_path / "shared"), "devices": devices}, tmp_path / "fleet.yaml"
    )


@pytest.fixture
def engine(fleet: Fleet) -> Iterator[Engine]:
    with engines.connect(fleet) as running:
        yield running


def job(fleet: Fleet, device: str, name: str, tmp_path: Path) -> Job:
    packed = Travelling.pack(studies.load("smoke"), tmp_path / "parts")
    bundle = packed.bundle(fleet, device, tmp_path / f"{name}-files", resume="auto", run_id="r", fleet_study=name)
    return Job(name, device, bundle.command, bundle.files, bundle.parts)


def test_a_job_runs_and_is_told_of(fleet: Fleet, engine: Engine, tmp_path: Path) -> None:
    wanted = job(fleet, "xeon", "first", tmp_path)
    assert engine.status("first").state is State.LOST
    engine.submit(wanted)
    engine.submit(wanted)
    assert engine.wait("first", 60).state is State.SUCCEEDED
    events = [said for said in Listener().hear(engine.logs("first")) if not isinstance(said, str)]
    assert [event["event"] for event in events][-1] == "ended"
    assert [known.device for known in engine.recover() if known.id == "first"] == ["xeon"]
    assert set(engine.nodes()) == {"xeon", "orin"}


def test_jobs_of_one_device_wait_for_each_other_in_order(fleet: Fleet, engine: Engine, tmp_path: Path) -> None:
    names = [f"turn-{number}" for number in range(4)]
    for name in names:
        engine.submit(job(fleet, "xeon", name, tmp_path))
    for name in names:
        assert engine.wait(name, 120).state is State.SUCCEEDED
    lines = [line.split() for line in (tmp_path / "xeon" / "measured").read_text().splitlines()]
    assert lines == [[name, what] for name in names for what in ("begin", "end")]


def test_cancelling_ends_a_job_that_runs_and_one_that_waits(fleet: Fleet, engine: Engine, tmp_path: Path) -> None:
    for name in ("runs", "waits"):
        engine.submit(job(fleet, "orin", name, tmp_path))
    deadline = time.monotonic() + 60
    while "session_started" not in engine.logs("runs"):
        assert time.monotonic() < deadline, engine.logs("runs")
        time.sleep(0.1)
    assert engine.status("waits").state is State.QUEUED
    for name in ("waits", "runs"):
        engine.cancel(name)
    assert engine.wait("waits", 30).state is State.CANCELLED
    assert engine.wait("runs", 30).state.ended
    assert '"code":143' in engine.logs("runs")


def test_what_slurm_refuses_is_said_in_one_line(fleet: Fleet, engine: Engine, tmp_path: Path) -> None:
    other = fleet.model_copy(update={"partition": "none"})
    with engines.connect(other) as refused, pytest.raises(FleetError, match=r"Slurm refuses: .*partition"):
        refused.submit(job(other, "xeon", "refused", tmp_path))
