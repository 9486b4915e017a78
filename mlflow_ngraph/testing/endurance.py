"""Whether engines leave anything behind: memory, threads, open files."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from mlflow_ngraph.process_memory import release_freed
from mlflow_ngraph.testing.steps import Case, block, ready

SAMPLES = 40
"""How often a run of cycles is looked at."""
ALLOWED_BYTES = 4 << 20
"""Growth that is no leak: allocators and runtimes take a while until they reuse all that they hold. A model of the
suite has weights of a mebibyte, so that an engine which is never freed exceeds this within a few cycles."""


@dataclass(frozen=True)
class Usage:
    """What the process held, seen at regular distances while engines came and went."""

    cycles: int
    bytes: Sequence[int]
    threads: Sequence[int]
    files: Sequence[int]

    def problem(self) -> str | None:
        """What grew, or None."""
        for what, samples, allowed in (
            ("bytes of memory", self.bytes, ALLOWED_BYTES),
            ("threads", self.threads, 0),
            ("open files", self.files, 0),
        ):
            grown = growth(samples)
            if grown > allowed:
                return f"{self.cycles} cycles of load, run and close leave {grown} {what} behind; allowed: {allowed}"
        return None


def growth(samples: Sequence[int]) -> int:
    """By how much the least of the last fifth exceeds the most of the second fifth.

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
    return Usage(cycles, memory, threads, files)
