"""A child process as the parent sees it: commands in, answers out, and every way it can end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mlflow_ngraph.errors import CellError
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


class OutOfTime(ChildFailure):
    """The time of the study was up. Nothing is known to be wrong with the cells, which nobody measures any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(Verdict.TIMEOUT, reason)


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


@dataclass(frozen=True)
class _Begun:
    """A command whose answer has not been read."""

    command: str
    timeout: float
    on_stage: Callable[[str], None] = lambda stage: None


class Child:
    """One worker process in a process group of its own. It starts in the background: the first request waits for it.

    Parameters
    ----------
    left : Callable[[], float]
        The seconds that are left for everything: what takes longer is ended, whatever its own time limit.
    """

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        log: Path,
        warden: Warden,
        left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.name = name
        self._left = left
        self.overhead_s = 0.0
        """Seconds that the parent waited for anything but the stages that the child accounts for."""
        self._log = log
        self._warden = warden
        self._buffer = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
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
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._begun = [_Begun("starting", STARTUP_SECONDS)]
        self.overhead_s += time.perf_counter() - start

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(
        self, command: str, timeout: float, *, on_stage: Callable[[str], None] = lambda stage: None, **fields: Any
    ) -> None:
        """Send a command and do not wait; the next `request` or `finish` does, and says how it went.

        Parameters
        ----------
        timeout : float
            Seconds of waiting; beyond it the child is killed.
        on_stage : Callable[[str], None]
            Called with each stage that the child announces, while somebody waits.
        """
        with contextlib.suppress(BrokenPipeError):  # whoever waits for the answer learns how the child ended
            self._send(command, fields)
        self._begun.append(_Begun(command, timeout, on_stage))

    def finish(self) -> Any:
        """Wait for everything that has begun.

        Returns
        -------
        Any
            The result of the last command of these; None if there is none.

        Raises
        ------
        ChildFailure
            As in `request`.
        """
        start, result = time.perf_counter(), None
        while self._begun:
            begun = self._begun.pop(0)
            result = self._read(begun)
        self.overhead_s += time.perf_counter() - start
        return result

    def request(
        self,
        command: str,
        timeout: float,
        *,
        on_stage: Callable[[str], None] = lambda stage: None,
        accounted: Callable[[Any], float] = lambda result: 0.0,
        **fields: Any,
    ) -> Any:
        """Send a command and sleep until its result is there.

        Parameters
        ----------
        timeout : float
            Seconds; beyond it the child is killed.
        on_stage : Callable[[str], None]
            Called with each stage that the child announces.
        accounted : Callable[[Any], float]
            The seconds of the result that have a name of their own (compile, load, warm-up, ...); the rest of the
            waiting is the lane's overhead.

        Raises
        ------
        ChildFailure
            The command failed, the time ran out, or the child ended; it is closed in the last two cases.
        DiskFullError
            The child found a disk full.
        """
        self.finish()
        self.begin(command, timeout, on_stage=on_stage, **fields)
        result = self.finish()
        self.overhead_s -= accounted(result)
        return result

    def close(self) -> None:
        """End the child now, with everything it started. Closing again does nothing."""
        if self._selector.get_map() is None:
            return  # its process group may belong to somebody else by now
        start = time.perf_counter()
        self._selector.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()
        self._warden.remove(self.pid)
        self.overhead_s += time.perf_counter() - start

    def _send(self, command: str, fields: Mapping[str, Any]) -> None:
        self._stdin.write(json.dumps({"command": command, **fields}).encode() + b"\n")
        self._stdin.flush()

    def _read(self, begun: _Begun) -> Any:
        command, left = begun.command, self._left()
        deadline = time.monotonic() + min(begun.timeout, left)
        while True:
            message = self._next_message(deadline, command, late=left < begun.timeout)
            if "stage" in message:
                begun.on_stage(message["stage"])
            elif "error" in message:
                error = message["error"]
                if error.get("disk_full"):
                    raise space.lacking(f"a child process did: {command}", self._log.parent.parent)
                tail = "" if error["verdict"] == Verdict.UNSUPPORTED.value else self.tail()
                raise ChildFailure(Verdict(error["verdict"]), error["reason"], tail)
            else:
                return message["result"]

    def _next_message(self, deadline: float, command: str, *, late: bool) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            # A blocking wait: a parent that polls would disturb what its children measure.
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                tail = self.tail()
                self.close()
                if late:
                    raise OutOfTime(f"{command} was ended, because the time of the study was up")
                raise ChildFailure(Verdict.TIMEOUT, f"{command} did not finish within its time limit", tail)
            chunk = os.read(self._stdout.fileno(), 1 << 20)
            if not chunk:
                raise self._ended(command)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _ended(self, command: str) -> ChildFailure:
        """Why the child is gone."""
        code = self._process.wait()
        tail = self.tail()
        self.close()
        if code == -signal.SIGKILL and _killed_for_memory():
            return ChildFailure(Verdict.OOM, f"the kernel killed the process for lack of memory during {command}", tail)
        if code < 0:
            return ChildFailure(Verdict.CRASHED, f"killed by {signal.Signals(-code).name} during {command}", tail)
        return ChildFailure(Verdict.CRASHED, f"exited with code {code} during {command}", tail)

    def tail(self) -> str:
        """The last lines that the child wrote to standard error."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        return ""


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
