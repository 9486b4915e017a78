"""Leak measurement: load, run and close engines often; read memory, threads, descriptors and signal handling."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from mlflow_ngraph.process_memory import release_freed
from mlflow_ngraph.processes.interruption import signal_name
from mlflow_ngraph_testing.steps import Case, block, ready

SAMPLES = 40
"""Number of readings in a run of cycles."""
ALLOWED_BYTES = 4 << 20
"""Growth that is no leak: allocators and runtimes take a while until they reuse all that they hold. A model of the
suite has weights of a mebibyte, so that an engine which is never freed exceeds this within a few cycles."""


@dataclass(frozen=True)
class Usage:
    """Readings of the process's resources at regular intervals while engines come and go."""

    cycles: int
    bytes: Sequence[int]
    threads: Sequence[int]
    files: Sequence[int]
    killed_by: int | None = None
    """The number of the signal that a process which handles signals ended by when one came to it afterwards."""

    def problem(self) -> str | None:
        """Resource that grew, or None."""
        for what, samples, allowed in (
            ("bytes of memory", self.bytes, ALLOWED_BYTES),
            ("threads", self.threads, 0),
            ("open files", self.files, 0),
        ):
            grown = growth(samples)
            if grown > allowed:
                return f"{self.cycles} cycles of load, run and close leave {grown} {what} behind; allowed: {allowed}"
        if self.killed_by is not None:
            name = signal_name(self.killed_by)
            return f"after two engines came and went, a signal that Python handles ends the process with {name}"
        return None


def growth(samples: Sequence[int]) -> int:
    """Difference between the minimum of the last fifth and the maximum of the second fifth.

    The first fifth is for what a runtime does once. What comes and goes does not count, what stays does.
    """
    fifth = max(len(samples) // 5, 1)
    return min(samples[-fifth:]) - max(samples[fifth : 2 * fifth])


def load_and_run_often(case: Case, cycles: int, never_imported: Sequence[str] = ()) -> Usage:
    """Load, run and close the first engine of a case again and again, in this process."""
    from mlflow_ngraph.workloads.materials import Source

    block(never_imported)
    compiler, group = ready(case.job), case.groups()[0]
    inputs, process = Source(case.materials).example(group[0]), psutil.Process()
    memory, threads, files = [], [], []
    for cycle in range(cycles):
        engine = compiler.load(case.directory(group), group[0], case.job.target)
        invocation = engine.bind(inputs)
        invocation.call()
        invocation.outputs()
        engine.close()
        del engine, invocation
        if cycle * SAMPLES // cycles != (cycle + 1) * SAMPLES // cycles:
            gc.collect()
            # Fragments are not to be taken for a leak.
            release_freed()
            memory.append(process.memory_info().rss)
            threads.append(process.num_threads())
            files.append(process.num_fds())
    # The end of one must not take away what the other has left to the process.
    first, second = (compiler.load(case.directory(group), group[0], case.job.target) for _ in range(2))
    first.close()
    del first
    second.close()
    del second
    gc.collect()
    return Usage(cycles, memory, threads, files, killed_by_a_signal())


def killed_by_a_signal() -> int | None:
    """Signal that ends a copy of this process although the process handles it; None where it goes on."""
    copy = os.fork()
    if copy == 0:
        try:
            signal.signal(signal.SIGUSR1, lambda number, frame: None)
            signal.raise_signal(signal.SIGUSR1)
        finally:
            os._exit(0)
    status = os.waitpid(copy, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
