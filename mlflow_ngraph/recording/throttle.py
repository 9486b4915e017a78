"""Gate: holds back requests to a tracking server between one and the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Gate:
    """Passes requests one at a time, until it is closed.

    A process suspended within a transaction blocks all users of the database: it is suspended between two requests.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._inside = 0

    def close(self) -> None:
        """Hold back requests, and wait for the one under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)

    def open(self) -> None:
        """Pass requests again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def around(self, client: MlflowClient) -> MlflowClient:
        """Wrap a client so that its requests pass the gate."""
        return cast("MlflowClient", _Gated(client, self))

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


class _Gated:
    def __init__(self, client: MlflowClient, gate: Gate) -> None:
        self._client = client
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return self._through(value) if callable(value) else value

    def _through(self, request: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(request)
        def pass_gate(*arguments: Any, **options: Any) -> Any:
            with self._gate:
                return request(*arguments, **options)

        return pass_gate
