"""Clerk: the process that records a study during its measurement, at the other end of `recording.recorder_process`.

It runs commands in order and reads the journal itself. Only the measuring process writes there what the server has. A
failing server is tried less and less often.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes.parent import Command, Parent
from mlflow_ngraph.recording.study_upload import Recording
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Gate:
    """Passes requests one at a time, until it is closed.

    A process suspended within a transaction blocks all users of the database: it is suspended between two requests.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._inside = 0

    def close(self) -> None:
        """Hold back requests, and wait for the one under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)

    def open(self) -> None:
        """Pass requests again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def around(self, client: MlflowClient) -> MlflowClient:
        """Wrap a client so that its requests pass the gate."""
        return cast("MlflowClient", _Gated(client, self))

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


class _Gated:
    def __init__(self, client: MlflowClient, gate: Gate) -> None:
        self._client = client
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return self._through(value) if callable(value) else value

    def _through(self, request: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(request)
        def pass_gate(*arguments: Any, **options: Any) -> Any:
            with self._gate:
                return request(*arguments, **options)

        return pass_gate


FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
"""Interval between attempts at a failing server; doubled each time."""


class Clerk:
    """Runs the commands of the parent and passes it the events of a recording. A gate guards requests to the server."""

    def __init__(self, parent: Parent, gate: Gate) -> None:
        self._parent = parent
        self._gate = gate
        self._recorder: Recorder
        self._recording: Recording | None = None
        self._retry_s = FIRST_RETRY_S
        self._does: Mapping[str, Callable[[Command], Any]] = {
            "preflight": self._preflight,
            "follow": self._follow,
            "open": self._open,
            "resync": self._resync,
            "workload": self._workload,
            "close": self._close,
        }

    @property
    def patience_s(self) -> float | None:
        """Seconds to wait for a command before `retry`; None when nothing has failed."""
        return self._retry_s if self._recording is not None and self._recording.problem else None

    def do(self, command: Command) -> None:
        """Run a command and report its end. Unexpected errors end the process."""
        self._parent.reply(self._does[command["command"]](command))

    def retry(self) -> None:
        """Repeat the failed step."""
        recording = self._followed()
        recording.retry()
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S) if recording.problem else FIRST_RETRY_S
        self._say_if_it_waits()

    def append(self, event: str, **fields: Any) -> None:
        """Have the parent append an event to the journal."""
        self._parent.note(append=event, fields=fields)

    def tell(self, event: str, **fields: Any) -> None:
        """Have the parent pass an event to the observer."""
        self._parent.note(tell=event, fields=fields)

    def _preflight(self, command: Command) -> dict[str, Any]:
        sys.argv[:] = command["argv"]  # MLflow names it as the source of a run
        self._recorder = Recorder(command["tracking_uri"], command["experiment"], through=self._gate.around)
        error = None
        try:
            self._recorder.preflight()
        except NGraphError as failure:
            error = {"kind": type(failure).__name__, "text": str(failure)}
        return {"database": connection.is_database(self._recorder.tracking_uri), "error": error}

    def _follow(self, command: Command) -> None:
        self._recording = Recording(self._recorder, Path(command["directory"]), self, command["events"])

    def _open(self, _: Command) -> None:
        self._followed().open()
        self._say_if_it_waits()

    def _resync(self, _: Command) -> None:
        self._followed().resync()
        self._say_if_it_waits()

    def _workload(self, command: Command) -> None:
        self._followed().workload(command["workload"], command["lanes"])
        self._say_if_it_waits()

    def _close(self, command: Command) -> dict[str, Any]:
        recording = self._followed()
        recording.close(command["status"])
        return {"where": dict(recording.where), "problem": recording.problem}

    def _say_if_it_waits(self) -> None:
        self._parent.note(waits=bool(self._followed().problem))

    def _followed(self) -> Recording:
        if self._recording is None:
            raise ValueError("it was not said which study to follow")
        return self._recording


def main() -> None:
    """Run commands until there are no more."""
    parent, gate = Parent.connect(), Gate()
    clerk = Clerk(parent, gate)
    asked: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parent, gate, asked), daemon=True).start()
    while True:
        try:
            command = asked.get(timeout=clerk.patience_s)
        except queue.Empty:
            clerk.retry()
            continue
        if command is None:
            return
        clerk.do(command)


def _listen(parent: Parent, gate: Gate, asked: queue.SimpleQueue[Command | None]) -> None:
    """Queue commands; obey pause and resume at once."""
    for command in parent:
        if command["command"] == "pause":
            gate.close()
            parent.note(paused=command["number"])
        elif command["command"] == "resume":
            gate.open()
        else:
            asked.put(command)
    asked.put(None)
