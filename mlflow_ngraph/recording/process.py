"""The process that records a study while another one measures it. Run as a script, by `mlflow_ngraph.recording.aside`.

Reads what it is to do from standard input, a JSON object a line, and does one after the other; what it has to say it writes
the same way. The journal it reads by itself, and never writes: whoever measures notes there what a server has. As soon as a
server fails, it is tried again less and less often.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from mlflow_ngraph import parent_death, standard_streams
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.recording.course import Recording
from mlflow_ngraph.recording.gate import Gate
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
"""From one try to the next, while the server fails: twice as long each time."""

Message = dict[str, Any]


class Voice:
    """Says things to the parent; of the notes of a recording it has them taken down."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def say(self, **message: Any) -> None:
        """Send a message."""
        with self._lock:
            print(json.dumps(message), file=self._stream, flush=True)

    def append(self, event: str, **fields: Any) -> None:
        """Have an event put into the journal."""
        self.say(append=event, fields=fields)

    def tell(self, event: str, **fields: Any) -> None:
        """Have an observer told of an event."""
        self.say(tell=event, fields=fields)


class Clerk:
    """Does what the parent asks for.

    Parameters
    ----------
    recorder : Recorder
        Writes to the server.
    voice : Voice
        What answers go through.
    """

    def __init__(self, recorder: Recorder, voice: Voice) -> None:
        self._recorder = recorder
        self._voice = voice
        self._recording: Recording | None = None
        self._retry_s = FIRST_RETRY_S
        self._does: Mapping[str, Callable[[Message], Message]] = {
            "preflight": self._preflight,
            "follow": self._follow,
            "open": self._open,
            "again": self._again,
            "workload": self._workload,
            "close": self._close,
        }

    @property
    def patience_s(self) -> float | None:
        """For how long to wait for something to do before `retry`; None where there is nothing to be tried again."""
        return self._retry_s if self._recording is not None and self._recording.problem else None

    def do(self, message: Message) -> None:
        """What a message asks for, and say that it is done."""
        answer = self._does[message["do"]](message)
        self._voice.say(answers=message["do"], **answer)

    def retry(self) -> None:
        """Try again what has failed."""
        assert self._recording is not None  # `patience_s` says when
        self._recording.retry()
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S) if self._recording.problem else FIRST_RETRY_S
        self._voice.say(**self._whether_it_waits())

    def _preflight(self, _: Message) -> Message:
        uri = self._recorder.tracking_uri
        error = None
        try:
            self._recorder.preflight()
        except NGraphError as failure:
            error = {"kind": type(failure).__name__, "text": str(failure)}
        return {"database": connection.is_database(uri), "error": error}

    def _follow(self, message: Message) -> Message:
        self._recording = Recording(self._recorder, Path(message["directory"]), self._voice, message["events"])
        return {}

    def _open(self, _: Message) -> Message:
        self._followed().open()
        return self._whether_it_waits()

    def _again(self, _: Message) -> Message:
        self._followed().again()
        return self._whether_it_waits()

    def _workload(self, message: Message) -> Message:
        self._followed().workload(message["workload"], message["lanes"])
        return self._whether_it_waits()

    def _close(self, message: Message) -> Message:
        recording = self._followed()
        recording.close(message["status"])
        return {"where": dict(recording.where), "problem": recording.problem}

    def _whether_it_waits(self) -> Message:
        return {"waits": bool(self._followed().problem)}

    def _followed(self) -> Recording:
        if self._recording is None:
            raise ValueError("it was not said which study to follow")
        return self._recording


def main() -> None:
    """Work until there are no more messages."""
    parent_death.send_to_self(signal.SIGKILL)
    # Whatever a library prints is none of our messages.
    messages, answers = standard_streams.take()
    voice = Voice(answers)
    begin = json.loads(messages.readline())
    sys.argv[:] = begin["argv"]  # MLflow names it as the source of a run
    gate = Gate()
    clerk = Clerk(Recorder(begin["tracking_uri"], begin["experiment"], through=gate.around), voice)
    asked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages, gate, voice, asked), daemon=True).start()
    while True:
        try:
            message = asked.get(timeout=clerk.patience_s)
        except queue.Empty:
            clerk.retry()
            continue
        if message is None:
            return
        clerk.do(message)


def _listen(messages: IO[str], gate: Gate, voice: Voice, asked: queue.SimpleQueue[Message | None]) -> None:
    """Take in what is to be done, and heed at once what cannot wait for its turn."""
    for line in messages:
        message = json.loads(line)
        if message["do"] == "pause":
            gate.close()
            voice.say(paused=message["number"])
        elif message["do"] == "resume":
            gate.open()
        else:
            asked.put(message)
    asked.put(None)


if __name__ == "__main__":
    main()
