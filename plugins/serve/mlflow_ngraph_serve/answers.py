"""HTTP responses: of inferences, which count as under way until sent, of refusals, and one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from mlflow_ngraph_serve.refusal import Refusal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from mlflow_ngraph_serve.connection import Connection


class Answer(Response):
    """An answer whose place is kept until its last byte has left."""

    def __init__(
        self, content: bytes, headers: dict[str, str], connection: Connection, left: Callable[[bool], None]
    ) -> None:
        super().__init__(content, headers=headers)
        self._connection, self._left = connection, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False
        try:
            whole = await self._connection.sending(len(self.body), super().__call__(scope, receive, send))
        finally:
            self._left(whole)


def refusal(error: Refusal) -> Response:
    """Answer to a refused request: one line of JSON."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.close:
        headers["Connection"] = "close"
    return as_json({"error": str(error)}, error.status, headers)


def as_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """One line of JSON."""
    return Response(json.dumps(content) + "\n", status, headers, "application/json")
