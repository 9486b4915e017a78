"""Runs that their process left RUNNING are told from those that live, on this machine and from elsewhere."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from mlflow_ngraph.cli.app import run as cli
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking import connection, heartbeat
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from tests.support.records import study_record

DAY = 86400.0


def begun(uri: str, folder: Path) -> tuple[Recorder, StudyRecord, str]:
    """A study of which one lane is recorded, and another one has been begun."""
    record = study_record(folder)
    recorder = Recorder(uri, "edge")
    run_id = recorder.open(record, folder)
    lane_id, other, *_ = record.lanes
    recorder.record_lane(record, lane_id)
    client = recorder.client
    tags = {Tag.KIND: "lane", Tag.PARENT: run_id, Tag.STUDY_ID: record.id, Tag.LANE_ID: other}
    client.create_run(client.get_experiment_by_name("edge").experiment_id, tags=tags)
    return recorder, record, run_id


def reaped(capsys: pytest.CaptureFixture[str], uri: str, home: Path, *options: str) -> dict[str, dict[str, Any]]:
    assert cli(["study", "cleanup", "--tracking-uri", uri, "--home", str(home), "--json", *options]) == 0
    return {run["kind"]: run for run in json.loads(capsys.readouterr().out)["runs"]}


def statuses(client: MlflowClient) -> list[str]:
    experiment = client.get_experiment_by_name("edge").experiment_id
    return sorted(run.info.status for run in client.search_runs([experiment]))


def test_a_study_elsewhere_is_dead_when_it_was_silent_for_long(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder, _, run_id = begun(sqlite_uri, tmp_path / "study")
    recorder.rest()  # as if it had died
    assert {kind: run["state"] for kind, run in reaped(capsys, sqlite_uri, tmp_path, "--yes").items()} == {
        "study": "alive",
        "lane": "alive",
    }
    last = time.time() - 2 * DAY
    recorder.client.set_tag(run_id, Tag.ALIVE_AT, f"{last:.0f}")
    assert not reaped(capsys, sqlite_uri, tmp_path, "--silent-for", "3d", "--yes")["study"]["ended"]
    listed = reaped(capsys, sqlite_uri, tmp_path)
    assert {run["state"] for run in listed.values()} == {"dead"}
    assert listed["study"]["silent_s"] == pytest.approx(2 * DAY, abs=60)
    assert statuses(recorder.client).count("RUNNING") == 2, "nothing was changed"
    ended = reaped(capsys, sqlite_uri, tmp_path, "--experiment", "edge", "--yes")
    assert {run["ended"] for run in ended.values()} == {True}
    assert statuses(recorder.client) == ["FINISHED", "KILLED", "KILLED"]
    study = recorder.client.get_run(run_id)
    assert study.info.end_time >= study.info.start_time
    assert reaped(capsys, sqlite_uri, tmp_path) == {}


def test_a_study_here_is_dead_when_no_process_has_it_and_alive_while_one_has(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder, record, run_id = begun(sqlite_uri, tmp_path / "study")
    recorder.client.set_tag(run_id, Tag.ALIVE_AT, f"{time.time() - 9 * DAY:.0f}")
    with Journal(tmp_path / "studies" / record.id) as writer:
        writer.append("study_started")
        assert {run["state"] for run in reaped(capsys, sqlite_uri, tmp_path, "--yes").values()} == {"alive"}
    recorder.client.set_tag(run_id, Tag.ALIVE_AT, f"{time.time():.0f}")
    recorder.rest()
    assert {run["ended"] for run in reaped(capsys, sqlite_uri, tmp_path, "--yes").values()} == {True}


def test_what_somebody_else_left_running_keeps_nothing_from_being_ended(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, record, run_id = begun(sqlite_uri, tmp_path / "studies" / "of-mine")
    recorder.rest()
    silent = {Tag.ALIVE_AT: "1", Tag.KIND: "study", Tag.STUDY_ID: record.id}
    theirs = recorder.client.create_run(recorder.client.create_experiment("theirs"), tags=silent).info.run_id
    recorder.client.set_tag(run_id, Tag.ALIVE_AT, "1")
    end = MlflowClient.set_terminated

    def set_terminated(client: MlflowClient, run_id: str, *args: Any, **kwargs: Any) -> None:
        if run_id == theirs:
            raise MlflowException("Permission denied", PERMISSION_DENIED)
        end(client, run_id, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "set_terminated", set_terminated)
    assert cli(["study", "cleanup", "--tracking-uri", sqlite_uri, "--home", str(tmp_path), "--json", "--yes"]) == 0
    ended = {run["run_id"]: run["ended"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert (ended.pop(theirs), set(ended.values())) == (False, {True})


@pytest.mark.parametrize("tag", ["", "soon", "nan", "1e300", "-5"])
def test_what_never_gave_a_readable_sign_is_left_alone(
    tag: str, sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder, _, run_id = begun(sqlite_uri, tmp_path / "study")
    recorder.rest()
    if tag:
        recorder.client.set_tag(run_id, Tag.ALIVE_AT, tag)
    else:
        recorder.client.delete_tag(run_id, Tag.ALIVE_AT)
    found = reaped(capsys, sqlite_uri, tmp_path, "--silent-for", "0h", "--yes")
    assert {run["state"] for run in found.values()} == {"unknown"}
    assert statuses(recorder.client).count("RUNNING") == 2


def test_a_study_that_was_ended_too_early_says_so_when_it_is_back(sqlite_uri: str, tmp_path: Path) -> None:
    recorder, record, run_id = begun(sqlite_uri, tmp_path / "study")
    recorder.client.set_terminated(run_id, "KILLED")
    for lane_id in record.lanes:
        recorder.record_lane(record, lane_id)
    recorder.close(record, "FINISHED")
    assert recorder.client.get_run(run_id).info.status == "FINISHED"


def test_signs_of_life_come_until_the_study_is_left(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    before = set(threading.enumerate())
    recorder, record, run_id = begun(sqlite_uri, tmp_path / "study")
    client = MlflowClient(sqlite_uri)

    def seen() -> bool:
        return Tag.ALIVE_AT in client.get_run(run_id).data.tags

    client.delete_tag(run_id, Tag.ALIVE_AT)
    deadline = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    recorder.close(record, "FINISHED")
    assert client.get_run(run_id).info.status == "FINISHED"
    while any(thread.name == "heartbeat" for thread in set(threading.enumerate()) - before):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)


def test_a_database_that_fails_at_signs_of_life_fills_no_log(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Semaphore(0)
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    monkeypatch.setattr(heartbeat._log, "debug", lambda *_, **__: tried.release())
    recorder, record, _ = begun(sqlite_uri, tmp_path / "study")
    with sqlite3.connect(sqlite_uri.removeprefix("sqlite:///")) as database:
        database.execute("ALTER TABLE tags RENAME TO lost")
    assert all(tried.acquire(timeout=60) for _ in range(3))
    with sqlite3.connect(sqlite_uri.removeprefix("sqlite:///")) as database:
        database.execute("ALTER TABLE lost RENAME TO tags")
    recorder.close(record, "FINISHED")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_server_says_what_time_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.utils import rest_utils

    class Answer:
        headers = {"Date": formatdate(1_000_000, usegmt=True)}  # noqa: RUF012

    monkeypatch.setattr(rest_utils, "http_request", lambda *_, **__: Answer())
    assert connection.server_time("http://lab:5000") == 1_000_000
    Answer.headers = {"Date": "around noon"}
    assert connection.server_time("http://lab:5000") == pytest.approx(time.time(), abs=60)
    assert connection.server_time("sqlite:///x.db") == pytest.approx(time.time(), abs=60)
