"""LimitedAdapter: limits the total time of HTTP requests by MLflow's client; also cuts silent streamed answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from requests import PreparedRequest, ReadTimeout, Response
from requests.adapters import HTTPAdapter

_LEAST_S = 30.0
_BYTES_PER_S = 1e5
"""Least speed of an upload."""
PIECE = 1 << 16


class LimitedAdapter(HTTPAdapter):
    """Gives up requests that take longer than all their attempts may together, however slowly an answer comes.

    Of a streamed answer that is its head; `pieces` reads its content.
    """

    def send(
        self, request: PreparedRequest, stream: bool = False, timeout: Any = None, *rest: Any, **how: Any
    ) -> Response:
        """Send a request from a thread of its own, which is left alone when it takes too long."""
        if timeout is None:
            return super().send(request, stream, timeout, *rest, **how)
        ended: SimpleQueue[Response | Exception] = SimpleQueue()

        def ask() -> None:
            try:
                answer = super(LimitedAdapter, self).send(request, stream, timeout, *rest, **how)
                if not stream:
                    answer.content  # noqa: B018 - read here, and kept
            except Exception as error:  # noqa: BLE001 - raised by who waits
                ended.put(error)
            else:
                ended.put(answer)

        Thread(target=copy_context().run, args=(ask,), daemon=True).start()
        try:
            result = ended.get(timeout=self._limit_s(request, timeout))
        except Empty:
            raise ReadTimeout("timed out: the answer did not come to an end", request=request) from None
        if isinstance(result, Exception):
            raise result
        return result

    def _limit_s(self, request: PreparedRequest, timeout: float) -> float:
        retries = self.max_retries.total or 0
        attempts_s = 2 * (retries + 1) * timeout + self.max_retries.backoff_factor * 2**retries
        return float(max(_LEAST_S, attempts_s) + int(request.headers.get("Content-Length", 0)) / _BYTES_PER_S)


def limit_client() -> None:
    """Let MLflow's client in this process use the adapter."""
    from mlflow.utils import request_utils

    known = request_utils.TCPKeepAliveHTTPAdapter
    if not issubclass(known, LimitedAdapter):
        request_utils.TCPKeepAliveHTTPAdapter = type(known.__name__, (LimitedAdapter, known), {})


def pieces(answer: Response, silence_s: float) -> Iterator[bytes]:
    """The content of a streamed answer. Its connection is cut when no piece has come for so long."""
    count, done = 0, Event()

    def watch() -> None:
        before = -1
        while not done.wait(silence_s):
            if count == before:
                with suppress(RuntimeError, ValueError):  # it has ended in this moment
                    answer.raw.shutdown()
                return
            before = count

    Thread(target=watch, daemon=True).start()
    try:
        for piece in answer.iter_content(PIECE):
            count += 1
            yield piece
    finally:
        done.set()
