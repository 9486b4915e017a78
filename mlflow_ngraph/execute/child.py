"""A child process as the parent sees it: commands in, answers out, and every way it can end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from mlflow_ngraph.errors import CellError, NGraphError
from mlflow_ngraph.execute import space
from mlflow_ngraph.verdicts import Verdict

STARTUP_SECONDS = 120.0
TAIL_LINES = 20


class ChildFailure(CellError):  # noqa: N818 - the child fails, which is a finding and no fault of this program
    """A command has no result; carries the verdict for the cells that wanted it."""

    def __init__(self, verdict: Verdict, reason: str, tail: str = "") -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.tail = tail


@dataclass
class Warden:
    """The process that ends our children if we are killed. See `mlflow_ngraph.execute.warden`."""

    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        script = Path(__file__).with_name("warden.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def add(self, group: int) -> None:
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._write(f"-{group}\n")

    def close(self) -> None:
        """Let it end; it kills whatever is still listed."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()

    def _write(self, line: str) -> None:
        if self.process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line)
            self.process.stdin.flush()


@dataclass
class _Begun:
    """A command whose answer has not been read."""

    command: str
    timeout: float
    at: float
    """When it was sent, by `time.perf_counter`."""
    on_stage: Callable[[str], None] = lambda stage: None
    accounted: Callable[[Any], float] = lambda result: 0.0
    deadline: float | None = None
    """By `time.monotonic`; None until somebody waits for it and no other command stands before it."""


class Child:
    """One worker process in a process group of its own. It starts in the background: the first request waits for it."""

    def __init__(self, name: str, env: Mapping[str, str], log: Path, warden: Warden) -> None:
        self.name = name
        self.started_at = time.time()
        """Unix seconds."""
        self.overhead_s = 0.0
        """Seconds from commands to their answers in which the child did anything but the stages that it accounts for."""
        self.cpu_s: float | None = None
        """CPU seconds of the process and of those that it started and waited for, once it has ended."""
        self._log = log
        self._warden = warden
        self._buffer = b""
        self._result: Any = None
        self._failure: NGraphError | None = None
        """What `finish` has to raise."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._answered = time.perf_counter()
        """When the last answer was read."""
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow_ngraph.execute.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=dict(env),
                start_new_session=True,
            )
        warden.add(self._process.pid)
        self._stdin: IO[bytes] = _not_none(self._process.stdin)
        self._stdout: IO[bytes] = _not_none(self._process.stdout)
        self._begun = [_Begun("starting", STARTUP_SECONDS, self._answered)]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def settled(self) -> bool:
        """Whether `finish` returns, or raises, without waiting."""
        return self._failure is not None or not self._begun

    def begin(
        self,
        command: str,
        timeout: float,
        *,
        on_stage: Callable[[str], None] = lambda stage: None,
        accounted: Callable[[Any], float] = lambda result: 0.0,
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
        """
        with contextlib.suppress(BrokenPipeError):  # whoever waits for the answer learns how the child ended
            self._send(command, fields)
        self._begun.append(_Begun(command, timeout, time.perf_counter(), on_stage, accounted))

    def finish(self) -> Any:
        """Wait for everything that has begun.

        Returns
        -------
        Any
            The result of the last command that was answered; None if there was none.

        Raises
        ------
        ChildFailure
            A command failed, its time ran out, or the child ended; it is closed in the last two cases.
        DiskFullError
            The child found a disk full.
        """
        wait([self])
        if self._failure is not None:
            failure, self._failure = self._failure, None
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

    def close(self) -> None:
        """End the child now, with everything it started. Closing again does nothing."""
        if self._stdout.closed:
            return  # its process group may belong to somebody else by now
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reap()
        self._stdout.close()
        self._warden.remove(self.pid)

    def resident_bytes(self) -> int:
        """Memory that the process and those that it started have now; 0 once it has ended."""
        found = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    found += one.memory_info().rss
        return found

    def _send(self, command: str, fields: Mapping[str, Any]) -> None:
        self._stdin.write(json.dumps({"command": command, **fields}).encode() + b"\n")
        self._stdin.flush()

    def fileno(self) -> int:
        """Of the pipe that answers come through, for `wait`."""
        return self._stdout.fileno()

    def patience_s(self) -> float:
        """How long somebody may go on waiting for the answer to the oldest command."""
        begun = self._begun[0]
        if begun.deadline is None:
            begun.deadline = time.monotonic() + begun.timeout
        return max(0.0, begun.deadline - time.monotonic())

    def listen(self, *, readable: bool) -> None:
        """Read what the child has said by now, and note if it has ended or takes too long.

        Parameters
        ----------
        readable : bool
            Whether there is anything to read: an answer, or the end.
        """
        if readable:
            chunk = os.read(self.fileno(), 1 << 20)
            self._buffer += chunk
            if not chunk:
                self._failure = self._ended(self._begun[0].command)
        elif not self.patience_s():
            tail = self.tail()
            self.close()
            reason = f"{self._begun[0].command} did not finish within its time limit"
            self._failure = ChildFailure(Verdict.TIMEOUT, reason, tail)

    def take_in(self) -> None:
        """Understand what was read, up to a failure."""
        while b"\n" in self._buffer and not self.settled:
            line, _, self._buffer = self._buffer.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if "stage" in message:
                self._begun[0].on_stage(message["stage"])
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
            return space.lacking(f"a child process did: {command}", self._log.parent.parent)
        tail = "" if error["verdict"] == Verdict.UNSUPPORTED.value else self.tail()
        return ChildFailure(Verdict(error["verdict"]), error["reason"], tail)

    def _ended(self, command: str) -> ChildFailure:
        """Why the child is gone."""
        code = self._reap()
        tail = self.tail()
        self.close()
        if code == -signal.SIGKILL and _killed_for_memory():
            return ChildFailure(Verdict.OOM, f"the kernel killed the process for lack of memory during {command}", tail)
        if code < 0:
            return ChildFailure(Verdict.CRASHED, f"killed by {signal.Signals(-code).name} during {command}", tail)
        return ChildFailure(Verdict.CRASHED, f"exited with code {code} during {command}", tail)

    def _reap(self) -> int:
        """Wait for the end of the process; returns its exit code as `subprocess` has it."""
        if self._process.returncode is None:
            _, status, used = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = used.ru_utime + used.ru_stime
        return self._process.returncode

    def tail(self) -> str:
        """The last lines that the child wrote to standard error."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        return ""


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
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(min(child.patience_s() for child in children))}
        for child in children:
            child.listen(readable=child in ready)


_OOM_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))


def _oom_kills() -> int:
    """How often the kernel has killed in our control group for lack of memory."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_oom_kills_seen = _oom_kills()


def _killed_for_memory() -> bool:
    """Whether the kernel has killed for lack of memory since we last looked."""
    global _oom_kills_seen
    before, _oom_kills_seen = _oom_kills_seen, _oom_kills()
    return _oom_kills_seen > before


def _not_none(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:  # pragma: no cover - Popen was given PIPE
        raise RuntimeError("the child has no pipe")
    return stream
