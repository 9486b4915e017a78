"""Recording beside measuring: a process of its own talks to the tracking server, and stands still while anything is timed."""

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
"""For requests that are under way when something is to be timed, all together from the end of one workload to that of the
next: no lane waits longer for a server. A request that takes longer is stopped in the middle."""
TRANSACTIONS_S = 10.0
"""The same where the process itself writes to a database: others could not while it stands still."""


class RecorderProcess:
    """Passes a study on to a tracking server without holding it up.

    Nothing here waits for the server but `preflight`, before a study begins, and `close`, when it has ended.

    Parameters
    ----------
    tracking_uri : str | None
        MLflow's own default when left out.
    experiment : str | None
        See `Recorder`.
    """

    def __init__(self, tracking_uri: str | None, experiment: str | None) -> None:
        # What MLflow was told in this process the other one does not know.
        uri = connection.resolve_uri(tracking_uri) if tracking_uri is None and "mlflow" in sys.modules else tracking_uri
        self.where: dict[str, str] = {}
        """Where to look at the results in MLflow, by name; empty until everything is recorded."""
        self.problem = ""
        """Why the server does not have everything, or empty."""
        self._journal: Journal | None = None
        self._waits = False
        """Whether the process waits for a server that has failed, and tries it again from time to time."""
        self._pauses = self._paused = 0
        """How often it was asked to pause, and the last such request that it has answered."""
        self._patience_s = self._patience_left_s = PATIENCE_S
        # Its session is its own: Ctrl-C is for the parent, which says what becomes of the recording.
        self._child = Child("mlflow_ngraph.recording.recorder_child", os.environ, on_note=self._take)
        self._begin("preflight", tracking_uri=uri, experiment=experiment, argv=sys.argv)

    def preflight(self) -> str:
        """Whether the server lets us write. To be called once, before anything is measured.

        Returns
        -------
        str
            Why it does not answer; empty where it does.

        Raises
        ------
        TrackingError
            It refuses.
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
        """Say which study it is.

        Parameters
        ----------
        directory : Path
            Of the study.
        journal : Journal
            Where is noted what the server has.
        events : int | None
            Of the journal that earlier sessions wrote; all that it has where this is left out.
        """
        self._journal = journal
        self.where, self.problem = {}, ""
        self._begin("follow", directory=str(directory.absolute()), events=events)

    def open(self) -> None:
        """Make or continue the run of the study."""
        self._begin("open")

    def resync(self) -> None:
        """Make sure of everything that earlier sessions measured, too."""
        self._begin("resync")

    def workload(self, workload: str, lane_ids: Sequence[str]) -> None:
        """Record the lanes of a finished workload.

        Parameters
        ----------
        workload : str
            Its reference.
        lane_ids : Sequence[str]
            The lanes that have come to their end.
        """
        self._patience_left_s = self._patience_s
        self._child.poll()
        self._begin("workload", workload=workload, lanes=list(lane_ids))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Use no processor within the block: something is timed."""
        self._child.poll()
        stopped = (self._waits or not self._child.settled) and self._pause()
        try:
            yield
        finally:
            if stopped:
                self._child.send_signal(signal.SIGCONT)
                self._child.send("resume")

    def close(self, status: str) -> None:
        """Record what is still missing, then the study itself, and wait for it. `problem` says what could not be.

        Parameters
        ----------
        status : str
            As MLflow has it: ``FINISHED``, ``FAILED`` or ``KILLED``.
        """
        self._begin("close", status=status)
        # Ctrl-C a second time does not wait.
        with interruption.whole(breakable=True):
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
        """Let the process go, whatever it is at."""
        self._child.close()

    def _pause(self) -> bool:
        """Stop the process between two requests, or in the middle of one that takes too long."""
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
        """Wait for everything that was asked for, and return the last answer.

        Raises
        ------
        TrackingError
            The process has ended.
        """
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
