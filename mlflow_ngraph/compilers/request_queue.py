"""Several inferences in flight, for runtimes that start one and let its caller wait for it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Step = Callable[[], object]


class Relay:
    """Requests that are started and waited for in turn.

    Parameters
    ----------
    starts, waits : Sequence[Step]
        Begin a request, and return when it has ended; in the same order.
    """

    def __init__(self, starts: Sequence[Step], waits: Sequence[Step]) -> None:
        self._starts = starts
        self._waits = waits

    def run(self) -> None:
        """Have all requests in flight at the same time, each once, and return when all have ended."""
        for start in self._starts:
            start()
        self._wait()

    @contextmanager
    def stream(self) -> Iterator[Step]:
        """Keep all requests in flight, and give a function that waits for each once and starts it again at once.

        At the end of the context all have ended.
        """
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
