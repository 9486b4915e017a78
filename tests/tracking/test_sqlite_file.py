"""A database of MLflow's is read as MLflow's own client reads it."""

from __future__ import annotations

import operator
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from benchmarks import seed_server
from mlflow_ngraph.analysis import listing
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking import connection, download, sqlite_file
from mlflow_ngraph.tracking.schema import Kind, Tag


@pytest.fixture
def seeded(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(seed_server, "WORKLOADS_A_STUDY", 2)
    monkeypatch.setattr(seed_server, "COMPILERS_A_STUDY", 2)
    seed_server.seed(sqlite_uri, 3)
    return sqlite_uri


def lanes(client: MlflowClient, uri: str) -> list[str]:
    runs = client.search_runs(experiments(client), f"tags.`{Tag.KIND}` = '{Kind.LANE}'")
    assert runs, uri
    return [run.info.run_id for run in runs]


def experiments(client: MlflowClient) -> list[str]:
    return [experiment.experiment_id for experiment in client.search_experiments()]


def test_study_runs_are_those_of_the_client(seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(seeded)
    gone, taken, kept = client.search_runs(experiments(client), f"tags.`{Tag.KIND}` = '{Kind.STUDY}'")
    client.delete_run(gone.info.run_id)
    client.set_tag(taken.info.run_id, Tag.RESUMED_BY, kept.info.run_id)
    elsewhere = client.create_experiment("elsewhere")
    client.create_run(elsewhere, tags={Tag.KIND: Kind.STUDY})
    client.delete_experiment(elsewhere)
    plainly = listing.Server(seeded).study_runs()
    assert [run.run_id for run in plainly] == [kept.info.run_id]
    monkeypatch.setattr(sqlite_file, "of", lambda uri: None)
    by_id = operator.attrgetter("run_id")
    assert sorted(plainly, key=by_id) == sorted(listing.Server(seeded).study_runs(), key=by_id)


def test_deleted_lanes_are_those_of_the_client(seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(seeded)
    gone, replaced, left, *_ = asked = [*lanes(client, seeded), "0" * 32]
    client.delete_run(gone)
    client.set_tag(replaced, Tag.RESUMED_BY, left)
    client.delete_run(replaced)
    plainly = listing.Server(seeded).deleted(asked, experiments(client))
    assert plainly == {gone, "0" * 32}
    monkeypatch.setattr(sqlite_file, "of", lambda uri: None)
    assert listing.Server(seeded).deleted(asked, experiments(client)) == plainly


def test_engines_are_those_of_the_client(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(sqlite_uri)
    experiment_id = client.create_experiment("engines")
    run = client.create_run(experiment_id)
    tags = {Tag.MANIFEST_SHA256: "0" * 64, Tag.SIGNED_BY: "me"}
    model = client.create_logged_model(experiment_id, "engine", run.info.run_id, tags=tags)
    plainly = download.of_id(model.model_id, sqlite_uri)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "of", lambda uri: None)
        assert download.of_id(model.model_id, sqlite_uri) == plainly
    assert (plainly.run_id, plainly.digest, plainly.signed) == (run.info.run_id, "0" * 64, True)
    client.delete_logged_model(model.model_id)
    with pytest.raises(TrackingError, match=model.model_id):
        download.of_id(model.model_id, sqlite_uri)


def test_what_is_in_the_write_ahead_log_alone_is_read(seeded: str) -> None:
    path = connection.database_file(seeded)
    assert path is not None
    before = {row.run_id for row in sqlite_file.study_runs(path)}
    writer = sqlite3.connect(path)
    assert writer.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    writer.execute("PRAGMA wal_autocheckpoint=0")
    run_id, *others = sorted(before)
    untouched = path.stat().st_mtime_ns
    writer.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (run_id,))
    writer.commit()
    assert path.stat().st_mtime_ns == untouched
    assert {row.run_id for row in sqlite_file.study_runs(path)} == {*others}
    writer.close()


def test_a_state_is_that_of_the_file_and_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"a")
    assert sqlite_file.state(path) is None, "it could be written again in the same moment"
    monkeypatch.setattr(sqlite_file, "_COARSE_NS", 0)
    time.sleep(0.02)
    states = [sqlite_file.state(path)]
    log = tmp_path / "a.db-wal"
    log.touch()
    assert sqlite_file.state(path) == states[0], "a reader leaves an empty log"
    for text in (b"b", b"c"):
        log.write_bytes(text)
        time.sleep(0.02)
        states.append(sqlite_file.state(path))
    log.unlink()
    os.utime(path, ns=(0, path.stat().st_mtime_ns))
    time.sleep(0.02)
    states.append(sqlite_file.state(path))
    assert None not in states
    assert len(set(map(str, states))) == len(states), "the log was written, and the times of the file were set back"


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_what_is_no_database_of_mlflow_is_left_to_mlflow(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE runs (name TEXT)")
        other.close()
    else:
        path.write_bytes(content)
    with pytest.raises(sqlite3.Error):
        sqlite_file.study_runs(path)


def test_a_database_with_workspaces_is_left_to_mlflow(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = connection.database_file(sqlite_uri)
    assert path is not None
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
        assert sqlite_file.of(sqlite_uri) is None
        client = MlflowClient(sqlite_uri)
        client.create_workspace("theirs")
        patch.setenv("MLFLOW_WORKSPACE", "theirs")
        MlflowClient(sqlite_uri).create_experiment("secret")
    with pytest.raises(sqlite3.DataError, match="workspaces"):
        sqlite_file.study_runs(path)


@pytest.mark.usefixtures("compilers", "clean_environment")
@pytest.mark.parametrize("files", [False, True])
def test_without_a_word_it_is_the_store_that_mlflow_takes(files: bool, tmp_path: Path) -> None:
    folder = tmp_path / "with space, 100 %"
    folder.mkdir()
    (folder / "mlflow.db").touch()
    if files:
        (folder / "mlruns" / "1").mkdir(parents=True)
        (folder / "mlruns" / "1" / "meta.yaml").touch()
    line = "from mlflow_ngraph.tracking.connection import resolve_uri as r; import sys; print(r(None), 'mlflow' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", line], cwd=folder, capture_output=True, text=True, check=True).stdout
    said = subprocess.run(
        [sys.executable, "-c", f"import mlflow; print(mlflow.get_tracking_uri(), {files})"],
        cwd=folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert told == said
