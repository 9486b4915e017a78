"""Several inferences in flight, for runtimes whose calls return only when they are done.

Such a runtime has as many requests in flight as there are threads that call it. The threads are made once, and sleep
while nothing is asked of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Task = Callable[[], object]


class Crew:
    """Does each of its tasks in a thread of its own.

    Parameters
    ----------
    tasks : Sequence[Task]
        They must let go of Python's lock while they compute, or they do so one after the other.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._members = [_Member(task) for task in tasks]

    def run(self) -> None:
        """Do every task once, and return when all are done; raises what the first one that failed has raised."""
        for member in self._members:
            member.begin(again=False)
        for member in self._members:
            member.done.acquire()
        self._raise()

    @contextmanager
    def stream(self) -> Iterator[Task]:
        """Have every member do its task again and again, and give a function that counts.

        It returns when as many tasks as there are members have ended since it returned before, whoever did them, and
        raises what a task has raised. At the end of the context all tasks have ended.
        """
        ended, members = threading.Semaphore(0), self._members

        def count() -> None:
            for _ in members:
                ended.acquire()
            self._raise()

        for member in members:
            member.begin(again=True, ended=ended)
        try:
            yield count
        finally:
            for member in members:
                member.again = False
            for member in members:
                member.done.acquire()

    def _raise(self) -> None:
        for member in self._members:
            if member.error is not None:
                raise member.error

    def close(self) -> None:
        """End the threads. Closing again does nothing."""
        members, self._members = self._members, []
        for member in members:
            member.end()


class _Member:
    """A thread that does its task when it is told to. Plain locks are the cheapest way to tell."""

    def __init__(self, task: Task) -> None:
        self.error: BaseException | None = None
        self.again = False
        self.done = threading.Lock()
        self._task: Task | None = task
        self._ended: threading.Semaphore | None = None
        self._begun = threading.Lock()
        self._begun.acquire()
        self.done.acquire()
        self._thread = threading.Thread(target=self._work, name="request", daemon=True)
        self._thread.start()

    def begin(self, again: bool, ended: threading.Semaphore | None = None) -> None:
        """Do the task once, or until `again` is taken back; each time that it ends, ``ended`` is raised by one."""
        self.again, self._ended, self.error = again, ended, None
        self._begun.release()

    def end(self) -> None:
        """End the thread, which must be free."""
        self._task = None
        self._begun.release()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._begun.acquire()
            task, ended = self._task, self._ended
            if task is None:
                return
            while True:
                try:
                    task()
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                    self.error, self.again = error, False
                if ended is not None:
                    ended.release()
                if not self.again:
                    break
            self.done.release()
