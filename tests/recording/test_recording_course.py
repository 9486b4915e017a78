"""A server that is away costs nothing that was measured, and holds up nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.recording.study_upload import Recording
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.study_run import StudyRun
from tests.support.script import Script
from tests.support.silence import LOGIN, silent


@pytest.mark.usefixtures("clean_environment")
def test_a_server_that_does_not_answer_is_told_once_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in (connection.PREFLIGHT, connection.IN_TIME):
        monkeypatch.setitem(settings, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    heard, script = list[dict[str, Any]](), Script()
    given = {"name": "s", "workloads": ["block:mha"], "compilers": ["identity"], "batch_sizes": [1]}
    script.events[0]["study"] = parse(given).model_dump(mode="json")
    with silent() as address, Journal(script.write(tmp_path), heard.append) as writer:
        recording = Recording(Recorder(address), tmp_path, writer, None)
        recording.open()
        assert "no answer in time" in recording.problem
        recording.close("FINISHED")
        assert "cannot reach it: no answer in time" in recording.problem
    assert [event["event"] for event in heard] == ["recording_failed", "recording_started", "recording_failed"]
    kept = list(journal.read(tmp_path))[len(script.events) :]
    assert len(kept) == 2
    assert not [event for event in kept if LOGIN.partition(":")[0] in event["reason"] or "s3cret" in event["reason"]]


class Failing(Recorder):
    """Writes to a server that is gone."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.asked: list[str] = []

    def preflight(self) -> None:
        self.asked.append("preflight")
        raise RuntimeError("gone")

    def open(self, *_: Any) -> str:
        self.asked.append("open")
        raise RuntimeError("gone")


@pytest.mark.usefixtures("clean_environment")
def test_whoever_interrupts_does_not_wait_for_a_server_that_failed(tmp_path: Path) -> None:
    recorder = Failing()
    with Journal(Script().write(tmp_path)) as writer:
        recording = Recording(recorder, tmp_path, writer, None)
        recording.open()
        recording.close("KILLED")
    assert (recorder.asked, recording.problem) == (["open"], "gone")


class Kept(Failing):
    """Has opened a run, and notes how it ends."""

    def open(self, *_: Any) -> str:
        self._study = StudyRun("0" * 32, "1", "ngraph", "key", {}, {})
        return self._study.run_id

    def end(self, status: str) -> None:
        self.asked.append(status)


@pytest.mark.usefixtures("clean_environment")
def test_the_run_of_a_study_whose_folder_is_gone_is_ended(tmp_path: Path) -> None:
    recorder, study = Kept(), Script().write(tmp_path / "study")
    with Journal(study) as writer:
        recording = Recording(recorder, study, writer, None)
        recording.open()
        study.rename(tmp_path / "elsewhere")
        recording.close("FAILED")
    assert recorder.asked == ["FAILED"]
    assert f"{study}: no journal.jsonl here" in recording.problem


@pytest.mark.usefixtures("clean_environment")
def test_what_waits_for_a_server_is_counted_and_one_failure_is_noted_once(tmp_path: Path) -> None:
    recorder, heard, script = Failing(), list[dict[str, Any]](), Script(lanes=("identity", "fast"))
    with Journal(script.write(tmp_path), heard.append) as writer:
        recording = Recording(recorder, tmp_path, writer, None)
        recording.open()
        recording.workload("timm:m", ["identity", "fast"])
        recording.retry()
        assert (recording.waiting, recording.problem) == (2, "gone")
    assert recorder.asked == ["open", "preflight"], "lanes wait behind a server that failed, without asking it each"
    assert [event["event"] for event in heard] == ["recording_failed", "recording_waits", "recording_waits"]
