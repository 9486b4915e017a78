"""A server that is away costs nothing that was measured, and holds up nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.recording import Recording
from tests.support.records import study_record

LOGIN = "annalena:s3cret"


@contextmanager
def silent() -> Iterator[str]:
    """A server that accepts whoever comes, and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://{LOGIN}@127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.usefixtures("clean_environment")
def test_a_server_that_does_not_answer_is_told_once_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in (connection.PREFLIGHT, connection.IN_TIME):
        monkeypatch.setitem(settings, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    record, heard = study_record(tmp_path / "study"), list[dict[str, Any]]()
    with silent() as address, Journal(tmp_path / "journal", heard.append) as writer:
        recording = Recording(Recorder(address), tmp_path / "study", writer)
        recording.open(record)
        assert "no answer in time" in recording.problem
        recording.close(record, "FINISHED")
        assert "cannot reach it: no answer in time" in recording.problem
    assert [event["event"] for event in heard] == ["recording_failed", "recording_started", "recording_failed"]
    kept = list(journal.read(tmp_path / "journal"))
    assert len(kept) == 2
    assert not [event for event in kept if "annalena" in event["reason"] or "s3cret" in event["reason"]]


@pytest.mark.usefixtures("clean_environment")
def test_whoever_interrupts_does_not_wait_for_a_server_that_failed(tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")

    class Failing(Recorder):
        asked = 0

        def open(self, *_: Any) -> str:
            self.asked += 1
            raise RuntimeError("gone")

    recorder = Failing("http://127.0.0.1:9")
    with Journal(tmp_path / "journal") as writer:
        recording = Recording(recorder, tmp_path / "study", writer)
        recording.open(record)
        recording.close(record, "KILLED")
        assert (recorder.asked, recording.problem) == (1, "gone")
