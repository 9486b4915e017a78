"""A child process as the parent sees it: commands in, answers out, and every way it can end.

Parent and child speak JSON, an object a line. The parent sends ``{"command": ..., <fields>}``. The child answers each command that
wants it, in their order, with ``{"result": ...}`` or ``{"error": ...}``, the first of them when it has started; before that any number
of ``{"stage": ...}``. ``{"note": {...}}`` may come at any time. `processes.parent` is the other end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from mlflow_ngraph.errors import CellError, NGraphError
from mlflow_ngraph.processes import disk_space, interruption, logs, memory_kills, starting
from mlflow_ngraph.processes.time_budget import TIME_UP
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict

Message = dict[str, Any]

STARTUP_SECONDS = 120.0
_LONGEST_LINE = 200


class ChildFailure(CellError):  # noqa: N818 - the child fails, which is a finding and no fault of this program
    """A command has no result; carries the verdict for the cells that wanted it."""

    def __init__(self, verdict: Verdict, reason: str, tail: str = "") -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.tail = tail

    @property
    def last_line(self) -> str:
        """The end of the last line of the log; empty without one."""
        return self.tail.rstrip().rpartition("\n")[2].strip()[-_LONGEST_LINE:]


class OutOfTime(ChildFailure):
    """The time of the study was up. Nothing is known to be wrong with the cells, which nobody measures any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(Verdict.TIMEOUT, reason)


@dataclass
class _Begun:
    """A command whose answer has not been read."""

    command: str
    timeout: float
    at: float
    """When it was sent, by `time.perf_counter`."""
    on_stage: Callable[[str], None] = lambda stage: None
    accounted: Callable[[Any], float] = lambda result: 0.0
    stage_limits: Mapping[str, float] = field(default_factory=dict)
    deadline: float | None = None
    """By `time.monotonic`; None until somebody waits for it and no other command stands before it."""
    late: bool = False
    """Whether it is the time of the study that ends it, and not its own."""


class Child:
    """A process in a process group of its own. It starts in the background: the first request waits for it.

    It has a folder of its own for temporary files, which goes with it: runtimes unpack whole engines there, and a process
    that is ended removes nothing.

    Parameters
    ----------
    module : str
        Its `main` is what the process does, with a `Parent`.
    log : Path | None
        File of standard error, in a folder of the study's directory. Outside a study it goes with the temporary files.
    warden : Warden | None
        Ends the process if we are killed; without one the kernel alone does.
    forked : bool
        Let it come from a process that has imported PyTorch, where there is one: sooner, and with memory that is not all
        its own. For what is not timed.
    left : Callable[[], float]
        The seconds that are left for everything: what takes longer is ended, whatever its own time limit.
    on_note : Callable[[Message], None]
        Called with each note, while somebody waits or polls.
    """

    def __init__(
        self,
        module: str,
        env: Mapping[str, str],
        log: Path | None = None,
        *,
        warden: Warden | None = None,
        forked: bool = False,
        left: Callable[[], float] = lambda: math.inf,
        on_note: Callable[[Message], None] = lambda note: None,
    ) -> None:
        self._left = left
        self._on_note = on_note
        self.started_at = time.time()
        """Unix seconds."""
        self.overhead_s = 0.0
        """Seconds from commands to their answers in which the child did anything but the stages that it accounts for."""
        self.cpu_s: float | None = None
        """CPU seconds of the process and of those that it started and waited for, once it has ended."""
        self._code: int | None = None
        """How it has ended."""
        self._warden = warden
        self._buffer = b""
        self._result: Any = None
        self._failure: NGraphError | None = None
        """What `finish` has to raise."""
        self._answered = time.perf_counter()
        """When the last answer was read."""
        stdin, commands = os.pipe()
        answers, stdout = os.pipe()
        self._stdin: IO[bytes] = os.fdopen(commands, "wb")
        self._stdout: IO[bytes] = os.fdopen(answers, "rb", buffering=0)
        # Not in the study's directory: addresses of sockets in it have to be short.
        self._temporary = tempfile.TemporaryDirectory(prefix="ngraph-", ignore_cleanup_errors=True)
        temporary = Path(self._temporary.name)
        self._study = None if log is None else log.parent.parent
        self._log = log or temporary / "log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as stream:
            pipes = (stdin, stdout, stream.fileno())
            self._process = starting.start(module, env, temporary, pipes, warden=warden, forked=forked)
        os.close(stdin)
        os.close(stdout)
        self._begun = [_Begun("starting", STARTUP_SECONDS, self._answered)]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def settled(self) -> bool:
        """Whether `finish` returns, or raises, without waiting."""
        return self._failure is not None or not self._begun

    @property
    def closed(self) -> bool:
        """Whether it is known to have ended."""
        return self._stdout.closed

    def begin(
        self,
        command: str,
        timeout: float,
        *,
        on_stage: Callable[[str], None] = lambda stage: None,
        accounted: Callable[[Any], float] = lambda result: 0.0,
        stage_limits: Mapping[str, float] | None = None,
        **fields: Any,
    ) -> None:
        """Send a command and do not wait; the next `request` or `finish` does, and says how it went.

        Parameters
        ----------
        timeout : float
            Seconds of waiting; beyond it the child is killed.
        on_stage : Callable[[str], None]
            Called with each stage that the child announces, while somebody waits.
        accounted : Callable[[Any], float]
            The seconds of the result that have a name of their own (compile, load, warm-up, ...); the rest of the time
            until the answer is the lane's overhead.
        stage_limits : Mapping[str, float] | None
            Seconds from the announcement of a stage to the answer, in place of ``timeout``.
        """
        self.send(command, **fields)
        self._begun.append(_Begun(command, timeout, time.perf_counter(), on_stage, accounted, stage_limits or {}))

    def finish(self) -> Any:
        """Wait for everything that has begun; returns the result of the last command that was answered.

        Raises
        ------
        ChildFailure
            A command failed, its time ran out, or the child ended; it is closed in the last two cases, and says so again.
        DiskFullError
            The child found a disk full.
        """
        wait([self])
        if self._failure is not None:
            failure, self._failure = self._failure, self._failure if self.closed else None
            raise failure
        return self._result

    def request(
        self,
        command: str,
        timeout: float,
        *,
        on_stage: Callable[[str], None] = lambda stage: None,
        accounted: Callable[[Any], float] = lambda result: 0.0,
        **fields: Any,
    ) -> Any:
        """Send a command and sleep until its result is there. Parameters and errors are those of `begin` and `finish`."""
        self.finish()
        self.begin(command, timeout, on_stage=on_stage, accounted=accounted, **fields)
        return self.finish()

    def send(self, command: str, **fields: Any) -> None:
        """Send a command that has no answer. A child that has ended says so where an answer is waited for."""
        if not self.closed:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.write(json.dumps({"command": command, **fields}).encode() + b"\n")
                self._stdin.flush()

    def poll(self, seconds: float = 0.0) -> None:
        """Take in what the child has said, or what it says first within so many seconds."""
        if not self.closed:
            if _readable([self], seconds):
                self._read()
            self.take_in()

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it is known to have ended."""
        if not self.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """End the child now, with everything it started. Closing again does nothing."""
        if self.closed:
            return  # its process group may belong to somebody else by now
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with interruption.whole():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap()
        self._stdout.close()
        self._temporary.cleanup()
        logs.shorten(self._log)
        if self._warden is not None:
            self._warden.remove(self.pid)

    def resident_bytes(self) -> int:
        """Memory of the process and those that it started; 0 once it has ended."""
        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += member.memory_info().rss
        return total

    def fileno(self) -> int:
        """Of the pipe that answers come through, for `wait`."""
        return self._stdout.fileno()

    def patience_s(self) -> float:
        """How long somebody may go on waiting for the answer to the oldest command."""
        begun = self._begun[0]
        if begun.deadline is None:
            left = self._left()
            begun.late = left < begun.timeout
            begun.deadline = time.monotonic() + min(begun.timeout, left)
        return max(0.0, begun.deadline - time.monotonic())

    def listen(self, *, readable: bool) -> None:
        """Read what the child has said by now, if it is readable, and note if it has ended or takes too long."""
        if readable:
            self._read()
        elif not self.patience_s():
            begun = self._begun[0]
            if begun.late:
                self._failure = OutOfTime(f"{begun.command} was ended, because {TIME_UP}")
            else:
                reason = f"{begun.command} did not finish within its time limit"
                self._failure = ChildFailure(Verdict.TIMEOUT, reason, self.tail())
            self.close()

    def _read(self) -> None:
        chunk = os.read(self.fileno(), 1 << 20)
        self._buffer += chunk
        if not chunk:
            self._failure = self._ended(self._begun[0].command if self._begun else "waiting")

    def take_in(self) -> None:
        """Understand what was read, up to a failure."""
        while b"\n" in self._buffer and self._failure is None:
            line, _, rest = self._buffer.partition(b"\n")
            message = _message(line)
            if not self._begun and (message is None or "note" not in message):
                return
            self._buffer = rest
            if message is None:
                reason = (
                    "something in the process wrote to a file descriptor that is not its own, in place of an answer"
                )
                self._failure = ChildFailure(Verdict.FAILED, f"{self._begun[0].command}: {reason}", self.tail())
                self.close()
                return
            if "note" in message:
                self._on_note(message["note"])
                continue
            if "stage" in message:
                begun = self._begun[0]
                if message["stage"] in begun.stage_limits:
                    begun.deadline = time.monotonic() + begun.stage_limits[message["stage"]]
                begun.on_stage(message["stage"])
                continue
            begun = self._begun.pop(0)
            now = time.perf_counter()
            self.overhead_s += now - max(begun.at, self._answered)
            self._answered = now
            if "error" in message:
                self._failure = self._told(begun.command, message["error"])
            else:
                self._result = message["result"]
                self.overhead_s -= begun.accounted(self._result)

    def _told(self, command: str, error: Mapping[str, Any]) -> NGraphError:
        """What the child says went wrong."""
        if error.get("disk_full"):
            return self._lacking(command)
        tail = "" if error["verdict"] == Verdict.UNSUPPORTED.value else self.tail()
        return ChildFailure(Verdict(error["verdict"]), error["reason"], tail)

    def _ended(self, command: str) -> NGraphError:
        """Why the child is gone."""
        code = self._reap()
        tail = self.tail()
        full = any(disk_space.is_full(directory) for directory in (self._log.parent, Path(self._temporary.name)))
        self.close()
        if full:
            # What maps files, or writes them without looking, dies of that without a word.
            return self._lacking(command)
        if code == -signal.SIGKILL and memory_kills.one_more():
            return ChildFailure(Verdict.OOM, f"the kernel killed the process for lack of memory during {command}", tail)
        if code < 0:
            return ChildFailure(Verdict.CRASHED, f"killed by {signal.Signals(-code).name} during {command}", tail)
        return ChildFailure(Verdict.CRASHED, f"exited with code {code} during {command}", tail)

    def _lacking(self, command: str) -> NGraphError:
        """A disk is full."""
        if self._study is None:
            return ChildFailure(Verdict.FAILED, f"no space left on a disk during {command}")
        return disk_space.lacking(f"a child process did: {command}", self._study)

    def _reap(self) -> int:
        """Wait for the end of the process; returns its exit code as `subprocess` has it."""
        # A process is waited for once: what it left is not to be had again.
        with interruption.whole():
            if self._code is None:
                self._code, self.cpu_s = self._process.wait()
        return self._code

    def tail(self) -> str:
        """The last lines that the child wrote to standard error."""
        return logs.tail(self._log)


def _message(line: bytes) -> Message | None:
    """What a child says; None for what is none of our messages."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and {"stage", "note", "error", "result"} & set(message):
            return message
    return None


def wait(children: Sequence[Child]) -> list[Child]:
    """Sleep until at least one of the children is settled; returns those that are.

    A blocking wait: a parent that polls would disturb what its children measure.
    """
    while True:
        for child in children:
            child.take_in()
        settled = [child for child in children if child.settled]
        if settled or not children:
            return settled
        ready = _readable(children, min(child.patience_s() for child in children))
        for child in children:
            child.listen(readable=child in ready)


def _readable(children: Sequence[Child], seconds: float) -> set[Any]:
    """Those of the children that have said something, or have ended, as soon as one has or the time is up."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child, selectors.EVENT_READ)
        return {key.fileobj for key, _ in selector.select(None if math.isinf(seconds) else seconds)}
