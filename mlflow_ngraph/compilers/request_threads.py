"""Keep several inferences in flight, for runtimes with blocking calls: one thread each.

The threads are made once, and sleep while idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Task = Callable[[], object]


class RequestThreads:
    """Runs each of its tasks in a thread of its own. Only tasks that release the GIL run concurrently."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._members = [_Member(task) for task in tasks]

    def run(self) -> None:
        """Run every task once, wait for all, and raise the error of the first that failed."""
        for member in self._members:
            member.begin(again=False)
        for member in self._members:
            member.done.acquire()
        self._raise()

    @contextmanager
    def stream(self) -> Iterator[Task]:
        """Context in which all threads repeat their tasks, with a function that waits for progress.

        It returns when as many tasks as there are threads have ended since its last return, in any thread, and raises
        their errors. All tasks have ended after the context.
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
    """A thread that runs its task on request. Plain locks are the fastest signal."""

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
        """Run the task once, or until `again` is reset; each end increments ``ended``."""
        self.again, self._ended, self.error = again, ended, None
        self._begun.release()

    def end(self) -> None:
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
