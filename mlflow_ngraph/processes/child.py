"""Child: starts a process, sends it commands, and turns every way of ending into an error.

Messages are JSON, an object a line. The parent sends ``{"command": ..., <fields>}``. The child answers in order with
``{"result": ...}`` or ``{"error": ...}``; its first answer says that it has started. Any number of ``{"stage": ...}``
may precede an answer, and ``{"note": {...}}`` may come at any time. `processes.parent` is the other end.
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

from mlflow_ngraph import credentials
from mlflow_ngraph.errors import CellError, NGraphError
from mlflow_ngraph.processes import disk_space, interruption, logs, memory_kills, starting
from mlflow_ngraph.processes.time_budget import TIME_UP
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.text import harmless
from mlflow_ngraph.verdicts import Verdict

Message = dict[str, Any]

STARTUP_SECONDS = 120.0
_LONGEST_LINE = 200


class ChildFailure(CellError):  # noqa: N818 - the child fails, which is a finding and no fault of this program
    """A command has no result; carries the verdict for its cells, without credentials."""

    def __init__(self, verdict: Verdict, reason: str, tail: str = "") -> None:
        self.verdict = verdict
        self.reason = harmless(credentials.hidden(reason))
        self.tail = credentials.hidden(tail)
        super().__init__(self.reason)

    @property
    def last_line(self) -> str:
        """The end of the log's last line; empty without one."""
        return self.tail.rstrip().rpartition("\n")[2].strip()[-_LONGEST_LINE:]


class OutOfTime(ChildFailure):
    """The study ran out of time. Nothing is known to be wrong with the cells."""

    def __init__(self, reason: str) -> None:
        super().__init__(Verdict.TIMEOUT, reason)


@dataclass
class _Begun:
    """A command without an answer so far."""

    command: str
    timeout: float
    at: float
    """Time of sending, by `time.perf_counter`."""
    on_stage: Callable[[str], None] = lambda stage: None
    accounted: Callable[[Any], float] = lambda result: 0.0
    stage_limits: Mapping[str, float] = field(default_factory=dict)
    deadline: float | None = None
    """By `time.monotonic`; None until a caller waits for it and it is the oldest command."""
    late: bool = False
    """The deadline is that of the study and not of the command."""


class Child:
    """A process in its own process group. It starts in the background: the first request waits for it.

    Its temporary files have their own folder, deleted with it: runtimes unpack whole engines there, and a killed
    process deletes nothing.

    Parameters
    ----------
    module : str
        Module whose `main` the process runs, with a `Parent`.
    log : Path | None
        File of standard error, in a folder of the study's directory. None puts it among the temporary files.
    warden : Warden | None
        Ends the process if the parent is killed; without one only the kernel does.
    forked : bool
        Fork it from a process that has imported PyTorch, if there is one: faster, but memory is shared. For untimed work.
    left : Callable[[], float]
        Remaining seconds of the study, which end any command.
    on_note : Callable[[Message], None]
        Called with each note while a caller waits or polls.
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
        """Seconds between commands and answers outside the accounted stages."""
        self.cpu_s: float | None = None
        """CPU seconds of the process and its awaited children, once it has ended."""
        self._code: int | None = None
        self._killed = False
        self._warden = warden
        self._buffer = b""
        self._result: Any = None
        self._failure: NGraphError | None = None
        """The error that `finish` raises."""
        self._answered = time.perf_counter()
        stdin, commands = os.pipe()
        answers, stdout = os.pipe()
        self._stdin: IO[bytes] = os.fdopen(commands, "wb")
        self._stdout: IO[bytes] = os.fdopen(answers, "rb", buffering=0)
        # Not in the study's directory: socket addresses in it must be short.
        with interruption.deferred():  # a directory that was just made would have no owner to remove it
            self._temporary = tempfile.TemporaryDirectory(prefix="ngraph-", ignore_cleanup_errors=True)
        temporary = Path(self._temporary.name)
        self._study = None if log is None else log.parent.parent
        self._log = log or temporary / "log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.touch(mode=0o600)  # models print what they like
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
        """`finish` would not wait."""
        return self._failure is not None or not self._begun

    @property
    def closed(self) -> bool:
        """The process is known to have ended."""
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
        """Send a command without waiting; the next `request` or `finish` waits.

        Parameters
        ----------
        timeout : float
            Seconds of waiting; beyond it the child is killed.
        on_stage : Callable[[str], None]
            Called with each announced stage while a caller waits.
        accounted : Callable[[Any], float]
            Seconds of the result that belong to named stages (compile, load, warm-up, ...); the rest is overhead.
        stage_limits : Mapping[str, float] | None
            Seconds from the announcement of a stage to the answer, in place of ``timeout``.
        """
        self.send(command, **fields)
        self._begun.append(_Begun(command, timeout, time.perf_counter(), on_stage, accounted, stage_limits or {}))

    def finish(self) -> Any:
        """Wait for all commands; return the result of the last one.

        Raises `ChildFailure` if a command failed, timed out, or the child ended: in the last two cases the child is
        closed and later calls raise again. Raises `DiskFullError` if the child found a disk full.
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
        """Send a command and wait for its result. See `begin` and `finish`."""
        self.finish()
        self.begin(command, timeout, on_stage=on_stage, accounted=accounted, **fields)
        return self.finish()

    def send(self, command: str, **fields: Any) -> None:
        """Send a command that has no answer. If the child has ended, the next wait reports it."""
        if not self.closed:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.write(json.dumps({"command": command, **fields}).encode() + b"\n")
                self._stdin.flush()

    def poll(self, seconds: float = 0.0) -> None:
        """Read pending messages, or the first ones within some seconds."""
        if not self.closed:
            if _readable([self], seconds):
                self._read()
            self.handle_messages()

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        if not self.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """Kill the child and its own children now. Closing again does nothing."""
        if self.closed:
            return  # its process group may belong to somebody else by now
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with interruption.deferred():
            if not self._killed:  # a signal may have ended an earlier call behind this
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._killed = True
            self._reap()
        self._stdout.close()
        self._temporary.cleanup()
        logs.tidy(self._log)
        if self._warden is not None:
            self._warden.remove(self.pid)

    def resident_bytes(self) -> int:
        """Memory of the process and its children; 0 once it has ended."""
        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += member.memory_info().rss
        return total

    def fileno(self) -> int:
        """Descriptor of the answers' pipe, for `wait`."""
        return self._stdout.fileno()

    def patience_s(self) -> float:
        """Remaining seconds for the oldest command."""
        begun = self._begun[0]
        if begun.deadline is None:
            left = self._left()
            begun.late = left < begun.timeout
            begun.deadline = time.monotonic() + min(begun.timeout, left)
        return max(0.0, begun.deadline - time.monotonic())

    def listen(self, *, readable: bool) -> None:
        """Read messages if there are any; close a child that is too slow."""
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

    def handle_messages(self) -> None:
        """Parse what was read, up to a failure."""
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
        if error.get("disk_full"):
            return self._lacking(command)
        tail = "" if error["verdict"] == Verdict.UNSUPPORTED.value else self.tail()
        return ChildFailure(Verdict(error["verdict"]), error["reason"], tail)

    def _ended(self, command: str) -> NGraphError:
        code = self._reap()
        tail = self.tail()
        full = any(disk_space.is_full(directory) for directory in (self._log.parent, Path(self._temporary.name)))
        self.close()
        if full:
            # Programs that map files, or write them unchecked, die of a full disk without a message.
            return self._lacking(command)
        if code == -signal.SIGKILL and memory_kills.new_kill():
            return ChildFailure(Verdict.OOM, f"the kernel killed the process for lack of memory during {command}", tail)
        if code < 0:
            return ChildFailure(Verdict.CRASHED, f"killed by {interruption.signal_name(-code)} during {command}", tail)
        return ChildFailure(Verdict.CRASHED, f"exited with code {code} during {command}", tail)

    def _lacking(self, command: str) -> NGraphError:
        if self._study is None:
            return ChildFailure(Verdict.FAILED, f"no space left on a disk during {command}")
        return disk_space.lacking(f"a child process did: {command}", self._study)

    def _reap(self) -> int:
        """Wait for the end of the process; return the exit code as `subprocess` does."""
        # A process can be waited for once only: its usage is not available again.
        with interruption.deferred():
            if self._code is None:
                self._code, self.cpu_s = self._process.wait()
        return self._code

    def tail(self) -> str:
        """The last lines of standard error."""
        return logs.tail(self._log)


def _message(line: bytes) -> Message | None:
    """Parse a message; None when it is not one."""
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and {"stage", "note", "error", "result"} & set(message):
            return message
    return None


def wait(children: Sequence[Child]) -> list[Child]:
    """Sleep until at least one child is settled; return those that are.

    The wait blocks: a polling parent would disturb the measurement.
    """
    while True:
        for child in children:
            child.handle_messages()
        settled = [child for child in children if child.settled]
        if settled or not children:
            return settled
        ready = _readable(children, min(child.patience_s() for child in children))
        for child in children:
            child.listen(readable=child in ready)


def _readable(children: Sequence[Child], seconds: float) -> set[Any]:
    """Wait for output or the end of children, up to some seconds; return those."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child, selectors.EVENT_READ)
        return {key.fileobj for key, _ in selector.select(None if math.isinf(seconds) else seconds)}
