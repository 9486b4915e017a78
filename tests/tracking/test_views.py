"""The ready-made views, the cards of engines, and the context tags."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tracking import views
from mlflow_ngraph.tracking.context import DeviceContext
from mlflow_ngraph.tracking.model_card import card
from mlflow_ngraph.tracking.schema import CURVE, HEADLINES
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record

NAMES = [f"mlflow.sharedViewState.{view.id}" for view in views.VIEWS]


@pytest.fixture
def experiment(sqlite_uri: str) -> tuple[MlflowClient, str]:
    client = MlflowClient(sqlite_uri)
    return client, client.create_experiment("views")


def envelope(client: MlflowClient, experiment_id: str, name: str = NAMES[0]) -> dict[str, object]:
    text = client.get_experiment(experiment_id).tags[name]
    assert len(text) <= 20_000
    return dict(json.loads(text))


def test_there_is_a_view_for_each_question(experiment: tuple[MlflowClient, str]) -> None:
    views.install(*experiment)
    found = {name: envelope(*experiment, name)["name"] for name in NAMES}
    assert list(found.values()) == ["Device comparison", "Batch scaling", "Speed-up", "Parity and verdicts"]
    assert NAMES[0] == "mlflow.sharedViewState.ngraph-devices"


@pytest.mark.parametrize("name", NAMES)
def test_views_speak_of_metrics_that_exist(experiment: tuple[MlflowClient, str], name: str) -> None:
    views.install(*experiment)
    packed = str(envelope(*experiment, name)["state"])
    state = json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))
    known = {*HEADLINES, *(CURVE + metric for metric in CELL_METRICS)}
    shown = [chart for chart in state["compareRunCharts"] if not chart["deleted"]]
    for chart in shown:
        assert set(chart.get("selectedMetricKeys", [])) <= known
        assert set(chart.get("selectedMetrics", [])) <= known
        assert chart.get("metricKey", "throughput") in known
        assert {chart.get(axis, {"key": "throughput"})["key"] for axis in ("xaxis", "yaxis")} <= known
    assert {"LINE", "BAR"} <= {chart["type"] for chart in shown}
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(state["compareRunCharts"])
    columns = [column for column in state["selectedColumns"] if column.startswith("metrics.")]
    assert {column.split("`")[1] for column in columns} <= known
    assert state["orderByKey"].split("`")[1] in HEADLINES
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
    client.set_experiment_tag(experiment_id, NAMES[0], json.dumps(edited))
    views.install(*experiment)
    assert envelope(*experiment) == edited
    outdated = {**first, "state": "deflate;older"}
    client.set_experiment_tag(experiment_id, NAMES[0], json.dumps(outdated))
    views.install(*experiment)
    assert envelope(*experiment)["state"] == first["state"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.15.0", True), ("3.17.2", True), ("3.14.1", False), ("4.0.0", False), (None, False), ("<html>", False)],
)
def test_only_servers_that_show_views_get_one(version: str | None, expected: bool) -> None:
    assert views.supported(version) is expected


def test_the_card_of_an_engine_says_what_it_is_and_how_to_use_it(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    lane = record.lanes[lane_id(record, "resnet18", "openvino")]
    engine = next(one for one in lane.engines if one.batch_sizes == (2,))
    lane.cells[2].verdict, lane.cells[2].reason = Verdict.TIMEOUT, "spread | of rounds"
    text = card(record, engine, EngineSpec.read(tmp_path / engine.directory), "m-123")
    assert text.startswith("# resnet18 with openvino on xeon\n")
    assert "| Inputs | x float32 batch×3×224×224 |" in text
    assert "| Needs | openvino 1.23.0 |" in text
    throughput = lane.cells[2].metrics["throughput"]
    assert f"| 2 | {throughput:.4g} |" in text
    assert "| timeout ¹ |" in text
    assert r"- ¹ spread \| of rounds" in text
    assert "| 4 |" not in text
    assert 'mlflow_ngraph.load_model("models:/m-123")' in text


def test_context_tags_name_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NGRAPH_DEVICE", raising=False)
    assert not DeviceContext().in_context()
    monkeypatch.setenv("NGRAPH_DEVICE", "orin")
    assert DeviceContext().in_context()
    assert DeviceContext().tags()["ngraph.device"] == "orin"


@pytest.mark.usefixtures("processes")
def test_context_costs_no_import() -> None:
    code = (
        "import mlflow, sys; before = set(sys.modules); import mlflow_ngraph.tracking.context;"
        "new = {name for name in set(sys.modules) - before if not name.startswith('mlflow_ngraph')};"
        "sys.exit(str(new) if new else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_each_model_has_a_view_of_its_own_as_far_as_there_is_room(experiment: tuple[MlflowClient, str]) -> None:
    ids = views.install(*experiment, models={"encoder": ["params.`workload` = 'a'"], "other": ["tags.`b` = 'c'"]})
    assert list(ids) == ["encoder", "other"]
    packed = str(envelope(*experiment, f"mlflow.sharedViewState.{ids['encoder']}")["state"])
    state = json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))
    assert state["searchFilter"] == "tags.`ngraph.kind` = 'lane' AND params.`workload` = 'a'"
    assert views.quoted("it's") == '"it\'s"'
    views.install(*experiment, models={f"model-{number}": [str(number)] for number in range(60)})
    client, experiment_id = experiment
    kept = [name for name in client.get_experiment(experiment_id).tags if name.startswith("mlflow.sharedViewState.")]
    assert len(kept) == 40
