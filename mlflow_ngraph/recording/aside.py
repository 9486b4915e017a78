"""Recording beside measuring: a process of its own talks to the tracking server, and stands still while anything is timed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow_ngraph import errors
from mlflow_ngraph.errors import DiskFullError, TrackingError, UnreachableError
from mlflow_ngraph.execute import interruption
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.tracking import connection

PATIENCE_S = 1.0
"""For requests that are under way when something is to be timed, all together from the end of one workload to that of the
next: no lane waits longer for a server. A request that takes longer is stopped in the middle."""
TRANSACTIONS_S = 10.0
"""The same where the process itself writes to a database: others could not while it stands still."""
_LONGEST_END = 200

Message = dict[str, Any]


class Aside:
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
        self._due: list[str] = []
        """What was asked for and is not done, in order."""
        self._waits = False
        """Whether the process waits for a server that has failed, and tries it again from time to time."""
        self._pauses = 0
        self._patience_s = self._patience_left_s = PATIENCE_S
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mlflow_ngraph.recording.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which says what becomes of the recording
        )
        self._said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self._send(tracking_uri=uri, experiment=experiment, argv=sys.argv)
        self._ask("preflight")

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
        answer = self._answer("preflight")
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
        self._ask("follow", directory=str(directory.absolute()), events=events)

    def open(self) -> None:
        """Make or continue the run of the study."""
        self._ask("open")

    def again(self) -> None:
        """Make sure of everything that earlier sessions measured, too."""
        self._ask("again")

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
        self._drain()
        self._ask("workload", workload=workload, lanes=list(lane_ids))

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Use no processor within the block: something is timed."""
        self._drain()
        stopped = bool(self._due or self._waits) and self._pause()
        try:
            yield
        finally:
            if stopped:
                self._signal(signal.SIGCONT)
                self._send(do="resume")

    def close(self, status: str) -> None:
        """Record what is still missing, then the study itself, and wait for it. `problem` says what could not be.

        Parameters
        ----------
        status : str
            As MLflow has it: ``FINISHED``, ``FAILED`` or ``KILLED``.
        """
        self._ask("close", status=status)
        # Ctrl-C a second time does not wait.
        with interruption.whole(breakable=True):
            try:
                answer = self._answer("close")
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
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._listening.join()  # to the end of what was said
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            assert stream is not None
            with suppress(BrokenPipeError):  # what was not sent is for nobody
                stream.close()

    def _pause(self) -> bool:
        """Stop the process between two requests, or in the middle of one that takes too long."""
        self._pauses += 1
        self._send(do="pause", number=self._pauses)
        deadline = time.monotonic() + self._patience_left_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self._said.get(timeout=left)
            except queue.Empty:
                break
            if message is None:
                self._said.put(None)
                return False
            if message.get("paused") == self._pauses:
                break
            self._take(message)
        self._patience_left_s = max(0.0, deadline - time.monotonic())
        self._signal(signal.SIGSTOP)
        return True

    def _ask(self, what: str, **fields: Any) -> None:
        self._due.append(what)
        self._send(do=what, **fields)

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        # One that has ended says so where its answer is waited for.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # half a line of one that was ended
            for line in self._process.stdout:
                self._said.put(json.loads(line))
        self._said.put(None)

    def _answer(self, what: str) -> Message:
        """Wait until something that was asked for is done.

        Raises
        ------
        TrackingError
            The process has ended.
        """
        while True:
            message = self._said.get()
            if message is None:
                self._said.put(None)
                raise TrackingError(f"the process that records has ended: {self._last_words()}")
            self._take(message)
            if message.get("answers") == what:
                return message

    def _drain(self) -> None:
        """Take in what was said meanwhile."""
        while not self._said.empty():
            message = self._said.get()
            if message is None:
                self._said.put(None)
                return
            self._take(message)

    def _take(self, message: Message) -> None:
        if "append" in message:
            self._note(message["append"], **message["fields"])
        elif "tell" in message:
            assert self._journal is not None
            self._journal.tell(message["tell"], **message["fields"])
        else:
            if "answers" in message:
                self._due.remove(message["answers"])
            self._waits = message.get("waits", self._waits)

    def _note(self, event: str, **fields: Any) -> None:
        assert self._journal is not None
        with suppress(DiskFullError):  # what is measured next says so; what was measured is safe
            self._journal.append(event, **fields)

    def _signal(self, signum: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signum)

    def _last_words(self) -> str:
        self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][-_LONGEST_END:] if lines else f"exit code {self._process.returncode}"
