"""Parent: the child's end of the pipes of `processes.child`; serves commands, turns exceptions into answers."""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NoReturn

from mlflow_ngraph.credentials import hidden
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CellError, NGraphError
from mlflow_ngraph.processes import disk_space, parent_death
from mlflow_ngraph.verdicts import Verdict

Command = dict[str, Any]


class Parent:
    """Iterates over the commands of the parent. Several threads may answer."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands = commands
        self._answers = answers
        self._lock = threading.Lock()

    @classmethod
    def connect(cls) -> Parent:
        """Take the pipes of this process and report the start. To be called once, at the beginning.

        Standard output is then the log, and standard input is at its end: models and runtimes may print and read.
        """
        # A compiler does not notice the end of input, and the warden may have been killed with the parent.
        parent_death.send_to_self(signal.SIGKILL)
        parent = cls(*take_streams())
        parent.reply(None)
        return parent

    def __iter__(self) -> Iterator[Command]:
        for line in self._commands:
            yield json.loads(line)

    def serve(self, answering: Mapping[str, Callable[[Command], Any]]) -> None:
        """Answer commands until the input ends. An exception becomes the answer: the parent decides about it."""
        for command in self:
            self.answer(command, answering)

    def answer(self, command: Command, answering: Mapping[str, Callable[[Command], Any]]) -> None:
        try:
            self.reply(answering[command["command"]](command))
        except BaseException as error:  # noqa: BLE001 - runtimes raise anything, and models end the process that runs them
            traceback.print_exc()
            self._say(error=described(error))

    def reply(self, result: Any) -> None:
        """Answer the oldest open command."""
        self._say(result=result)

    def stage(self, name: str) -> None:
        """Report the current stage of the oldest open command."""
        self._say(stage=name)

    def note(self, **fields: Any) -> None:
        """Send a message that belongs to no command."""
        self._say(note=fields)

    def _say(self, **message: Any) -> None:
        with self._lock:
            self._answers.write(json.dumps(message) + "\n")
            self._answers.flush()


def described(error: BaseException) -> dict[str, Any]:
    """Verdict and reason of an exception, or that a disk is full, which is not the cell's fault."""
    reason = hidden(" ".join(str(error).split())) or type(error).__name__
    if disk_space.is_lacking(error):
        return {"disk_full": True}
    if isinstance(error, CellError):
        return {"verdict": error.verdict.value, "reason": reason}
    if isinstance(error, MemoryError) or "can't allocate memory" in reason or "bad_alloc" in reason:
        return {"verdict": Verdict.OOM.value, "reason": f"out of memory: {reason}"}
    if isinstance(error, NGraphError):
        return {"verdict": Verdict.FAILED.value, "reason": reason}
    return {"verdict": Verdict.FAILED.value, "reason": one_line(error)}


_FAR = 240


def take_streams() -> tuple[IO[str], IO[str]]:
    """Take the pipes of commands and answers from standard input and output. To be called once, at the beginning.

    Standard input is then at its end, and standard output goes to standard error. Forked processes have neither pipe,
    so that the parent sees the end of this process and not of theirs.
    """
    pipes = [_moved(0), _moved(1)]
    _put(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=lambda: _let_go(pipes))
    builtins.input = _unanswered
    return os.fdopen(pipes[0], encoding="utf-8"), os.fdopen(pipes[1], "w", buffering=1, encoding="utf-8")


def _moved(number: int) -> int:
    """Copy a file descriptor, far from the numbers that other code may use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(3, min(_FAR, soft - 4)))


def _let_go(pipes: list[int]) -> None:
    """Redirect the pipes to nothing: code that has them open may still write and close them."""
    for pipe in pipes:
        _put(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), pipe)


def _put(found: int, place: int) -> None:
    os.dup2(found, place, inheritable=place == 0)
    os.close(found)


def _unanswered(prompt: object = "", /) -> NoReturn:
    """Replaces `input`, whose own error omits the prompt."""
    asked = " ".join(str(prompt).split())
    raise EOFError(f"it asks {asked!r}, and nobody is there to answer: input() has nothing to read")
