"""Messages between a follower and its processes: JSON objects, a line each, over a pair of sockets.

The end of a process is the end of its channel, so its peer hears of a crash at once.
"""

from __future__ import annotations

import json
import select
import socket
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
_PIECE = 1 << 16


class Channel:
    """One end of the channel."""

    def __init__(self, end: socket.socket) -> None:
        self.ended = False
        """True once the other end is closed."""
        self._socket = end
        self._rest = b""

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the other end for another process."""
        mine, other = socket.socketpair()
        return cls(mine), other

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Channel:
        """The end that this process has inherited."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message. A closed peer is found out by reading."""
        with suppress(ConnectionError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """Messages that have arrived, without waiting."""
        lines: list[bytes] = []
        while not self.ended:
            try:
                piece = self._socket.recv(_PIECE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                piece = b""
            self.ended = not piece
            *whole, self._rest = (self._rest + piece).split(b"\n")
            lines += whole
        return [json.loads(line) for line in lines]

    def wait(self, seconds: float | None) -> list[Message]:
        """Messages that have arrived, or the first ones within so many seconds; None waits without limit."""
        if not self.ended:
            select.select([self._socket], [], [], seconds)
        return self.receive()

    def close(self) -> None:
        """Close the channel, which tells the peer."""
        self.ended = True
        self._socket.close()
