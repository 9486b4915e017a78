"""Connection: uvicorn's HTTP connection with time limits, turns and byte counts, so that clients harm no others.

The web server answers invalid HTTP in plain text, waits forever for clients that send nothing or read nothing, and closes
connections with unread bytes, upon which the kernel resets them and the answer is lost.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlflow_ngraph_serve import crowd
from mlflow_ngraph_serve.incoming import Incoming
from mlflow_ngraph_serve.lingering import Lingering

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from mlflow_ngraph_serve.crowd import Crowd
    from mlflow_ngraph_serve.refusal import Reason

HEADER_S = 20.0
"""Timeout from the first byte of a request to the end of its headers."""
MOMENT_S = 0.5
"""Time for requests on their way when the server ends."""


class Connection(H11Protocol):
    """A connection of the server.

    Attributes
    ----------
    crowd: set by the server, in a class of its own.
    begun: when the first byte of the request under way came, by the monotonic clock; 0 between requests.
    unsent: bytes of the answer that is being sent.
    spare: no inference is computed for it.
    prompt: the client has waited for its last answer before it asked again, so that its requests wait for nobody else's.
    """

    crowd: Crowd
    conn: Incoming

    def connection_made(self, transport: Any) -> None:
        self.conn = Incoming(h11.SERVER)
        self.begun = self._heard = 0.0
        self._incoming = self.unsent = 0
        self.spare = self.prompt = self._counted = self._cut = False
        self._impatience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        # Writing is paused whenever bytes are left here: what is resumed has left.
        transport.set_write_buffer_limits(0)
        super().connection_made(Lingering(transport, self.loop))  # type: ignore[arg-type]
        self.app_state = {**self.app_state, "connection": self}
        if len(self.crowd.connections) >= crowd.MOST and not self.crowd.make_room():
            self.spare = True
        self.crowd.moved(self)
        if len(self.crowd.connections) > crowd.MOST + crowd.SPARE:
            self.give_up()
            return
        self._watch()
        if self.crowd.ending:
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self.transport.discard(data)  # type: ignore[attr-defined]
            return
        if not self.begun:
            data = data.lstrip(b"\r\n")  # which some clients send behind a body
            if not data:
                return
        self._heard = time.monotonic()
        if not self.begun:
            self.begun = self._heard
            self.crowd.moved(self)
        super().data_received(data)
        self._count(len(data))
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override] # asyncio takes the answer, which the web server never gives
        """A client that sends nothing more still gets its answers: True where one is due."""
        self.transport.client_ended = True  # type: ignore[attr-defined]
        self._end_with_client()
        return self._due

    def handle_events(self) -> None:
        """Parse what has come: at once for a prompt client, else when it is its turn."""
        if not self.prompt:
            if self.crowd.takes_turn(self):
                super().handle_events()
            else:
                self.flow.pause_reading()
            return
        super().handle_events()
        if self._answering and not self.cycle.more_body:
            self.crowd.under_way.add(self)

    def go_on(self) -> None:
        """Parse what has come, since it is this connection's turn."""
        super().handle_events()
        self._count()
        self._watch()
        if not self._answering:
            self.flow.resume_reading()
        self._end_with_client()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering or self.flow.write_paused:
            self._cut = True
            if not self._counted:
                self.crowd.refused("gone")
        self._hold(0, 0)
        self.crowd.lost(self)
        self._relax()
        self._taken()
        self.transport.forget()  # type: ignore[attr-defined]
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        # Between two requests the web server's own limit for idle connections holds.
        self._relax()
        self.crowd.moved(self)
        self.crowd.answered(self)
        self.prompt = not self.conn.trailing_data[0]
        self.begun = 0.0 if self.prompt else self._heard
        super().on_response_complete()
        self._end_with_client()

    def pause_writing(self) -> None:
        self.crowd.moved(self)
        self._unread = self.loop.call_later(self.crowd.patience_s, self.give_up, "unread")
        super().pause_writing()

    def resume_writing(self) -> None:
        self.crowd.moved(self)
        self._taken()
        super().resume_writing()

    def shutdown(self) -> None:
        """Answer what has come in and what is on its way, and end."""
        if self._answering:
            self.cycle.keep_alive = False
            self.cycle.default_headers = self.server_state.default_headers
        else:
            self.loop.call_later(MOMENT_S, self._leave)

    def _should_upgrade(self) -> bool:
        # Without a word: the web server would advise to install WebSockets.
        return False

    def send_400_response(self, msg: str) -> None:
        self.crowd.refused("malformed")
        self._refuse(400, self.conn.problem or "this is not HTTP, or not all of it")

    @property
    def stalled(self) -> bool:
        """True where the client has to do something next."""
        return self.transport.is_closing() or not self._answering or self.cycle.more_body or self.flow.write_paused

    @property
    def held(self) -> int:
        """Bytes that wait for the client."""
        return self._incoming + self.unsent

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _due(self) -> bool:
        """True where a request that came whole, or may have, has no answer yet."""
        waits = self in self.crowd.first or self in self.crowd.others
        return waits or (self._answering and not self.cycle.more_body)

    def _end_with_client(self) -> None:
        if not self.transport.client_ended or self._due or self.transport.is_closing():  # type: ignore[attr-defined]
            return
        if self._answering or self.conn.trailing_data[0].strip():
            self.send_400_response("")
        else:
            self.transport.close()

    async def sending(self, size: int, sent: Awaitable[None]) -> bool:
        """Hold the bytes of an answer until they have left, which returns True, or the connection is lost."""
        self._hold(self._incoming, size)
        try:
            await sent
            await self.flow.drain()
        finally:
            self._hold(self._incoming, 0)
        return not self._cut

    def give_up(self, reason: Reason = "crowded") -> None:
        """End the connection for the sake of others, in words where a request has begun and no answer has."""
        if not self._counted:
            self._counted = True
            self.crowd.refused(reason)
        self._hold(0, 0)
        if self.flow.write_paused or self.transport.is_closing():
            self.transport.abort()
        elif self.begun or self.spare:
            self._refuse(503, "too many connections or bytes: whoever is slowest goes first", retry_after_s=1)
        else:
            self.transport.close()

    def _hold(self, incoming: int, unsent: int) -> None:
        if self.transport.is_closing():
            incoming = unsent = 0
        before = self.held
        self._incoming, self.unsent = incoming, unsent
        self.crowd.waiting(self.held - before)

    def _count(self, more: int = 0) -> None:
        """Hold bytes of requests that are not whole, and of those behind one that is answered."""
        whole = self.cycle is not None and not self.cycle.more_body
        self._hold(len(self.conn.trailing_data[0]) if whole else self._incoming + more, self.unsent)

    def _leave(self) -> None:
        if self._answering:
            return
        if self.begun:
            self._refuse(503, "the server is shutting down", retry_after_s=1)
        self.transport.close()

    def _late(self) -> None:
        if self.begun:
            self.crowd.refused("slow")
            self._refuse(408, f"the headers did not come within {HEADER_S:g} s")
        self.transport.close()

    def _refuse(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        """Answer in place of the application, and close."""
        self._counted = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": message}).encode() + b"\n"
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            headers.append((b"connection", b"close"))
            if retry_after_s is not None:
                headers.append((b"retry-after", b"%d" % retry_after_s))
            for event in (
                h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self._answering:
            # Ends the application's part.
            self._cut = self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _watch(self) -> None:
        """Set a limit while the headers of a request are on their way."""
        if self._answering:
            self._relax()
        elif self._impatience is None and self.timeout_keep_alive_task is None:
            self._impatience = self.loop.call_later(HEADER_S, self._late)

    def _relax(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _taken(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
