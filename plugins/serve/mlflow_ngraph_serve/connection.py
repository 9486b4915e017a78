"""HTTP connections with errors in JSON and a timeout for requests.

The web server answers invalid HTTP in plain text, and has no timeout for connections that never send a request.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 1024
"""Connections at the same time."""
HEADER_S = 20.0
"""Timeout from the first byte of a request to the end of its headers."""


class Connection(H11Protocol):
    """A connection of the server.

    Attributes
    ----------
    on_invalid: called with bytes that are no HTTP.
    """

    on_invalid: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: Any) -> None:
        self._impatience: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        # Between two requests the web server's own limit for idle connections holds.
        self._relax()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        type(self).on_invalid()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # An answer has been begun already.
            self.transport.close()
            return
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        body = json.dumps({"error": "this is not HTTP, or not all of it"}).encode() + b"\n"
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Set a limit while the headers of a request are on their way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._relax()
        elif self._impatience is None and self.timeout_keep_alive_task is None:
            self._impatience = self.loop.call_later(HEADER_S, self.transport.abort)

    def _relax(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
