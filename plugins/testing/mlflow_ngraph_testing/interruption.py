"""Compilations that are cut short: by their time limit, or with the process that asked for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from mlflow_ngraph.execute import worker
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_testing.steps import STEP_SECONDS, Case, create

GRACE_SECONDS = 10.0
"""Time for a process to notice that it is no longer needed."""
_LOOK_SECONDS = 0.02
_FRACTIONS = (0.5, 0.25, 0.1, 0.0)


@dataclass(frozen=True)
class Cut:
    """A compilation that did not come to its end."""

    limit_s: float
    """The time that it was given; 0 for a compiler that is done before it can be interrupted."""
    verdict: Verdict | None
    """Verdict of the time limit; None where the parent was killed."""
    reason: str
    survivors: list[str]
    """Processes that were still there afterwards."""


def cut_by_time(case: Case, seconds: float) -> Cut:
    """Compile in a worker with too short a time limit. Its files stay.

    Parameters
    ----------
    seconds : float
        Duration of the compilation. Where half of it turns out to be enough, less is given, until in the end it is
        nothing.
    """
    for fraction in _FRACTIONS:
        for left_over in (_directory(case), _work(case)):
            shutil.rmtree(left_over, ignore_errors=True)
        with _worker(case, f"cut-{fraction}") as child, _watched(child.pid) as seen:
            failure = _failure(child, case, seconds * fraction)
        if failure is not None:
            return Cut(seconds * fraction, failure.verdict, failure.reason, _survivors(seen))
    raise AssertionError("a compilation without any time came to its end")


def _failure(child: Child, case: Case, limit_s: float) -> ChildFailure | None:
    try:
        child.request("build", limit_s, **_command(case))
    except ChildFailure as failure:
        return failure
    return None


def cut_with_parent(case: Case, seconds: float) -> Cut:
    """Compile in a worker of another process, and kill that process after some time."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    parent = context.Process(target=_compile_until_killed, args=(case, theirs))
    parent.start()
    theirs.close()
    if not ours.poll(STEP_SECONDS):
        raise TimeoutError("the worker did not start")
    ours.recv()
    assert parent.pid is not None
    with _watched(parent.pid) as seen:
        time.sleep(seconds)
    parent.kill()
    parent.join()
    return Cut(seconds, None, "its parent was killed", _survivors(seen))


def _compile_until_killed(case: Case, connection: Connection) -> None:
    with _worker(case, "orphan") as child:
        connection.send(child.pid)
        child.request("build", STEP_SECONDS, **_command(case))
        time.sleep(STEP_SECONDS)


def compile_in_worker(case: Case) -> float:
    """Compile the first engine of a case as a study does; returns the seconds that its parent waited.

    It finds the work folder that `cut_by_time` left for the same case, as the next attempt at an engine does.
    """
    with _worker(case, "again") as child:
        start = time.perf_counter()
        child.request("build", STEP_SECONDS, **_command(case))
        return time.perf_counter() - start


@contextmanager
def _worker(case: Case, name: str) -> Iterator[Child]:
    """Start a worker and import the modules for compiling."""
    warden, scratch = Warden(), case.engines / "scratch" / name
    compiler = create(case.job)
    modules = compiler.runtime_modules if compiler.compile_modules is None else compiler.compile_modules
    try:
        env = environment.of_threads(case.job.target.threads, scratch)
        child = Child(worker.__name__, env, scratch / "log.txt", warden=warden, forked=True)
        try:
            child.request(
                "import",
                STEP_SECONDS,
                modules=list(modules),
                blocked=list(compiler.blocked_modules),
                freed_memory="return",
            )
            yield child
        finally:
            child.close()
    finally:
        warden.close()


def _directory(case: Case) -> Path:
    return case.directory(case.groups()[0])


def _work(case: Case) -> Path:
    return case.engines.with_name(f"{case.engines.name}.work")


def _command(case: Case) -> dict[str, Any]:
    """Fields of the worker's ``build``."""
    return {
        "compiler": case.job.compiler,
        "flags": dict(case.job.flags),
        "materials": str(case.materials),
        "directory": str(_directory(case)),
        "work": str(_work(case)),
        "batch_sizes": list(case.groups()[0]),
        "target": asdict(case.job.target),
    }


@contextmanager
def _watched(pid: int) -> Iterator[set[psutil.Process]]:
    """Collect a process and all that it starts, while the block runs."""
    seen: set[psutil.Process] = set()
    done = threading.Event()

    def look() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            seen.add(root)
            while not done.wait(_LOOK_SECONDS):
                seen.update(root.children(recursive=True))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _survivors(seen: set[psutil.Process]) -> list[str]:
    """Members of some process groups that are still alive after a while; they are killed."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (alive := _alive(seen)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    names = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(" ".join(process.cmdline()) or process.name())
            process.kill()
    return names


def _alive(seen: set[psutil.Process]) -> list[psutil.Process]:
    groups = {process.pid for process in seen}
    processes = []
    for process in {*seen, *psutil.process_iter()}:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            member = process in seen or os.getpgid(process.pid) in groups
            if member and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
