"""What a job does before the study begins, with the study in its place scripted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_ngraph import study as studies
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.bundle import Travelling
from mlflow_ngraph_fleet.engine import Job
from mlflow_ngraph_fleet.wire import Event, Listener
from tests.support.local_engine import LocalEngine
from tests.support.scripted_study import interpreter

pytestmark = pytest.mark.long


def launched(tmp_path: Path, name: str = "job", **device: object) -> tuple[list[Event], str]:
    """Events of a job, and the rest of its log."""
    (tmp_path / "device").mkdir(exist_ok=True)
    described = {"host": "h", "home": str(tmp_path / "device"), **device}
    fleet = description.parse({"head": {"host": "h"}, "devices": {"xeon": described}}, tmp_path / "fleet.yaml")
    bundle = Travelling.pack(studies.load("smoke"), tmp_path / "parts").bundle(
        fleet, "xeon", tmp_path / f"{name}-files", resume="auto", run_id="r"
    )
    with LocalEngine(tmp_path / "jobs") as engine:
        engine.submit(Job(name, "xeon", bundle.command, bundle.files, bundle.parts))
        engine.wait(name, 120)
        heard = list(Listener().hear(engine.logs(name)))
    return [said for said in heard if not isinstance(said, str)], "\n".join(
        said for said in heard if isinstance(said, str)
    )


def test_secrets_come_from_a_file_of_the_device(tmp_path: Path, processes: None) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("# login\nexport MLFLOW_TRACKING_TOKEN='sesame'\n")
    secrets.chmod(0o644)
    python = interpreter(tmp_path / "bin")
    events, _ = launched(tmp_path, "first", python=python, env_file=str(secrets))
    assert events == [{"event": "ended", "code": 2, "reason": f"others can read {secrets}: chmod 600 {secrets}"}]
    secrets.chmod(0o600)
    events, log = launched(tmp_path, "second", python=python, env_file=str(secrets))
    assert events[-1]["code"] == 0
    assert '"MLFLOW_TRACKING_TOKEN": "sesame"' in (tmp_path / "device" / "environment.json").read_text()
    assert "sesame" not in log


def test_an_environment_is_made_once(tmp_path: Path, processes: None) -> None:
    wanted = {"requirements": ["mlflow-ngraph"], "pip_options": ["--no-deps"]}
    first, log = launched(tmp_path, "first", **wanted)
    assert [event["doing"].split(",")[0] for event in first] == ["making the environment", "environment made"], log
    second, _ = launched(tmp_path, "second", **wanted)
    assert second == []
    (made,) = (tmp_path / "device" / "fleet" / "environments").glob("*/bin/python")
    assert list(made.parents[1].glob("lib/python*/site-packages/mlflow_ngraph"))


def test_an_environment_that_cannot_be_made_is_told(tmp_path: Path, processes: None) -> None:
    events, _ = launched(tmp_path, requirements=["no-such-package"], pip_options=["--no-index"])
    assert events[-1]["event"] == "ended"
    assert "environment cannot be made" in events[-1]["reason"]


def test_jobs_of_low_priority_are_raised_or_refused(tmp_path: Path, processes: None) -> None:
    python = interpreter(tmp_path / "bin")
    script = Path(python)
    script.write_text(script.read_text().replace("then exec ", "then exec nice -n 7 "))
    events, _ = launched(tmp_path, python=python)
    if os.geteuid() == 0:
        assert events[-1]["code"] == 0
    else:
        assert "niceness 7" in events[-1]["reason"]
