"""The ready-made view, and the context tags."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.tracking import views
from mlflow_ngraph.tracking.context import DeviceContext
from mlflow_ngraph.tracking.schema import CELL_METRICS, CURVE, HEADLINES

NAME = "mlflow.sharedViewState.ngraph-devices"


@pytest.fixture
def experiment(sqlite_uri: str) -> tuple[MlflowClient, str]:
    client = MlflowClient(sqlite_uri)
    return client, client.create_experiment("views")


def envelope(client: MlflowClient, experiment_id: str) -> dict[str, object]:
    text = client.get_experiment(experiment_id).tags[NAME]
    assert len(text) <= 20_000
    return dict(json.loads(text))


def test_the_view_speaks_of_metrics_that_exist(experiment: tuple[MlflowClient, str]) -> None:
    views.install(*experiment)
    packed = str(envelope(*experiment)["state"])
    state = json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))
    known = {*HEADLINES, *(CURVE + name for name in CELL_METRICS)}
    shown = [chart for chart in state["compareRunCharts"] if not chart["deleted"]]
    for chart in shown:
        assert set(chart.get("selectedMetricKeys", [])) <= known
        assert chart.get("metricKey", "throughput") in known
    assert {chart["type"] for chart in shown} == {"LINE", "BAR", "SCATTER", "PARALLEL"}
    columns = [name for name in state["selectedColumns"] if name.startswith("metrics.")]
    assert {name.split("`")[1] for name in columns} <= known
    assert state["runsHiddenMode"] == "SHOWALL"


def test_installing_again_changes_nothing_and_keeps_what_a_person_edited(
    experiment: tuple[MlflowClient, str],
) -> None:
    views.install(*experiment)
    first = envelope(*experiment)
    views.install(*experiment)
    assert envelope(*experiment) == first
    client, experiment_id = experiment
    edited = {**first, "state": "deflate;other", "updatedAt": int(str(first["updatedAt"])) + 5}
    client.set_experiment_tag(experiment_id, NAME, json.dumps(edited))
    views.install(*experiment)
    assert envelope(*experiment) == edited
    outdated = {**first, "state": "deflate;older"}
    client.set_experiment_tag(experiment_id, NAME, json.dumps(outdated))
    views.install(*experiment)
    assert envelope(*experiment)["state"] == first["state"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.15.0", True), ("3.17.2", True), ("3.14.1", False), ("4.0.0", False), (None, False), ("<html>", False)],
)
def test_only_servers_that_show_views_get_one(version: str | None, expected: bool) -> None:
    assert views.supported(version) is expected


def test_context_tags_name_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NGRAPH_DEVICE", raising=False)
    assert not DeviceContext().in_context()
    monkeypatch.setenv("NGRAPH_DEVICE", "orin")
    assert DeviceContext().in_context()
    assert DeviceContext().tags()["ngraph.device"] == "orin"


def test_context_costs_no_import() -> None:
    code = (
        "import mlflow, sys; before = set(sys.modules); import mlflow_ngraph.tracking.context;"
        "new = {name for name in set(sys.modules) - before if not name.startswith('mlflow_ngraph')};"
        "sys.exit(str(new) if new else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
