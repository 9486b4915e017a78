"""Job on a device: run the study, report its progress, and send the journal if no server has it."""

from __future__ import annotations

import json
import os
import platform
import socket
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_ngraph import home
from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import NGraphError, UnreachableError
from mlflow_ngraph.execute import journal, replay, study_directories
from mlflow_ngraph.processes.interruption import Interrupted
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.version import __version__
from mlflow_ngraph_fleet import launch, wire
from mlflow_ngraph_fleet.bundle import STUDY
from mlflow_ngraph_fleet.node_agent import MARK
from mlflow_ngraph_fleet.standstill import Standstill, of_engine

_LONGEST_REASON = 500


def run(directory: Path) -> int:
    """Run the study that lies in a directory, and say how it ended.

    Returns
    -------
    int
        The exit code, as of ``mlflow-ngraph benchmark``.
    """
    job = json.loads((directory / launch.JOB).read_text(encoding="utf-8"))
    _say("started", host=socket.gethostname(), python=platform.python_version(), version=__version__)
    earlier = _Earlier(home.location() / "fleet" / "studies" / str(job["fleet_study"]))
    speaker = _Speaker(earlier)
    code, reason, where, unrecorded = 1, "", {}, ""
    offline = not _reaches(job["tracking_uri"])
    done = earlier.done()
    if done is not None:
        # The job was lost after the study had ended, or with it the news of that.
        _send_journal(done)
        code = Outcome(replay.load(done), done).exit_code
        _say("ended", code=code, reason="", study_id=done.name, where={})
        return code
    mark = os.environ.get(MARK)
    standstill = Standstill(partial(of_engine, mark)) if mark else None
    try:
        if not offline:
            os.environ["MLFLOW_RUN_ID"] = job["run_id"]
        outcome = run_study(
            studies.load(str(directory / STUDY)),
            # A job that takes the place of one that was lost goes on with its study, whatever was asked for at first.
            resume="auto" if earlier.directory() is not None else job["resume"],
            tracking_uri=job["tracking_uri"] or None,
            offline=offline,
            observer=speaker,
            when_busy="wait",
            standstill=standstill or nullcontext,
        )
        code, where, unrecorded, speaker.directory = (
            outcome.exit_code,
            dict(outcome.where),
            outcome.unrecorded,
            outcome.directory,
        )
    except Interrupted as error:
        code, reason = 128 + error.signum, "interrupted"
    except NGraphError as error:
        code, reason = error.exit_code, str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
        traceback.print_exc()
        reason = f"unexpected {type(error).__name__}: {error}"
    finally:
        if standstill is not None:
            standstill.close()
    if (offline or unrecorded or speaker.recording_failed) and speaker.directory is not None:
        _send_journal(speaker.directory)
        code = 0 if unrecorded and code == 1 else code  # the client records it
    _say("ended", code=code, reason=reason[:_LONGEST_REASON], study_id=speaker.study_id, where=where)
    return code


class _Earlier:
    """Remembers on the device which study belongs to a study over several devices, for the jobs that come after this one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def directory(self) -> Path | None:
        """Directory of the study that an earlier job began."""
        try:
            directory = Path(self._path.read_text(encoding="utf-8"))
        except OSError:
            return None
        return directory if directory.is_dir() else None

    def done(self) -> Path | None:
        """The same where there is nothing left to do for it."""
        directory = self.directory()
        return directory if directory is not None and study_directories.end(directory) == "recorded" else None

    def keep(self, directory: Path) -> None:
        """Note the directory of the study for later jobs."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(str(directory), encoding="utf-8")


class _Speaker:
    """Sends the client messages for people."""

    def __init__(self, earlier: _Earlier) -> None:
        self._earlier = earlier
        self.study_id = ""
        self.directory: Path | None = None
        self.recording_failed = False

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Called after the event is on disk, while nothing is timed."""
        if event["event"] == "session_started":
            self.study_id = str(event["study_id"])
            self.directory = home.location() / "studies" / self.study_id
            self._earlier.keep(self.directory)
        self.recording_failed = event["event"] == "recording_failed" or (
            self.recording_failed and event["event"] != "study_recorded"
        )
        text = wire.of_study(event)
        if text is not None:
            print(text, flush=True)  # noqa: T201 - the log is how a job speaks


def _send_journal(directory: Path) -> None:
    for text in wire.of_journal((directory / journal.FILE_NAME).read_bytes()):
        print(text, flush=True)  # noqa: T201


def _say(event: str, **fields: Any) -> None:
    print(wire.line(event, **fields), flush=True)  # noqa: T201


def _reaches(tracking_uri: str) -> bool:
    if not tracking_uri:
        return False
    try:
        connection.reach(tracking_uri)
    except UnreachableError as error:
        _say("away", reason=str(error))
        return False
    return True
