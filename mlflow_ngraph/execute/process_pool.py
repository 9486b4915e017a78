"""ProcessPool: runs untimed jobs of child processes concurrently, as far as processors and memory allow.

Jobs prepare, compile and verify. All of them have ended before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass

from mlflow_ngraph.compilers.base import Occupation
from mlflow_ngraph.devices import memory
from mlflow_ngraph.execute.plan import TYPICAL_PARAMETERS, StudyPlan
from mlflow_ngraph.processes.child import Child, ChildFailure, OutOfTime, wait
from mlflow_ngraph.verdicts import Verdict

PROCESS_BYTES = 3 * 2**29
"""Conservative memory of a process that has imported a compiler, with its own children."""
COPIES = 6
"""Copies of the fp32 parameters that such a process may hold at once: live, exported, converted, written."""

Steps = Generator[Child, None, None]
"""Work of successive child processes: yields each child that it waits for."""

_OF_OTHERS = (Verdict.TIMEOUT, Verdict.OOM, Verdict.CRASHED)
"""Verdicts that concurrent jobs may cause by taking processors or memory."""


@dataclass(eq=False)
class Job:
    """Work for a `ProcessPool`."""

    steps: Callable[[Job], Steps]
    """Ends the children that it starts, also when closed early."""
    occupies: Occupation
    expected_s: float
    """The longest job begins first."""
    expected_bytes: int
    beside: int = 0
    """Largest number of concurrent jobs since `ProcessPool.recount`."""


def expected_bytes(parameters: int | None) -> int:
    """Estimate the peak memory of a job for a model with this many parameters."""
    return PROCESS_BYTES + COPIES * 4 * (parameters or TYPICAL_PARAMETERS)


def most_bytes(plan: StudyPlan) -> int:
    """Estimate the peak memory of preparing or compiling the largest model of a study."""
    return max((expected_bytes(workload.parameters) for workload in plan.workloads), default=0)


class ProcessPool:
    """Runs jobs.

    A job for one processor counts as one, a job for all of them as half of them: the rest of its time it imports, reads
    and waits. The sum is at most the number of processors. A job begins when the available memory, less the expected
    growth of running jobs, covers its expected memory. A job for the whole machine runs alone. A single job always
    runs.

    Without ``together`` one job runs after the other, in the order added. ``hurried``: time may run out, and the
    shortest job begins, so that more of them are done.
    """

    def __init__(
        self,
        *,
        together: bool,
        processors: int,
        hurried: bool = False,
        available_bytes: Callable[[], int] = memory.available_bytes,
    ) -> None:
        self._together = together
        self._sign = 1 if hurried else -1
        self._processors = processors
        self._available_bytes = available_bytes
        self._waiting: list[Job] = []
        self._running: dict[Job, tuple[Steps, Child]] = {}
        """Running jobs with the child that each waits for."""

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def recount(self, job: Job) -> None:
        """Reset the count of concurrent jobs of a running job."""
        job.beside = sum(other is not job for other in self._running)

    def suspects_others(self, job: Job, failure: ChildFailure) -> bool:
        """Return True when a failed job may succeed alone."""
        return job.beside > 0 and failure.verdict in _OF_OTHERS and not isinstance(failure, OutOfTime)

    def work(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run all jobs, and those that they add.

        ``meanwhile`` is called once while the first jobs run: work of this process that then costs no time.
        """
        try:
            self._begin()
            meanwhile()
            while self._running:
                settled = wait([child for _, child in self._running.values()])
                for job, (steps, child) in list(self._running.items()):
                    if child in settled:
                        self._advance(job, steps)
                self._begin()
        finally:
            with ExitStack() as stack:
                for steps, _ in self._running.values():
                    stack.callback(steps.close)
            self._running.clear()

    def _begin(self) -> None:
        while (job := self._next()) is not None:
            self._waiting.remove(job)
            for other in self._running:
                other.beside = max(other.beside, len(self._running))
            job.beside = len(self._running)
            self._advance(job, job.steps(job))

    def _advance(self, job: Job, steps: Steps) -> None:
        """Continue a job until it waits for a child again or is done."""
        try:
            self._running[job] = (steps, next(steps))
        except StopIteration:
            self._running.pop(job, None)

    def _next(self) -> Job | None:
        """Choose the next job. Jobs that run alone come last, so that none that can share waits for them."""
        ahead = self._waiting
        if self._together:
            ahead = sorted(ahead, key=lambda job: (job.occupies == "machine", self._sign * job.expected_s))
        return next((job for job in ahead if self._has_room(job)), None)

    def _has_room(self, job: Job) -> bool:
        if not self._running:
            return True
        jobs = (job, *self._running)
        if not self._together or any(occupant.occupies == "machine" for occupant in jobs):
            return False
        if sum(self._processors_of(occupant) for occupant in jobs) > self._processors:
            return False
        promised = sum(
            max(0, occupant.expected_bytes - child.resident_bytes()) for occupant, (_, child) in self._running.items()
        )
        return job.expected_bytes <= self._available_bytes() - promised

    def _processors_of(self, job: Job) -> int:
        return max(1, self._processors // 2) if job.occupies == "processors" else 1
