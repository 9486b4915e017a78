"""Detect stops: moments in which this whole process stood still, as after SIGSTOP or in a paused container.

The time of such a moment is no inference time. The kernel counts for each thread how long it ran, and how long it waited
for a processor; see ``schedstat`` in proc(5). Where no thread did either, the process slept or stood still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter_ns

SHORTEST_S = 0.5
"""Shortest stop: sleeping threads of a busy machine are late by less."""
OF_A_CALL = 0.25
"""Shortest stop as a share of an inference: none of its threads need work all of the time."""
OF_AN_ACCELERATOR = 10.0
"""Shortest inference, in inferences, that a stop explains on an accelerator: there the processors sleep anyway."""
AGAIN = 3
"""Attempts at a slice, a rate or a load without a stop."""
_BEAT_S = 0.25
"""Time that the thread of `watched` sleeps."""

_TASKS = Path("/proc/self/task")


class Watch:
    """Watches for stops from its creation on."""

    def __init__(self) -> None:
        self._threads = _busy_ns()
        self.began_ns = perf_counter_ns()

    def stopped_s(self, durations_ns: Sequence[int], call_s: float, *, accelerated: bool, idle_s: float = 0.0) -> float:
        """Seconds that the process stood still within one repetition; 0 without a stop, or without the kernel's counts.

        Parameters
        ----------
        durations_ns : Sequence[int]
            Durations of the repetitions since the watch began.
        call_s : float
            Seconds of an undisturbed repetition; 0 if unknown, and the shortest counts.
        accelerated : bool
            An accelerator computes, so that sleeping threads are usual.
        idle_s : float
            Seconds without work, in which the threads slept.
        """
        call_s = call_s or min(durations_ns) / 1e9
        watched_ns, longest_s = perf_counter_ns() - self.began_ns, max(durations_ns) / 1e9
        grown = [spent - self._threads.get(thread, 0) for thread, spent in _busy_ns().items()]
        if not grown or (accelerated and longest_s < OF_AN_ACCELERATOR * call_s):
            return 0.0
        stopped_s = min((watched_ns - max(grown)) / 1e9 - idle_s, longest_s - call_s)
        return stopped_s if stopped_s >= max(SHORTEST_S, OF_A_CALL * call_s) else 0.0


@contextmanager
def watched() -> Iterator[list[float]]:
    """Watch work of unknown length, which may wait for disks or other processes; yields the stops, complete at its end.

    A thread sleeps and is woken all the time. Late for lack of Python's lock, another thread has worked meanwhile.
    """
    stopped: list[float] = []
    over = Event()

    def beat(watch: Watch) -> None:
        while True:
            over.wait(_BEAT_S)
            found = watch.stopped_s([perf_counter_ns() - watch.began_ns], _BEAT_S, accelerated=False)
            stopped.extend([found] if found else ())
            if over.is_set():
                return
            watch = Watch()

    # The thread may get Python's lock for the first time when the work is done: it gets a watch that has begun.
    thread = Thread(target=beat, args=(Watch(),), name="stops", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()


def _busy_ns() -> dict[str, int]:
    """Nanoseconds that each thread of this process ran or waited for a processor; empty where nobody counts them."""
    found = {}
    with suppress(OSError):
        for thread in _TASKS.iterdir():
            with suppress(OSError, ValueError):  # a thread that ended meanwhile
                ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                found[thread.name] = ran + waited
    return found
