"""Open loop: draw a schedule of arrivals, serve its requests when due, time each. See docs/explanation/serving.md.

There is no generator. Each server takes the next request of the schedule, waits until it is due, and runs it: a queue
served in order of arrival, without entries.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mlflow_ngraph.study_settings import Process

Call = Callable[[], object]

NS = 1_000_000_000

NEVER = -1
"""Marks a request that was not served."""
SPIN_NS = 300_000
"""Spinning time before a request is due: sleep wakes up late by a fraction of it."""
HEAD_START_NS = 10_000_000
"""Time between the start of the servers and of the schedule."""


class Clock(Protocol):
    """Source of time for the loop."""

    def now(self) -> int:
        """Nanoseconds since some moment."""

    def wait_until(self, moment: int) -> None:
        """Return when the moment has come, at once if it is past."""


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.perf_counter_ns)

    @staticmethod
    def wait_until(moment: int) -> None:
        """Sleep until shortly before, then spin."""
        sleep, now = time.sleep, time.perf_counter_ns
        left = moment - now()
        if left > SPIN_NS:
            sleep((left - SPIN_NS) / NS)
        while now() < moment:
            # Releases Python's lock for servers that have just finished.
            sleep(0)


@dataclass(frozen=True)
class Served:
    """Results of a schedule's requests; all times in nanoseconds."""

    due_ns: list[int]
    """Since the beginning of the schedule."""
    waited_ns: list[int]
    """From there to the start of the inference; `NEVER` if not served."""
    served_ns: list[int]
    """Duration of the inference; `NEVER` if not served."""
    started_ns: int
    """Unix time of the beginning."""
    wall_s: float

    def delays(self) -> tuple[list[int], float]:
        """Nanoseconds of each served request without its queue, and seconds in which no request was there."""
        due, waited, served = (np.array(part, np.int64) for part in (self.due_ns, self.waited_ns, self.served_ns))
        due, waited, served = (part[served != NEVER] for part in (due, waited, served))
        left = np.maximum.accumulate(np.concatenate(([-HEAD_START_NS], due + waited + served)))
        idle = np.maximum(due - left[:-1], 0)
        delays: list[int] = (served + np.where(idle > 0, waited, 0)).tolist()
        return delays or [int(self.wall_s * NS)], int(idle.sum()) / NS


def schedule(rate: float, seconds: float, process: Process, seed: Sequence[int]) -> NDArray[np.int64]:
    """Due times of ``rate * seconds`` requests, ascending, in nanoseconds from the beginning.

    Parameters
    ----------
    rate : float
        Requests per second.
    process : Process
        ``poisson`` is a Poisson process with a given count; ``uniform`` has equal distances.
    seed : Sequence[int]
        The same seed gives the same pattern, stretched to the rate.
    """
    count = max(1, round(rate * seconds))
    if process == "uniform":
        moments = np.arange(count) * (seconds / count)
    else:
        # Order statistics of uniform times, from exponential gaps: a longer pattern begins like a shorter one.
        passed = np.cumsum(np.random.default_rng(seed).exponential(size=count + 1))
        moments = passed[:-1] / passed[-1] * seconds
    return (moments * NS).astype(np.int64)


def serve(calls: Sequence[Call], due: NDArray[np.int64], limit_s: float, clock: Clock | None = None) -> Served:
    """Serve requests in order of arrival.

    The first server is the calling thread, each other one a new thread. Garbage collection is off meanwhile.

    Parameters
    ----------
    calls : Sequence[Call]
        An inference for each server.
    due : NDArray[np.int64]
        As `schedule` returns it.
    limit_s : float
        Seconds from the beginning after which no request begins.
    """
    clock = clock or SystemClock()
    shift = _Shift(due, clock)
    threads = [threading.Thread(target=shift.work, args=(call,), name="server", daemon=True) for call in calls[1:]]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        at, entered = time.time_ns(), clock.now()
        shift.open(limit_s)
        for thread in threads:
            thread.start()
        shift.work(calls[0])
        for thread in threads:
            thread.join()
        wall = clock.now() - entered
    finally:
        if collecting:
            gc.enable()
    if shift.errors:
        raise shift.errors[0]
    waited, served = shift.result()
    return Served(due.tolist(), waited, served, at + HEAD_START_NS, wall / NS)


class _Shift:
    """State shared by the servers: schedule, next request, results."""

    def __init__(self, due: NDArray[np.int64], clock: Clock) -> None:
        self.errors: list[BaseException] = []
        self._due: list[int] = due.tolist()
        self._started = array("q", [NEVER]) * len(due)
        self._ended = array("q", [NEVER]) * len(due)
        self._clock = clock
        # Its `next` is one step of the interpreter: no two servers get the same request.
        self._turn: Iterator[int] = itertools.count()
        self._begin = self._deadline = 0

    def open(self, limit_s: float) -> None:
        self._begin = self._clock.now() + HEAD_START_NS
        self._deadline = self._begin + int(limit_s * NS)

    def work(self, call: Call) -> None:
        """Serve until the schedule is empty, time is up, or a server has failed."""
        now, wait, turn = self._clock.now, self._clock.wait_until, self._turn
        due, started, ended, begin = self._due, self._started, self._ended, self._begin
        count, deadline, errors = len(due), self._deadline, self.errors
        try:
            while not errors and now() < deadline:
                index = next(turn)
                if index >= count:
                    return
                wait(begin + due[index])
                started[index] = now()
                call()
                ended[index] = now()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            errors.append(error)

    def result(self) -> tuple[list[int], list[int]]:
        """Waiting and serving time of each request."""
        started, ended = np.array(self._started, np.int64), np.array(self._ended, np.int64)
        done = ended != NEVER
        due = self._begin + np.array(self._due, np.int64)
        return np.where(done, started - due, NEVER).tolist(), np.where(done, ended - started, NEVER).tolist()
