"""Pool: keeps child processes between batches, and has them build and measure candidate kernels in time limits.

TVM's own pools start every process anew for each batch. Each imports torch, parses the tensor intrinsics of every GPU,
and may pick up modules of the current directory, which together takes far longer than compiling a kernel.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import Any

from mlflow_ngraph import credentials
from mlflow_ngraph.processes.python_command import command

START_SECONDS = 120.0
"""Until a process has imported TVM, also on a busy machine."""
_USES = 256
"""Requests after which a process is replaced, because compiling leaks memory."""


class WorkerError(RuntimeError):
    """A request failed or timed out, or the process crashed."""


class Worker:
    """One process that builds or measures, with ``threads`` of TVM's runtime or its default.

    It runs in ``directory``, which holds temporary files and no Python modules.
    """

    def __init__(self, directory: Path, threads: int | None) -> None:
        self._directory = directory
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._uses = 0
        self.threads = 0
        """Threads in force, as TVM says; 0 until it is asked."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process without waiting for it, unless it runs."""
        if self._process is not None:
            return
        ours, theirs = socketpair()
        env = {key: value for key, value in credentials.clean_environment().items() if key != "TVM_NUM_THREADS"}
        # What a killed process leaves goes with the directory.
        env["TMPDIR"] = str(self._directory)
        if self._threads is not None:
            env["TVM_NUM_THREADS"] = str(self._threads)
        # It stays in the process group of its parent, so that whoever ends the group ends it, too.
        self._process = subprocess.Popen(
            command("mlflow_ngraph_tvm.worker", str(theirs.fileno()), str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
            cwd=self._directory,
            env=env,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._uses = 0
        self.threads = 0

    def wait(self) -> None:
        """Wait until the process is ready. Raises `WorkerError` if it does not start."""
        self.start()
        if self.threads == 0:
            self.threads = int(self._receive(START_SECONDS, "ready"))

    def request(self, action: str, arguments: Sequence[Any], timeout: float) -> Any:
        """Run a function in the process, and return its result.

        Raises `WorkerError` if it fails, crashes, or exceeds ``timeout`` seconds; the next request starts a new
        process.
        """
        if self._uses >= _USES:
            self.close()
        self.wait()
        assert self._connection is not None
        self._uses += 1
        try:
            self._connection.send_bytes(pickle.dumps((action, tuple(arguments))))
        except OSError:
            raise self._crashed() from None
        return self._receive(timeout, "ok")

    def _receive(self, timeout: float, wanted: str) -> Any:
        assert self._connection is not None
        try:
            if not self._connection.poll(timeout):
                self.close()
                raise WorkerError(f"did not finish within {timeout:g} s")
            status, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._crashed() from None
        if status != wanted:
            raise WorkerError(str(value))
        return value

    def _crashed(self) -> WorkerError:
        code = self.close()
        return WorkerError(f"the process ended with {f'signal {-code}' if code and code < 0 else f'status {code}'}")

    def close(self) -> int | None:
        """End the process; returns its exit status."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if process is None:
            return None
        if connection is not None:
            connection.close()
        try:
            # Lets one that crashed tell its own status; any other is waiting for a request, or will not end by itself.
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError):
        return False
    return True


@dataclass(frozen=True)
class Evaluator:
    """Settings of measuring a kernel."""

    device: str
    number: int
    repeat: int
    min_ms: int
    timeout: float


@dataclass(frozen=True)
class Candidate:
    """A kernel to build and measure."""

    code: bytes
    """The pickled module and target."""
    arguments: Sequence[Any]
    """Type and shape of each argument, as TVM describes them."""


class Pool:
    """Several processes that build, and one that measures, with ``threads`` of TVM's runtime, while none builds.

    Candidates are stored in ``directory``, which `close` removes.
    """

    def __init__(self, directory: Path, builders: int, threads: int | None, build_timeout: float) -> None:
        # What a killed attempt left is of no use: the search proposes anew.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._directory = directory
        self._builders = [Worker(directory, 1) for _ in range(builders)]
        self._runner = Worker(directory, threads)
        self._build_timeout = build_timeout
        self._numbers = count()
        # One thread for each builder, which waits for it.
        self._waiting = ThreadPoolExecutor(builders, thread_name_prefix="tvm-builder")
        self._free = list(self._builders)

    def __enter__(self) -> Pool:
        try:
            for worker in (*self._builders, self._runner):
                worker.start()
            for worker in (*self._builders, self._runner):
                worker.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def runner(self) -> Worker:
        return self._runner

    @property
    def pids(self) -> list[int]:
        return [pid for worker in (*self._builders, self._runner) if (pid := worker.pid) is not None]

    def run(
        self, candidates: Sequence[Candidate], evaluator: Evaluator, best: float, failed: Callable[[str], None]
    ) -> list[float | None]:
        """Build all candidates, then measure one after the other; seconds of each, None where it failed.

        ``best`` is the time of the task's best kernel so far, and ``failed`` is called with the reason for a failure.
        """
        libraries = list(self._waiting.map(self._build, candidates))
        latencies: list[float | None] = []
        for candidate, library in zip(candidates, libraries, strict=True):
            latency = None
            if isinstance(library, WorkerError):
                failed(f"building a candidate: {library}")
            else:
                try:
                    latency = self._measure(library, candidate, evaluator, best)
                    best = min(best, latency)
                except WorkerError as error:
                    failed(f"measuring a candidate: {error}")
                library.unlink(missing_ok=True)
            latencies.append(latency)
        return latencies

    def _build(self, candidate: Candidate) -> Path | WorkerError:
        # A new name each time: a process that has loaded a library gets the same one for the same name.
        library = self._directory / f"candidate-{next(self._numbers)}.so"
        worker = self._free.pop()
        try:
            worker.request("build", (candidate.code, str(library)), self._build_timeout)
        except WorkerError as error:
            return error
        finally:
            self._free.append(worker)
        return library

    def _measure(self, library: Path, candidate: Candidate, evaluator: Evaluator, best: float) -> float:
        how = (evaluator.device, candidate.arguments, evaluator.number, evaluator.repeat, evaluator.min_ms, best)
        return float(self._runner.request("measure", (str(library), *how), evaluator.timeout))

    def close(self) -> None:
        """End all processes and remove their files."""
        self._waiting.shutdown(cancel_futures=True)
        for worker in (*self._builders, self._runner):
            worker.close()
        shutil.rmtree(self._directory, ignore_errors=True)
