"""Keep several inferences in flight, for runtimes with asynchronous requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Step = Callable[[], object]


class RequestQueue:
    """Asynchronous requests; each of ``starts`` begins one, and the same entry of ``waits`` awaits it."""

    def __init__(self, starts: Sequence[Step], waits: Sequence[Step]) -> None:
        self._starts = starts
        self._waits = waits

    def run(self) -> None:
        """Run each request once, all concurrently, and wait for all."""
        for start in self._starts:
            start()
        self._wait()

    @contextmanager
    def stream(self) -> Iterator[Step]:
        """Context with a function that waits for each request once and restarts it at once. All have ended after it."""
        turns = list(zip(self._waits, self._starts, strict=True))

        def turn() -> None:
            for wait, start in turns:
                wait()
                start()

        for start in self._starts:
            start()
        try:
            yield turn
        finally:
            self._wait()

    def _wait(self) -> None:
        for wait in self._waits:
            wait()
