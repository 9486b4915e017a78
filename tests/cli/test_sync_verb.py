"""Studies that wait for a server: all of them at once, and as often as it comes and goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from mlflow import MlflowClient

from mlflow_ngraph import runner
from mlflow_ngraph.cli import sync as verb
from mlflow_ngraph.cli.app import run as cli
from mlflow_ngraph.execute import journal, study_directories
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.machine_lock import ExclusiveMachine
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.cutting import CuttingProxy
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("compilers")


@pytest.fixture(scope="module")
def measured(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a study that was measured offline, whose home nobody changes."""
    study = {
        "name": "waiting", "workloads": ["block:mha?width=16"], "compilers": ["identity"], "batch_sizes": [1],
        "repetitions": 4, "slice_repetitions": 2, "warmup": {"window": 2, "max_seconds": 0.2},
        "limits": {"reload_seconds": 0},
    }  # fmt: skip
    return runner.run_study(parse(study), home=tmp_path_factory.mktemp("home"), offline=True).directory


def home_with(measured: Path, home: Path, *names: str) -> Path:
    """A home with studies of these names, each of which is another one."""
    for name in names:
        check, content = "", b""
        for event in journal.read(measured):
            known = {key: value for key, value in event.items() if key != "check"}
            if "study_id" in known:
                known["study_id"] = name
            line, check = journal.line_of(known, check)
            content += line
        (home / "studies" / name).mkdir(parents=True)
        (home / "studies" / name / "journal.jsonl").write_bytes(content)
        (home / "studies" / name / "engines").symlink_to(measured / "engines")
    return home


def synced(capsys: pytest.CaptureFixture[str], home: Path, uri: str, code: int = 0) -> dict[str, Any]:
    assert cli(["study", "sync", "--all", "--home", str(home), "--tracking-uri", uri, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def test_all_that_waits_is_recorded_and_one_that_cannot_be_costs_the_others_nothing(
    measured: Path, sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_with(measured, tmp_path / "home", "one", "two", "damaged", "busy")
    damaged = home / "studies" / "damaged" / "journal.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b'"slice"', b'"slide"', 1))
    with Journal(home / "studies" / "busy"):
        first = synced(capsys, home, sqlite_uri, code=1)
    assert {row["study_id"] for row in first["recorded"]} == {"one", "two"}
    (problem,) = first["problems"]
    assert problem.startswith("damaged: ")
    assert "is damaged" in problem
    second = synced(capsys, home, sqlite_uri, code=1)
    assert [row["study_id"] for row in second["recorded"]] == ["busy"]
    damaged.unlink()
    assert synced(capsys, home, sqlite_uri) == {"recorded": [], "problems": []}


def test_an_interrupted_study_is_recorded_once_and_again_when_it_went_on(
    measured: Path, sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_with(measured, tmp_path / "home", "one")
    lines = (home / "studies/one/journal.jsonl").read_bytes().splitlines(keepends=True)
    begun = next(number for number, line in enumerate(lines) if b'"study_finished"' in line)
    (home / "studies/one/journal.jsonl").write_bytes(b"".join(lines[:begun]))
    assert [row["study_id"] for row in synced(capsys, home, sqlite_uri)["recorded"]] == ["one"]
    assert synced(capsys, home, sqlite_uri)["recorded"] == []
    assert study_directories.end(home / "studies/one") == "open"
    with Journal(home / "studies/one") as writer:
        writer.append("study_finished", status="FINISHED", offline=True)
    assert [row["study_id"] for row in synced(capsys, home, sqlite_uri)["recorded"]] == ["one"]
    client = MlflowClient(sqlite_uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert sorted(run.data.tags["ngraph.kind"] for run in runs) == ["lane", "study"]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_journal_that_ends_before_its_study_is_told(
    measured: Path, sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home_with(measured, tmp_path / "home", "one") / "studies" / "one" / "journal.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert cli(["study", "sync", "one", "--home", str(tmp_path / "home"), "--tracking-uri", sqlite_uri]) == 0
    assert "the journal of one ends before its study does, with 0 of 1 cells: go on with" in capsys.readouterr().err


def test_a_home_that_is_misspelt_is_an_error_and_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["study", "sync", "--all", "--home", str(tmp_path / "misspelt")]) == 2
    assert f"there are no studies in {tmp_path / 'misspelt'}" in capsys.readouterr().err
    assert not (tmp_path / "misspelt").exists()


def test_a_study_that_may_not_be_written_is_named(
    measured: Path, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    home = home_with(measured, tmp_path / "home", "one")
    monkeypatch.setattr(FileLock, "acquire", refuse)
    (problem,) = synced(capsys, home, sqlite_uri, code=1)["problems"]
    assert f"{home / 'studies' / 'one'}: the journal cannot be written (Permission denied)" in problem


def test_a_server_that_is_away_is_told_once_for_all(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], clean_environment: None
) -> None:
    home = home_with(measured, tmp_path / "home", "one", "two", "three")
    away = f"http://127.0.0.1:{free_port()}"
    (problem,) = synced(capsys, home, away, code=1)["problems"]
    assert problem.startswith("3 studies wait for the server: ")
    assert study_directories.unrecorded(home) != []


def test_a_server_that_goes_away_meanwhile_is_waited_for(
    measured: Path,
    mlflow_server: str,
    tmp_path: Path,
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    home = home_with(measured, tmp_path / "home", "one")
    left, pauses, real_sleep = iter([1, 2, 3]), list[float](), time.sleep

    def cut_before(step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that finds the server away; three in all do."""

        def taken(*arguments: Any) -> Any:
            if next(left, None):
                proxy.cut()
            return step(*arguments)

        return taken

    def sleep(seconds: float) -> None:
        if proxy.down:
            pauses.append(seconds)
            proxy.heal()
        else:
            real_sleep(seconds)

    for name in ("open", "record_lane", "close"):
        monkeypatch.setattr(Recorder, name, cut_before(getattr(Recorder, name)))
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=sleep))
    with CuttingProxy(mlflow_server) as proxy:
        arguments = ["study", "sync", "one", "--home", str(home), "--tracking-uri", proxy.uri, "--experiment", "cut"]
        assert cli(arguments) == 0
    told = capsys.readouterr()
    assert [line.partition("; ")[2] for line in told.err.splitlines()] == [
        "trying again in 1 s", "trying again in 2 s", "trying again in 4 s"
    ]  # fmt: skip
    assert pauses == [1, 2, 4]
    assert "cannot open the study run: " in told.err
    client = MlflowClient(mlflow_server)
    runs = client.search_runs([client.get_experiment_by_name("cut").experiment_id])
    assert sorted(run.data.tags["ngraph.kind"] for run in runs) == ["lane", "study"]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_watching_waits_for_the_server_and_for_whoever_measures(
    measured: Path, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_with(measured, tmp_path / "home", "one")
    paused: list[float] = []
    uri = iter([f"http://127.0.0.1:{free_port()}"] * 2 + [sqlite_uri])
    recorded = verb.recorded

    def record(directory: Path, **_: Any) -> dict[str, Any]:
        return recorded(directory, tracking_uri=next(uri), experiment=None)

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 1:
            machine.__enter__()
        if len(paused) == 2:
            machine.__exit__(None, None, None)
        if len(paused) == 5:
            raise KeyboardInterrupt

    machine = ExclusiveMachine("theirs")
    monkeypatch.setattr(verb, "recorded", record)
    monkeypatch.setattr("mlflow_ngraph.cli.sync.time", SimpleNamespace(sleep=sleep))
    assert cli(["study", "sync", "--watch", "--home", str(home), "--every", "10s"]) == 0
    assert paused == [20, 20, 40, 10, 10], "away; not asked while somebody measures; away; recorded; nothing waits"
    told = capsys.readouterr()
    assert told.err.count("1 study waits for the server") == 1, "the same is told once"
    assert told.out.count("recorded one") == 1


def test_a_watch_ends_by_a_signal(measured: Path, sqlite_uri: str, tmp_path: Path) -> None:
    home = home_with(measured, tmp_path / "home", "one")
    command = [sys.executable, "-u", "-m", "mlflow_ngraph", "study", "sync", "--watch", "--home", str(home)]
    process = subprocess.Popen(
        command, env={**os.environ, "MLFLOW_TRACKING_URI": sqlite_uri}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded one\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert study_directories.recorded_as(home / "studies/one")


@pytest.mark.parametrize("arguments", [["one", "--all"], ["--watch", "--json"], ["--watch", "--every", "soon"]])
def test_wrong_options_are_told(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["study", "sync", *arguments, "--home", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
