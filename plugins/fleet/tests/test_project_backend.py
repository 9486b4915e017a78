"""``mlflow run --backend ngraph``, with an engine that starts real processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from mlflow.exceptions import ExecutionException

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph_fleet import connection as engines
from tests.support.local_engine import LocalEngine
from tests.support.scripted_study import interpreter

PROJECT = """
name: p
entry_points:
  benchmark:
    parameters:
      device: {type: string, default: ""}
      study: {type: string, default: smoke}
    command: "exit 9"
"""


@pytest.fixture
def project(tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "MLproject").write_text(PROJECT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "client"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    devices = {}
    for name, scenario in (("xeon", "ok"), ("orin", "refuses")):
        (tmp_path / name).mkdir()
        env = {"SCENARIO": scenario}
        monkeypatch.chdir(root)
        devices[name] = {"host": "h", "python": interpreter(tmp_path / "bin"), "home": str(tmp_path / name), "env": env}
    monkeypatch.chdir(folder)
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"head": {"host": "h"}, "devices": devices}))
    with LocalEngine(tmp_path / "jobs") as engine:
        monkeypatch.setattr(engines, "connect", lambda fleet, insecure=False: engine)
        yield folder


def run(folder: Path, config: dict[str, Any] | None, **parameters: str) -> Any:
    """As ``mlflow run`` does it: without waiting."""
    return mlflow.projects.run(
        str(folder), "benchmark", parameters=parameters, backend="ngraph", backend_config=config, synchronous=False
    )


@pytest.mark.parametrize("config", [None, {"fleet": "fleet.yaml"}])
def test_the_run_of_mlflow_holds_those_of_the_devices(
    project: Path, sqlite_uri: str, config: dict[str, Any] | None
) -> None:
    run_id = run(project, config, device="xeon", study="smoke").run_id
    recorded = connection.connect(sqlite_uri).get_run(run_id)
    assert recorded.info.status == "FINISHED"
    assert recorded.data.tags["mlflow.project.backend"] == "ngraph"
    assert recorded.data.tags[Tag.KIND] == Kind.FLEET
    assert recorded.data.tags[Tag.DEVICES] == "xeon"


def test_a_device_that_fails_fails_the_run(project: Path, sqlite_uri: str) -> None:
    with pytest.raises(ExecutionException, match="failed on a device"):
        run(project, None, device="xeon,orin")
    client = connection.connect(sqlite_uri)
    (recorded,) = client.search_runs(["0"])
    assert recorded.info.status == "FAILED"


@pytest.mark.parametrize(
    ("config", "parameters", "said"),
    [
        (None, {"device": "xoen"}, "did you mean 'xeon'"),
        (None, {"study": "smoek"}, "did you mean 'smoke'"),
        (None, {"device": "xeon", "treads": "2"}, "unknown parameter"),
        ({"fleet": "none.yaml"}, {}, "no file none.yaml"),
        ({"cluster": "a"}, {}, "expected a description of a fleet"),
    ],
)
def test_a_wrong_request_leaves_no_run(
    project: Path, sqlite_uri: str, config: dict[str, Any] | None, parameters: dict[str, str], said: str
) -> None:
    with pytest.raises(ExecutionException, match=said):
        run(project, config, **parameters)
    assert not connection.connect(sqlite_uri).search_runs(["0"])
