"""What is deleted in MLflow is no result any more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.cli import gc

from benchmarks import seed_server
from mlflow_ngraph.analysis import results
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking import sources
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.sources import EngineFilter
from mlflow_ngraph.ui.store import ResultStore
from tests.support.logged import Logged
from tests.support.recording import noted
from tests.support.records import study_record

COMPILERS, BATCH = 3, "8"
COMPARED = ("compare", "--batch-sizes", BATCH, "--all", "--tracking-uri")


@pytest.fixture
def seeded(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A study of one workload and three compilers."""
    monkeypatch.setattr(seed_server, "WORKLOADS_A_STUDY", 1)
    monkeypatch.setattr(seed_server, "COMPILERS_A_STUDY", COMPILERS)
    seed_server.seed(sqlite_uri, 1)
    return sqlite_uri


def lane_runs(uri: str) -> dict[str, str]:
    """Lane runs by compiler."""
    frame = results.load(uri, cache=False)
    return dict(zip(frame["compiler_label"], frame["lane_run_id"], strict=True))


def collected(uri: str) -> None:
    """Have what is in the trash removed for good."""
    done = CliRunner().invoke(gc, ["--backend-store-uri", uri, "--tracking-uri", uri])
    assert done.exit_code == 0, done.output


def page(uri: str, store: ResultStore) -> pd.DataFrame:
    runs = store.studies()
    where = {run.run_id: Path(run.artifact_uri.removeprefix("file://")) for run in runs}
    return store.newest(runs, lambda run_id, path: (where[run_id] / path).read_bytes()).cells


@pytest.mark.parametrize("for_good", [False, True], ids=["in the trash", "after gc"])
def test_figures_of_a_lane_run_that_is_deleted_are_in_no_answer(seeded: str, for_good: bool, cli: Any) -> None:
    store, client = ResultStore(seeded), MlflowClient(seeded)
    name, run_id = min(lane_runs(seeded).items())
    before, asked = len(results.load(seeded)), cli(*COMPARED, seeded)
    assert len(page(seeded, store)) == before
    assert cli(*COMPARED, seeded) == asked
    client.delete_run(run_id)
    if for_good:
        collected(seeded)
    for _ in range(2):  # and again, from what this machine keeps
        frame = results.load(seeded)
        assert len(frame) == before * (COMPILERS - 1) // COMPILERS
        assert name not in set(frame["compiler_label"])
        assert name not in cli(*COMPARED, seeded)[1]
        assert name not in set(page(seeded, store)["compiler_label"])
    if not for_good:
        client.restore_run(run_id)
        assert cli(*COMPARED, seeded) == asked
        assert len(page(seeded, store)) == len(results.load(seeded)) == before


@pytest.mark.parametrize("for_good", [False, True], ids=["in the trash", "after gc"])
def test_a_study_run_that_is_deleted_is_in_no_answer(seeded: str, for_good: bool) -> None:
    (study,) = results.load(seeded)["run_id"].unique()
    store = ResultStore(seeded)
    MlflowClient(seeded).delete_run(study)
    if for_good:
        collected(seeded)
    assert results.load(seeded).empty
    assert store.studies() == []
    with pytest.raises(TrackingError, match="not found" if for_good else f"run {study} is deleted: restore it"):
        results.load(seeded, run=study)


def test_a_lane_that_is_measured_further_is_not_withdrawn_meanwhile(sqlite_uri: str, tmp_path: Path) -> None:
    """Its former run is in the trash before the table names the new one."""
    directory = tmp_path / "study"
    record = study_record(directory)
    recorder = Recorder(sqlite_uri)
    recorder.open(record, directory)
    key = next(iter(record.lanes))
    noted(record, key, recorder.record_lane(record, key))
    recorder.close(record, "KILLED")
    before = len(results.load(sqlite_uri))
    record.lanes[key].cells[4].finished_at += 100
    again = Recorder(sqlite_uri)
    again.open(record, directory)
    again.record_lane(record, key)
    assert len(results.load(sqlite_uri)) == before
    again.close(record, "FINISHED")
    assert len(results.load(sqlite_uri)) == before


def test_engines_of_a_lane_run_that_is_deleted_are_not_offered(sqlite_uri: str, tmp_path: Path) -> None:
    directory = tmp_path / "study"
    record = study_record(directory)
    recorder = Recorder(sqlite_uri)
    study = recorder.open(record, directory)
    lanes = {
        record.lanes[key].lane.compiler: recorder.record_lane(record, key).run_id
        for key in record.lanes
        if record.lanes[key].lane.label == "resnet18"
    }
    recorder.close(record, "FINISHED")
    client, wanted = MlflowClient(sqlite_uri), EngineFilter(compilers=["identity"])
    assert sources.find(study, sqlite_uri, wanted).run_id == lanes["identity"]
    client.delete_run(lanes["identity"])
    with pytest.raises(TrackingError, match=f"run {lanes['identity']} is deleted"):
        sources.find(lanes["identity"], sqlite_uri, EngineFilter())
    for _ in range(2):
        with pytest.raises(Exception, match="no engine that fits --compilers identity"):
            sources.find(study, sqlite_uri, wanted)
        collected(sqlite_uri)
    assert client.get_run(study).data.tags[Tag.STUDY_ID] == record.id


def test_an_engine_that_is_deleted_is_not_offered_and_its_figures_stay(
    logged: Logged, cli: Any, tmp_path: Path
) -> None:
    uri = f"sqlite:///{shutil.copyfile(logged.uri.removeprefix('sqlite:///'), tmp_path / 'mlflow.db')}"
    asked = ("--tracking-uri", uri, "--compilers", "onnxruntime", "--batch-sizes", "4")
    model = logged.models["onnxruntime"]
    code, out, _ = cli("recommend", *asked)
    assert code == 0
    assert f"pull models:/{model}" in out
    cells = len(results.load(uri))
    MlflowClient(uri).delete_logged_model(model)
    code, out, _ = cli("recommend", *asked)
    assert code == 0
    assert model not in out
    assert "is deleted: measuring it again builds another" in out
    assert len(results.load(uri)) == cells
    for source in ((), (f"models:/{model}",)):
        code, _, err = cli("engine", "pull", *source, *(asked if not source else asked[:2]))
        assert code != 0
        assert "not found" in err
