"""Choose the task to tune next, and decide when a task is done. Independent of TVM."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_WINDOW = 3
"""Batches over which the recent gain of a task is looked at."""
_RECENT = 0.2
"""Share of the recent gain in the expected one; the rest is what could still be gained."""


@dataclass
class Progress:
    """State of the search for one task."""

    weight: float
    """Calls of the kernel in one inference."""
    flops: float
    """Floating-point operations of one call."""
    trials: int = 0
    best: float = math.inf
    """Seconds of the fastest kernel so far."""
    improved_at: int = 0
    """Trials that had been made when the best was found."""
    exhausted: bool = False
    """True if the search has nothing new to propose."""
    batches: list[tuple[int, float]] = field(default_factory=list)
    """Trials and best after each batch."""

    def add(self, latencies: Iterable[float | None]) -> None:
        """Count a batch of trials; None is a kernel that could not be built or run."""
        for latency in latencies:
            self.trials += 1
            if latency is not None and latency < self.best:
                self.best, self.improved_at = latency, self.trials
        self.batches.append((self.trials, self.best))

    def stalled(self, patience: int) -> bool:
        """True if the last ``patience`` trials brought no improvement; 0 is endless patience."""
        return 0 < patience <= self.trials - self.improved_at

    def done(self, patience: int) -> bool:
        """True if the task gets no further trials."""
        return self.exhausted or self.stalled(patience)

    def _recent_gain(self) -> float:
        """Seconds per trial that the last batches gained."""
        past = self.batches[-1 - _WINDOW :]
        (trials, before), (now, after) = past[0], past[-1]
        return (before - after) / (now - trials) if now > trials and math.isfinite(before) else 0.0

    def expected_gain(self, speed: float) -> float:
        """Seconds of the model's latency that the next trial may gain.

        ``speed`` is the rate of the fastest kernel of any task, in floating-point operations a second.
        """
        if not math.isfinite(self.best):
            return 0.0
        room = max(0.0, self.best - self.flops / speed) if speed > 0 else self.best
        possible = min(self.best / self.trials, room)
        return self.weight * (_RECENT * self._recent_gain() + (1 - _RECENT) * possible)


def choose(tasks: Sequence[Progress], patience: int) -> int | None:
    """Index of the task that gets the next batch; None when all are done.

    Every task gets a batch first, in order of decreasing work, so that heavy kernels are tuned even with few trials.
    Then the task with the largest expected gain is next, as in TVM's own scheduler and in Ansor, from which the bound
    comes: a kernel's gain is limited by the rate, in operations a second, of the model's fastest kernel. Without the
    bound a large task near the machine's limit would keep getting trials. A task whose kernels all fail comes last,
    until its patience ends.
    """
    alive = [index for index, task in enumerate(tasks) if not task.done(patience)]
    if not alive:
        return None
    new = [index for index in alive if tasks[index].trials == 0]
    if new:
        return max(new, key=lambda index: (tasks[index].weight * tasks[index].flops, -index))
    speed = max((task.flops / task.best for task in tasks if math.isfinite(task.best)), default=0.0)
    return max(alive, key=lambda index: (tasks[index].expected_gain(speed), -index))


def first_batch(trials: int, tasks: int, candidates: int) -> int:
    """Number of candidates in a task's first batch: half of the trials remain to be allotted by gain."""
    return max(1, min(candidates, trials // (2 * max(tasks, 1))))


def model_latency(tasks: Sequence[Progress]) -> float | None:
    """Seconds of one inference as the sum over all kernels; None until every searchable one has been measured."""
    total = sum(task.weight * task.best for task in tasks if not (task.exhausted and math.isinf(task.best)))
    return total if math.isfinite(total) else None
