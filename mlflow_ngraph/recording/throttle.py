"""Requests to a tracking server that can be held back between one and the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Gate:
    """Lets one request after the other through, until it is closed.

    A process that is stopped in the middle of a transaction holds up everybody who uses the same database: it is to be
    stopped between two.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._inside = 0

    def close(self) -> None:
        """Let nobody in, and wait until nobody is inside."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._inside)

    def open(self) -> None:
        """Let requests through again."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def around(self, client: MlflowClient) -> MlflowClient:
        """The same client, with each of its requests through the gate."""
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
