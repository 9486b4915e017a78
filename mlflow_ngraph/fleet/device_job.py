"""A study as a job on a device: runs it, says on the way how far it is, and sends its journal where no server saw it."""

from __future__ import annotations

import json
import os
import platform
import socket
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import NGraphError, UnreachableError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.fleet import launch, wire
from mlflow_ngraph.fleet.bundle import STUDY
from mlflow_ngraph.runner import Interrupted, run_study
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.version import __version__

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
    speaker = _Speaker()
    code, reason, where, unrecorded = 1, "", {}, ""
    offline = not _reaches(job["tracking_uri"])
    try:
        if not offline:
            os.environ["MLFLOW_RUN_ID"] = job["run_id"]
        outcome = run_study(
            studies.load(str(directory / STUDY)),
            resume=job["resume"],
            tracking_uri=job["tracking_uri"] or None,
            offline=offline,
            observer=speaker,
            when_busy="wait",
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
    if (offline or unrecorded or speaker.recording_failed) and speaker.directory is not None:
        for text in wire.of_journal((speaker.directory / journal.FILE_NAME).read_bytes()):
            print(text, flush=True)  # noqa: T201
        code = 0 if unrecorded and code == 1 else code  # the client records it
    _say("ended", code=code, reason=reason[:_LONGEST_REASON], study_id=speaker.study_id, where=where)
    return code


class _Speaker:
    """Passes on what a client shows."""

    def __init__(self) -> None:
        self.study_id = ""
        self.directory: Path | None = None
        self.recording_failed = False

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Called after the event is on disk, while nothing is timed."""
        if event["event"] == "session_started":
            from mlflow_ngraph import home

            self.study_id = str(event["study_id"])
            self.directory = home.location() / "studies" / self.study_id
        self.recording_failed = event["event"] == "recording_failed" or (
            self.recording_failed and event["event"] != "study_recorded"
        )
        text = wire.of_study(event)
        if text is not None:
            print(text, flush=True)  # noqa: T201 - the log is how a job speaks


def _say(event: str, **fields: Any) -> None:
    print(wire.line(event, **fields), flush=True)  # noqa: T201


def _reaches(tracking_uri: str) -> bool:
    """Whether this device sees the tracking server."""
    if not tracking_uri:
        return False
    try:
        connection.reach(tracking_uri)
    except UnreachableError as error:
        _say("away", reason=str(error))
        return False
    return True
