"""Plan of dynamic batching: largest batch, longest wait for others, length of the queue.

A request that comes while the engine computes waits for the end of that batch, and then for its own. So the slowest
request that finds no queue takes twice as long as a batch, and with a bound on the 99th percentile only those batch sizes
come into question for which this is less, with what a request costs outside the engine. Of these the smallest is taken that reaches the highest throughput. Waiting for
a batch to fill pays as long as it takes less time than the full batch saves; and how many may queue is what can be
answered within the bound. docs/how-to/serve-an-engine.md says the same for those who serve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mlflow_ngraph.errors import UsageError

SAME = 0.97
"""Share of the highest throughput from which on a smaller batch size is as good; it answers sooner."""
RESERVE = 0.2
"""Share of the latency bound for what nobody plans: other processes, the network stack."""
LEAST_DELAY_S = 0.0002
"""Shorter waits for a batch to fill are left out: the system takes about that long to end one."""
DEFAULT_DEPTH = 64
"""Full batches that may queue where no bound limits them."""


@dataclass(frozen=True)
class Speed:
    """Speed of an engine at one batch size."""

    throughput: float
    """Samples per second."""
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Wishes:
    """Options of the user; None leaves the choice to measured figures."""

    max_batch: int | None = None
    max_delay_ms: float | None = None
    max_p99_ms: float | None = None
    max_queue: int | None = None
    timeout_s: float = 30.0


@dataclass(frozen=True)
class BatchPlan:
    """Parameters of dynamic batching."""

    max_batch: int
    """Samples in a batch, and in a request, at most."""
    max_delay_s: float
    """Longest wait of a request for others while the engine is free."""
    max_queue: int
    """Samples that may wait at the same time."""
    speeds: Mapping[int, Speed]
    """Speeds by batch size of the engine."""
    expected_p99_s: float
    """Latency of a request that finds no queue."""
    room_s: float = math.inf
    """Time within which requests are to be answered: the latency bound without `RESERVE`."""

    def size(self, waiting: int) -> int:
        """The batch size of the engine that serves ``waiting`` samples, or the first of them, soonest per sample."""
        waiting = min(waiting, self.max_batch)
        enough = min(size for size in self.speeds if size >= waiting)
        full = [size for size in self.speeds if size <= waiting]
        if not full:
            return enough
        # Either all of them in a batch that is filled up, or as many as fill one.
        return min(enough, max(full), key=lambda size: self.speeds[size].p50_s / min(size, waiting))

    def retry_after_s(self, waiting: int) -> float:
        """Time to compute the queue, for ``Retry-After``."""
        return waiting / max(speed.throughput for speed in self.speeds.values())


def plan(speeds: Mapping[int, Speed], wishes: Wishes, workers: int = 1, outside_s: float = 0.0) -> BatchPlan:
    """Choose.

    Parameters
    ----------
    speeds : Mapping[int, Speed]
        By every batch size of the engine.
    workers : int
        Engines that compute at the same time.
    outside_s : float
        Time that a request costs outside the engine, one after the other.

    Raises
    ------
    UsageError
        No batch size keeps the bound, or the one asked for does not.
    """
    largest = max(speeds)
    if wishes.max_batch is not None and wishes.max_batch > largest:
        raise UsageError(f"the engine's largest batch size is {largest}: --max-batch must be at most that")
    within = math.inf if wishes.max_p99_ms is None else wishes.max_p99_ms / 1000 * (1 - RESERVE)
    room = within - outside_s
    max_batch = wishes.max_batch or _best(speeds, room)
    size = min(known for known in speeds if known >= max_batch)
    speed = speeds[size]
    spare = room - 2 * speed.p99_s
    if spare < 0:
        raise UsageError(
            f"a request may take twice the {1000 * speed.p99_s:.4g} ms of batch size {size} and {1000 * outside_s:.4g} ms "
            f"outside the engine, and {RESERVE:.0%} of the bound are for the rest: --max-p99-ms must be at least "
            f"{ceiling(1000 * (2 * speed.p99_s + outside_s) / (1 - RESERVE))}"
        )
    if wishes.timeout_s < speed.p99_s + outside_s:
        raise UsageError(
            f"a batch of {size} takes {1000 * speed.p99_s:.4g} ms, and a request {1000 * outside_s:.4g} ms outside the engine: "
            f"--timeout-s must be at least {ceiling(speed.p99_s + outside_s)}"
        )
    if wishes.max_queue is not None and wishes.max_queue < max_batch:
        raise UsageError(f"batches have {max_batch} samples: --max-queue must be at least that, or --max-batch less")
    delay = min(_worthwhile(speeds, size), spare)
    if delay < LEAST_DELAY_S:
        delay = 0.0
    if wishes.max_delay_ms is not None:
        delay = wishes.max_delay_ms / 1000
        if delay > spare:
            raise UsageError(
                f"--max-p99-ms leaves {1000 * spare:.4g} ms for --max-delay-ms, not {wishes.max_delay_ms:g}"
            )
    batch_s = speed.p99_s + max_batch * workers * outside_s
    queue = wishes.max_queue or _depth(room, wishes.timeout_s, batch_s) * max_batch * workers
    expected_s = delay + 2 * speed.p99_s + outside_s
    return BatchPlan(max_batch, delay, queue, dict(speeds), expected_s, within)


def ceiling(value: float) -> str:
    """The number with two digits that is next above."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit) * unit:.6g}"


def _best(speeds: Mapping[int, Speed], room: float) -> int:
    """The smallest batch size that reaches the highest throughput of those that keep the bound."""
    kept = {size: speed for size, speed in speeds.items() if 2 * speed.p99_s <= room}
    if not kept:
        # The refusal names the bound that the fastest of them needs.
        return min(speeds, key=lambda size: speeds[size].p99_s)
    highest = max(speed.throughput for speed in kept.values())
    return min(size for size, speed in kept.items() if speed.throughput >= SAME * highest)


def _worthwhile(speeds: Mapping[int, Speed], size: int) -> float:
    """The longest wait for a full batch that costs no more time than the full batch saves.

    What it saves is the time of its samples in batches of the next smaller size; where there is none, of the same size,
    half full. And nobody shall wait longer than half a batch: most of the time there are not that many requests.
    """
    smaller = [known for known in speeds if known < size]
    own = speeds[size].p50_s
    instead = size / speeds[max(smaller)].throughput if smaller else 2 * own if size > 1 else own
    return min(max(0.0, instead - own), own / 2)


def _depth(room: float, timeout_s: float, batch_s: float) -> int:
    """Number of full batches that may queue: the last one has to finish in time, after the one being computed."""
    within = min(room, timeout_s)
    fitting = int(within / batch_s) - 1
    return max(1, fitting if math.isfinite(room) else min(fitting, DEFAULT_DEPTH))
