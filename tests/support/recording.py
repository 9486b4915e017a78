"""Writing a study to a tracking server, and looking at what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking.recorded import RecordedLane
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import STUDY_METRICS, Tag
from tests.support.records import lane_id

PACKAGE = {
    *("engine", "wheels", "manifest.json", "manifest.json.sha256"),
    *("MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "README.md"),
}
"""What lies in the package of an engine."""


def small(record: StudyRecord) -> StudyRecord:
    """Two lanes: one with a single engine, and one that failed."""
    keep = {lane_id(record, "resnet18", "identity"), lane_id(record, "deit-t", "openvino")}
    record.lanes = {key: lane for key, lane in record.lanes.items() if key in keep}
    return record


def write(recorder: Recorder, record: StudyRecord, directory: Path, status: str = "FINISHED") -> None:
    recorder.open(record, directory)
    for key in record.lanes:
        noted(record, key, recorder.record_lane(record, key))
    recorder.close(record, status)


def noted(record: StudyRecord, key: str, found: RecordedLane) -> RecordedLane:
    """What a journal would say of a lane that was recorded."""
    lane = record.lanes[key]
    lane.runs, lane.models = (*lane.runs, found.run_id), found.models
    return found


def runs(client: MlflowClient, record: StudyRecord, kind: str = "lane", **tags: str) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query = f"tags.`ngraph.study_id` = '{record.id}' AND tags.`ngraph.kind` = '{kind}'"
    query += "".join(f" AND tags.`{name}` = '{value}'" for name, value in tags.items())
    return list(client.search_runs(experiments, query, ViewType.ACTIVE_ONLY))


def models(client: MlflowClient, record: StudyRecord) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_logged_models(experiments, f"tags.`ngraph.study_id` = '{record.id}'"))


def lane_run(client: MlflowClient, record: StudyRecord, label: str, compiler: str) -> Run:
    (run,) = runs(client, record, **{Tag.LANE_ID: lane_id(record, label, compiler)})
    return run


def check_once(client: MlflowClient, record: StudyRecord) -> None:
    """One study run, one run a lane, one model an engine, one point a metric and step, nothing running."""
    (study,) = [run for run in runs(client, record, "study") if Tag.RESUMED_BY not in run.data.tags]
    assert study.info.status == "FINISHED"
    found = runs(client, record)
    assert sorted(run.data.tags[Tag.LANE_ID] for run in found) == sorted(record.lanes)
    for run in found:
        assert run.info.status in ("FINISHED", "FAILED")
        assert run.data.tags[Tag.PARENT] == study.info.run_id
        for name in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert len(steps) == len(set(steps)), name
    engines = {engine.id: engine for lane in record.lanes.values() for engine in lane.engines}
    logged = models(client, record)
    assert sorted(model.tags[Tag.ENGINE_ID] for model in logged) == sorted(engines)
    for summary in logged:
        model = client.get_logged_model(summary.model_id)
        assert str(model.status) == "READY"
        paths = {file.path for file in client.list_logged_model_artifacts(model.model_id)}
        assert paths == PACKAGE
        points = [(metric.key, metric.step) for metric in model.metrics or ()]
        assert len(points) == len(set(points))
        assert bool(points) == (model.tags[Tag.VERDICT] != "crashed")
        source = client.get_run(model.source_run_id)
        assert model.model_id in [output.model_id for output in source.outputs.model_outputs]
    linked = [output for run in found if run.outputs for output in run.outputs.model_outputs]
    assert len(linked) == len(engines)
    assert set(study.data.metrics) == set(STUDY_METRICS)
    assert "results.parquet" in {file.path for file in client.list_artifacts(study.info.run_id)}
