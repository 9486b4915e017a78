"""Commands under a time limit, which end with everything that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlflow_ngraph.processes import python_command

GRACE_SECONDS = 5.0
"""Time for a command to end its children before it is killed; part of its time limit, as far as that is long enough."""
_LAST_LINES = 3
_POLL_SECONDS = 0.05

NGRAPH = python_command.command("mlflow_ngraph.__main__")


@dataclass(frozen=True)
class CommandResult:
    """Result of a command."""

    code: int | None
    """None: its time was up."""
    out: str
    err: str
    seconds: float

    @property
    def last(self) -> str:
        """The last lines of standard error, else of the output, in one line."""
        said = (self.err.strip() or self.out.strip()).splitlines()
        return " ".join(" ".join(said[-_LAST_LINES:]).split())

    @property
    def how(self) -> str:
        """Exit code or timeout, with the last lines, in words."""
        if self.code is None:
            return f"was not done within {self.seconds:.0f} s"
        return f"ended with code {self.code}{': ' if self.last else ''}{self.last}"


class RunningCommand:
    """A running command in a session of its own. Its output goes to files, which outlive it."""

    def __init__(self, command: Sequence[str], logs: Path, name: str, cwd: Path, env: Mapping[str, str]) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._out, self._err = logs / f"{name}.out", logs / f"{name}.err"
        self._began = time.monotonic()
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def said(self) -> str:
        """Content of standard error so far."""
        return self._err.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float) -> CommandResult:
        """Wait for its end, and end it when the time is up."""
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(max(seconds - GRACE_SECONDS, seconds / 2))
        if code is None:
            self.end()
        out = self._out.read_text(encoding="utf-8", errors="replace")
        return CommandResult(code, out, self.said(), time.monotonic() - self._began)

    def end(self) -> None:
        """Terminate it, and kill what remains. A command that has ended by itself is left alone."""
        if self.process.poll() is not None:
            return
        # Children that have made groups of their own are no longer in that of the command.
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_SECONDS)
            self._signal(signal.SIGKILL)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            outlived(family, GRACE_SECONDS)
        self.process.wait()

    def kill(self) -> None:
        """``kill -9`` of the command alone, as the kernel does when memory is short."""
        self.process.kill()
        self.process.wait()

    def _signal(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)


def outlived(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for processes to end, and return those that did not.

    One that has ended may stay in the table of processes for good: not every init of a container collects them.
    """
    deadline = time.monotonic() + seconds
    alive = list(processes)
    while (alive := [process for process in alive if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def started(
    command: Sequence[str], logs: Path, name: str, cwd: Path, env: Mapping[str, str]
) -> Iterator[RunningCommand]:
    """A command that has ended when the block is left."""
    running = RunningCommand(command, logs, name, cwd, env)
    try:
        yield running
    finally:
        running.end()
