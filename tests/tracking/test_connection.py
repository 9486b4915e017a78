"""What cannot be reached says so in one line, soon, and without anybody's password."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.study_run import HANDED_OVER
from tests.support.records import study_record
from tests.support.servers import free_port

pytestmark = pytest.mark.long


def refusal(uri: str, experiment: str | None = None) -> str:
    started = time.monotonic()
    with pytest.raises(TrackingError) as caught:
        Recorder(uri, experiment).preflight()
    assert time.monotonic() - started < 15
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.usefixtures("clean_environment")
def test_nothing_listens() -> None:
    message = refusal(f"http://127.0.0.1:{free_port()}")
    assert "nothing answers there (connection refused)" in message


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_that_does_not_answer_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    port = free_port()
    monkeypatch.setenv(variable, f"http://anna:secret@127.0.0.1:{port}")
    message = refusal("http://tracking.lab:5000")
    assert "nothing answers there" in message
    assert f"through the proxy http://127.0.0.1:{port} ({variable})" in message
    assert "with NO_PROXY=tracking.lab it is asked directly" in message
    assert "secret" not in message
    monkeypatch.setenv("NO_PROXY", "tracking.lab")
    assert connection.proxied("http://tracking.lab:5000") == ""


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("clean_environment")
def test_something_listens_that_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        message = refusal(f"http://anna:secret@127.0.0.1:{silent.getsockname()[1]}")
    assert "no answer in time" in message
    assert "secret" not in message


@pytest.mark.usefixtures("clean_environment")
def test_a_database_that_is_not_there() -> None:
    message = refusal(f"postgresql+psycopg2://anna:secret@127.0.0.1:{free_port()}/mlflow")
    assert "connection refused" in message
    assert "secret" not in message


@pytest.mark.usefixtures("clean_environment")
def test_a_database_file_that_cannot_be_made() -> None:
    assert "unable to open database file" in refusal("sqlite:////proc/nowhere/mlflow.db")


@pytest.mark.usefixtures("clean_environment")
def test_a_file_store_is_refused(tmp_path: Path) -> None:
    assert "use sqlite:///PATH/mlflow.db" in refusal(str(tmp_path / "mlruns"))


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("uri", ["ftp://somewhere", "nonsense:x"])
def test_an_address_that_is_none(uri: str) -> None:
    assert "MLflow does not know such an address" in refusal(uri)


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    "uri", ["http://anna:adm/in@host", "http://anna:adm#in@host", "http://[::1", "postgresql://anna:a?b@host/x"]
)
def test_an_address_whose_login_has_no_clear_end(uri: str) -> None:
    message = refusal(uri)
    assert f"tracking server {uri.partition(':')[0]}://…: the address cannot be read" in message
    assert "adm" not in message
    assert "%40" in message


class Unwell(BaseHTTPRequestHandler):
    """Answers everything with an error of a proxy."""

    def refuse(self) -> None:
        self.send_error(502)

    do_GET = do_POST = refuse  # noqa: N815 - the names that the library calls

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.usefixtures("clean_environment")
def test_a_server_that_is_not_well() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unwell) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        message = refusal(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert message.endswith("it answers with errors of its own (5xx): try again, or look into its log")


def test_what_a_login_may_not_do_says_what_it_may() -> None:
    answer = RuntimeError("API request to endpoint /api/2.0/mlflow/runs/create failed with error code 403 != 200.")
    assert "--experiment NAME" in connection.one_line(answer)


@pytest.mark.usefixtures("clean_environment")
def test_a_password_with_an_at_sign_is_not_told() -> None:
    message = refusal(f"http://admin:adm@inSEKRET@127.0.0.1:{free_port()}?token=SEKRET2")
    assert "SEKRET" not in message
    assert "127.0.0.1" in message


def test_an_experiment_that_somebody_else_makes_in_the_same_moment(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MlflowClient(sqlite_uri).create_experiment("edge")
    known, answers = MlflowClient.get_experiment_by_name, [None]

    def a_moment_before(client: MlflowClient, name: str) -> Any:
        return answers.pop() if answers else known(client, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", a_moment_before)
    Recorder(sqlite_uri, "edge").preflight()
    assert not answers


def test_a_deleted_experiment(sqlite_uri: str) -> None:
    client = MlflowClient(sqlite_uri)
    client.delete_experiment(client.create_experiment("old"))
    assert refusal(sqlite_uri, "old") == "experiment 'old' is deleted: restore it, or choose another name"


def test_another_experiment_than_that_of_the_project_run(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(sqlite_uri)
    run = client.create_run(client.create_experiment("mine"), tags={"mlflow.project.entryPoint": "benchmark"})
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    monkeypatch.setenv(HANDED_OVER, run.info.run_id)
    assert "mlflow run --experiment-name other" in refusal(sqlite_uri, "other")


def test_a_run_of_the_environment_that_is_not_there(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MlflowClient(sqlite_uri)
    deleted = client.create_run(client.create_experiment("mine")).info.run_id
    client.delete_run(deleted)
    for run_id in ("0" * 32, deleted):
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        assert f"MLFLOW_RUN_ID names run {run_id}, which is deleted or was never on" in refusal(sqlite_uri)


def test_the_server_goes_away_while_recording(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri)
    recorder.open(record, tmp_path / "study")

    class Gone:
        def __getattr__(self, name: str) -> object:
            raise MlflowException("API request failed:\nConnection refused")

    recorder.client = Gone()
    with pytest.raises(TrackingError, match=r"cannot record lane \w+: nothing answers there"):
        recorder.record_lane(record, next(iter(record.lanes)))


def test_settings_hold_only_while_talking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with connection.talking("http://x", "talk", connection.PREFLIGHT):
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_recording_needs_an_open_study(sqlite_uri: str, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"call Recorder\.open first"):
        Recorder(sqlite_uri).close(study_record(tmp_path), "FINISHED")


@pytest.mark.usefixtures("processes")
def test_processes_that_make_a_database_at_the_same_time_have_one(tmp_path: Path) -> None:
    """Each with a temporary folder of its own, as the children of two studies have."""
    program = f"from mlflow_ngraph.tracking import connection; connection.connect('sqlite:///{tmp_path}/mlflow.db')"
    started = []
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        env = {**os.environ, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(tmp_path)}
        started.append(subprocess.Popen([sys.executable, "-c", program], env=env, stderr=subprocess.PIPE, text=True))
    assert [(process.communicate()[1], process.returncode) for process in started] == [("", 0)] * 3
