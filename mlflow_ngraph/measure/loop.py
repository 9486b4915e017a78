"""The timed loop: warm up, settle with untimed calls, and time one slice of repeated calls in this process."""

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
"""Shortest time of watching the machine, ten ticks; untimed calls precede a shorter slice."""


@dataclass(frozen=True)
class Slice:
    """Consecutive repetitions of one lane."""

    durations_ns: list[int]
    started_ns: int
    """Unix time of the first repetition in nanoseconds."""
    wall_s: float
    page_faults: int
    """Pages of memory that the process received meanwhile."""


@dataclass(frozen=True)
class WarmUpResult:
    """Result of a warm-up."""

    repetitions: int
    seconds: float
    steady: bool
    """Two neighbouring windows agreed within the time."""
    call_s: float
    """Median seconds of a call in the last window."""
    fastest_s: float
    """Seconds of the fastest call."""


def take_slice(call: Callable[[], object], repetitions: int, limit_s: float) -> Slice:
    """Time up to ``repetitions`` calls, and at least one, within ``limit_s`` seconds.

    Each repetition costs two clock readings and a store into a preallocated array. Garbage collection is off meanwhile.
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
    """Call untimed for ``seconds`` and at least ``calls`` times, to warm caches while other lanes' threads fall asleep."""
    deadline = time.perf_counter() + seconds
    for _ in range(calls):
        call()
    while time.perf_counter() < deadline:
        call()


def warm_up(
    call: Callable[[], object], window: int, tolerance: float, max_seconds: float, first_call_s: float
) -> WarmUpResult:
    """Call until the medians of two neighbouring windows differ by at most ``tolerance``, relative.

    A first inference of ``max_seconds`` was the warm-up: further calls would cost more than they tell.
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
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
