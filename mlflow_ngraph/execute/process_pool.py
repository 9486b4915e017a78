"""Jobs of child processes that nobody times, beside each other as far as processors and memory allow.

Preparing, compiling and verifying are such jobs. Whoever times something lets the crew come to its end before: then no
process of it is alive any more.
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
"""A conservative figure for a process that has imported a compiler and works with it, and for those that it starts."""
COPIES = 6
"""Of the parameters in single precision, as many as such a process may have at once: live, exported, converted, written."""

Steps = Generator[Child, None, None]
"""Work of child processes, one after the other: yields each child that it waits for, and goes on once that is settled."""

_OF_OTHERS = (Verdict.TIMEOUT, Verdict.OOM, Verdict.CRASHED)
"""Ways to fail that others may be to blame for, who took the processors or the memory."""


@dataclass(eq=False)
class Job:
    """Work for a crew."""

    steps: Callable[[Job], Steps]
    """Ends the children that it starts, also when it is closed before its time."""
    occupies: Occupation
    expected_s: float
    """The longest begins first."""
    expected_bytes: int
    beside: int = 0
    """The most other jobs that ran at the same time, since `Crew.recount`."""


def expected_bytes(parameters: int | None) -> int:
    """What a job for a model with so many parameters probably takes of the memory at most."""
    return PROCESS_BYTES + COPIES * 4 * (parameters or TYPICAL_PARAMETERS)


def most_bytes(plan: StudyPlan) -> int:
    """What preparing or compiling the largest model of a study probably takes of the memory at most."""
    return max((expected_bytes(workload.parameters) for workload in plan.workloads), default=0)


class Crew:
    """Does jobs.

    What occupies one processor counts as one, what occupies them all as half of them: for the rest of its time it
    imports, reads and waits like everybody else. Together they are no more than there are processors. A job begins if
    the memory that is available, less what those that run may still take, suffices for what it is expected to take.
    What occupies the machine has nothing beside it; neither has the only job that runs.

    Parameters
    ----------
    together : bool
        False: one job after the other, in the order in which they were added.
    processors : int
        That may be kept busy.
    hurried : bool
        Not all of it may be done before the time is up: the shortest job begins first, so that more of them are.
    available_bytes : Callable[[], int]
        The memory that new processes can have.
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
        """Each with the child that it waits for."""

    def add(self, job: Job) -> None:
        """Have a job done as soon as there is room for it."""
        self._waiting.append(job)

    def recount(self, job: Job) -> None:
        """Count anew what runs beside a job, which is running."""
        job.beside = sum(other is not job for other in self._running)

    def suspects_others(self, job: Job, failure: ChildFailure) -> bool:
        """Whether what failed may succeed with nothing beside it."""
        return job.beside > 0 and failure.verdict in _OF_OTHERS and not isinstance(failure, OutOfTime)

    def work(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Do all jobs, and those that they add.

        Parameters
        ----------
        meanwhile : Callable[[], None]
            Called once, when the first jobs run: what this process itself has to do, which then costs nobody's time.
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
        """Begin what there is room for."""
        while (job := self._next()) is not None:
            self._waiting.remove(job)
            for other in self._running:
                other.beside = max(other.beside, len(self._running))
            job.beside = len(self._running)
            self._advance(job, job.steps(job))

    def _advance(self, job: Job, steps: Steps) -> None:
        """Let a job go on until it waits for a child again, or is done."""
        try:
            self._running[job] = (steps, next(steps))
        except StopIteration:
            self._running.pop(job, None)

    def _next(self) -> Job | None:
        """The job to begin now. What has to be alone comes last, so that nobody waits for it who could share."""
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
