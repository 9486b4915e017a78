"""Several inferences at the same time, for runtimes whose calls return only when they are done.

Such a runtime has as many requests in flight as there are threads that call it. The threads are made once, and sleep
between two sets of requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Task = Callable[[], object]


class Crew:
    """Does a set of tasks at the same time: the first in the calling thread, each other in a thread of its own.

    Parameters
    ----------
    tasks: they must let go of Python's lock while they compute, or they do so one after the other.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._own = tasks[0]
        self._members = [_Member(task) for task in tasks[1:]]

    def run(self) -> None:
        """Do every task once, and return when all are done; raises what the first one that failed has raised."""
        members = self._members
        for member in members:
            member.begin()
        try:
            self._own()
        finally:
            # Also where the own task has failed: the next set must find every thread free.
            for member in members:
                member.wait()
        for member in members:
            if member.error is not None:
                raise member.error

    def close(self) -> None:
        """End the threads. Closing again does nothing."""
        members, self._members = self._members, []
        for member in members:
            member.end()


class _Member:
    """A thread that does its task each time it is told to. Plain locks are the cheapest way to tell."""

    def __init__(self, task: Task) -> None:
        self.error: BaseException | None = None
        self._task: Task | None = task
        self._begun = threading.Lock()
        self._done = threading.Lock()
        self._begun.acquire()
        self._done.acquire()
        self._thread = threading.Thread(target=self._work, name="request", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._begun.release()

    def wait(self) -> None:
        self._done.acquire()

    def end(self) -> None:
        self._task = None
        self._begun.release()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._begun.acquire()
            task, self.error = self._task, None
            if task is None:
                return
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                self.error = error
            self._done.release()
