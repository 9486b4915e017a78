"""Lingering: closes a connection only after its last answer could arrive; joins heads with small bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

LINGER_S = 2.0
LINGER_BYTES = 64 << 20
"""Time and bytes for which a connection that has ended here is read on, so that the answer arrives."""
TOGETHER = 64 << 10
"""Bytes that are copied so that they leave with the head of their answer."""


class Lingering:
    """A transport that ends by saying so, and closes when the client has ended too.

    Who closes at once with unread bytes resets the connection, and the answer with it.

    Attributes
    ----------
    client_ended: the client sends nothing more, so that nothing is to be waited for.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._ended: asyncio.TimerHandle | None = None
        self._discarded = 0
        self._head = b""
        self.client_ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, and have the head of an answer leave together with a small body: as two packets they wake the client twice."""
        if self._head:
            if len(data) > TOGETHER:
                self._transport.write(self._head)
                self._transport.write(data)
            else:
                self._transport.write(self._head + data)
            self._head = b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._ended is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if self.client_ended:
            self._transport.close()
            return
        self._transport.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:
            # The client has reset the connection, and nobody has noticed yet.
            self._transport.close()
            return
        self._ended = self._loop.call_later(LINGER_S, self._transport.close)

    def discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self._transport.close()

    def forget(self) -> None:
        if self._ended is not None:
            self._ended.cancel()
