"""The timed loop. Everything that is not the call itself happens before or after it."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

NS = 1_000_000_000
WATCHED_S = 0.1
"""The machine is watched for about so long around a shorter slice, untimed calls before it included: ten ticks."""


@dataclass(frozen=True)
class Slice:
    """Consecutive repetitions of one lane."""

    durations_ns: list[int]
    started_ns: int
    """Unix time of the first repetition in nanoseconds."""
    wall_s: float
    page_faults: int
    """Pages of memory that the kernel had to give this process meanwhile."""


@dataclass(frozen=True)
class WarmUpResult:
    """How a warm-up ended."""

    repetitions: int
    seconds: float
    steady: bool
    """Whether two neighbouring windows agreed; False when the time ran out first."""
    call_s: float
    """Median seconds of a call in the last window."""
    fastest_s: float
    """Seconds of the fastest call."""


def take_slice(call: Callable[[], object], repetitions: int, limit_s: float) -> Slice:
    """Time up to ``repetitions`` calls, and at least one, until ``limit_s`` seconds have passed.

    Each repetition costs one pair of clock readings and one store into a preallocated array. Garbage
    collection is off meanwhile.
    """
    durations = array("q", bytes(8 * repetitions))
    clock = time.perf_counter_ns
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        faults, started = page_faults(), time.time_ns()
        begin = clock()
        deadline = begin + int(limit_s * NS)
        index = 0
        for index in range(repetitions):
            start = clock()
            call()
            end = clock()
            durations[index] = end - start
            if end >= deadline:
                break
        wall = clock() - begin
        faults = page_faults() - faults
    finally:
        if collecting:
            gc.enable()
    return Slice(durations[: index + 1].tolist(), started, wall / NS, faults)


def settle(call: Callable[[], object], seconds: float, calls: int = 1) -> None:
    """Run untimed for ``seconds``, and at least ``calls`` times: caches are warm then, and other lanes' threads asleep."""
    deadline = time.perf_counter() + seconds
    for _ in range(calls):
        call()
    while time.perf_counter() < deadline:
        call()


def warm_up(
    call: Callable[[], object], window: int, tolerance: float, max_seconds: float, first_call_s: float
) -> WarmUpResult:
    """Call until the medians of two neighbouring windows differ by at most ``tolerance``, relative.

    A first inference that already took ``max_seconds`` was the warm-up: calling again would cost more
    than it can tell.
    """
    if first_call_s >= max_seconds:
        return WarmUpResult(0, 0.0, False, first_call_s, first_call_s)
    begin = time.perf_counter()
    previous: float | None = None
    repetitions, fastest = 0, first_call_s
    while True:
        times = []
        for _ in range(window):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            repetitions += 1
            if time.perf_counter() - begin >= max_seconds:
                break
        current, fastest = statistics.median(times), min(fastest, *times)
        complete = len(times) == window
        steady = complete and previous is not None and abs(current - previous) <= tolerance * previous
        elapsed = time.perf_counter() - begin
        if steady or elapsed >= max_seconds:
            return WarmUpResult(repetitions, elapsed, steady, current, fastest)
        previous = current


def page_faults() -> int:
    """Pages that the kernel has given this process so far without reading them from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
