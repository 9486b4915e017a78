"""EngineThread: runs all calls of an engine's runtime in one thread, and frees its loaded engines at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from mlflow_ngraph.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow_ngraph.compilers.base import Engine

T = TypeVar("T")


@contextmanager
def starting() -> Iterator[None]:
    """Start a thread, which a program that ends, or has too many, cannot. Raises `EngineError` then."""
    try:
        yield
    except RuntimeError as error:
        raise EngineError(f"the engine gets no thread: {error}") from None


class EngineThread:
    """The thread of an engine, and what is loaded in it. It knows nothing of the engine, which may be dropped.

    An executor would take locks to end, and an engine may be dropped while its thread holds them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.engines: dict[int, Engine] = {}
        """By batch size."""
        self.begin()

    def begin(self) -> None:
        """Have a thread, which starts at the first call."""
        self.ended = False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have the thread call a function. Raises `EngineError` if it has ended."""
        future: Future[T] = Future()
        with self._lock:
            if self.ended:
                raise EngineError("the engine is closed")
            if self.thread.ident is None:
                with starting():
                    self.thread.start()
            self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Free the engines after all earlier calls, and end the thread."""
        with self._lock:
            freed = None if self.ended else self.drop()
        self._join()
        if freed is not None and freed.done():
            freed.result()

    def drop(self) -> Future[None]:
        """As `close`, without waiting and without a lock."""
        freed: Future[None] = Future()
        self._calls.put((freed, self._free, ()))
        self.leave()
        return freed

    def leave(self, *, wait: bool = False) -> None:
        """End the thread after all earlier calls; the interpreter frees the engines."""
        self.ended = True
        self._calls.put(None)
        if wait:
            self._join()

    def _join(self) -> None:
        if self.thread.ident not in (None, threading.get_ident()):
            self.thread.join()

    def _free(self) -> None:
        while self.engines:
            self.engines.popitem()[1].close()


def _work(calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]) -> None:
    while (call := calls.get()) is not None:
        future, function, arguments = call
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - the caller's
            future.set_exception(error)
        else:
            future.set_result(result)
        # Whoever waits for the next call would keep the engine of this one.
        call = future = function = arguments = result = None  # type: ignore[assignment]
