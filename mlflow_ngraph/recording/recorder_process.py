"""RecorderProcess: handle of the child that records a study; suspends it while timing, and journals its notes."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow_ngraph import errors
from mlflow_ngraph.errors import DiskFullError, TrackingError, UnreachableError
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.processes import interruption
from mlflow_ngraph.processes.child import Child, ChildFailure, Message
from mlflow_ngraph.tracking import connection

PATIENCE_S = 1.0
"""Total wait of all lanes of a workload for requests under way. A longer request is suspended midway."""
TRANSACTIONS_S = 10.0
"""The same when the process writes to a database itself, which a suspended transaction would block for others."""


class RecorderProcess:
    """Records a study without delaying it.

    Only `preflight`, before the study, and `close`, after it, wait for the server.
    """

    def __init__(self, tracking_uri: str | None, experiment: str | None) -> None:
        # The child does not know the URI that MLflow was given in this process.
        uri = connection.resolve_uri(tracking_uri) if tracking_uri is None and "mlflow" in sys.modules else tracking_uri
        self.where: dict[str, str] = {}
        """Links to the results in MLflow, by name; empty until everything is recorded."""
        self.problem = ""
        """Reason why the server lacks something; empty when it does not."""
        self._journal: Journal | None = None
        self._waits = False
        """The process is waiting to retry a failed server."""
        self._pauses = self._paused = 0
        """Number of pauses requested, and of the last one confirmed."""
        self._patience_s = self._patience_left_s = PATIENCE_S
        # In its own session: Ctrl-C is for the parent, which decides about the recording.
        self._child = Child("mlflow_ngraph.recording.recorder_child", os.environ, on_note=self._take)
        self._begin("preflight", tracking_uri=uri, experiment=experiment, argv=sys.argv)

    def preflight(self) -> str:
        """Check that the server accepts writes, and return why it does not answer; empty when it does.

        To be called once, before anything is measured. Raises `TrackingError` if the server refuses.
        """
        answer = self._finish()
        self._patience_s = self._patience_left_s = TRANSACTIONS_S if answer["database"] else PATIENCE_S
        error = answer["error"]
        if error is None:
            return ""
        kind = getattr(errors, error["kind"])
        if not issubclass(kind, UnreachableError):
            raise kind(error["text"])
        return str(error["text"])

    def follow(self, directory: Path, journal: Journal, events: int | None = None) -> None:
        """Set the study to record. The journal receives the events about recorded results.

        ``events`` is the number of events of earlier sessions; None for all in the journal.
        """
        self._journal = journal
        self.where, self.problem = {}, ""
        self._begin("follow", directory=str(directory.absolute()), events=events)

    def open(self) -> None:
        self._begin("open")

    def resync(self) -> None:
        """Record the results of earlier sessions that the server lacks."""
        self._begin("resync")

    def workload(self, workload: str, lane_ids: Sequence[str]) -> None:
        self._patience_left_s = self._patience_s
        self._child.poll()
        self._begin("workload", workload=workload, lanes=list(lane_ids))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the process within the block, which times something."""
        self._child.poll()
        stopped = (self._waits or not self._child.settled) and self._pause()
        try:
            yield
        finally:
            if stopped:
                self._child.send_signal(signal.SIGCONT)
                self._child.send("resume")

    def close(self, status: str) -> None:
        """Record the missing results, then the study itself, and wait for it. `problem` holds the failure.

        ``status`` as MLflow has it: ``FINISHED``, ``FAILED`` or ``KILLED``.
        """
        self._begin("close", status=status)
        # A second Ctrl-C does not wait.
        with interruption.deferred(breakable=True):
            try:
                answer = self._finish()
            except KeyboardInterrupt:
                self.problem = "interrupted while the tracking server was written to"
                raise
            except TrackingError as error:
                self.problem = str(error)
                self._note("recording_failed", reason=self.problem)
            else:
                self.where, self.problem = answer["where"], answer["problem"]

    def end(self) -> None:
        """End the process at once."""
        self._child.close()

    def _pause(self) -> bool:
        """Suspend the process between two requests, or within one that takes too long."""
        self._pauses += 1
        self._child.send("pause", number=self._pauses)
        deadline = time.monotonic() + self._patience_left_s
        while self._paused < self._pauses and not self._child.closed and (left := deadline - time.monotonic()) > 0:
            self._child.poll(left)
        self._patience_left_s = max(0.0, deadline - time.monotonic())
        self._child.send_signal(signal.SIGSTOP)
        return not self._child.closed

    def _begin(self, command: str, **fields: Any) -> None:
        self._child.begin(command, math.inf, **fields)

    def _finish(self) -> Any:
        """Wait for all commands; return the last answer. Raises `TrackingError` if the process has ended."""
        try:
            return self._child.finish()
        except ChildFailure as failure:
            why = failure.last_line or failure.reason
            raise TrackingError(f"the process that records has ended: {why}") from None

    def _take(self, note: Message) -> None:
        if "append" in note:
            self._note(note["append"], **note["fields"])
        elif "tell" in note:
            assert self._journal is not None
            self._journal.tell(note["tell"], **note["fields"])
        else:
            self._waits = note.get("waits", self._waits)
            self._paused = note.get("paused", self._paused)

    def _note(self, event: str, **fields: Any) -> None:
        assert self._journal is not None
        with suppress(DiskFullError):  # what is measured next says so; what was measured is safe
            self._journal.append(event, **fields)
