"""Clients that time a server from outside, over connections that they keep."""

from __future__ import annotations

import re
import selectors
import socket
import time
from dataclasses import dataclass, field

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


@dataclass
class Asked:
    """What clients have seen."""

    seconds: float = 0.0
    taken: list[float] = field(default_factory=list)
    """Seconds from before a request is sent until all of its answer is there."""
    refused: int = 0
    """Answers other than 200."""
    lost: int = 0
    """Requests that were sent, and got no whole answer."""

    @property
    def throughput(self) -> float:
        return len(self.taken) / self.seconds

    def ms(self, percentile: float) -> float:
        return 1000 * float(np.percentile(self.taken, percentile, method="higher")) if self.taken else float("nan")


class _Client:
    def __init__(self, port: int, kept: bool) -> None:
        self._port, self.kept = port, kept
        self.socket: socket.socket | None = None
        self.start = 0.0
        self._content = bytearray()

    def ask(self, request: bytes) -> None:
        self.start = time.perf_counter()
        self._content.clear()
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self._port), 10)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(request)

    def answer(self) -> bytes | None:
        """The whole answer once it is there, else None."""
        assert self.socket is not None
        piece = self.socket.recv(1 << 18)
        if not piece:
            raise ConnectionResetError
        self._content += piece
        head = self._content.find(b"\r\n\r\n")
        found = _LENGTH.search(self._content, 0, head) if head >= 0 else None
        if found is None or len(self._content) < head + 4 + int(found[1]):
            return None
        if not self.kept or b"connection: close" in self._content[:head].lower():
            self.close()
        return bytes(self._content)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """The bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body


def ask(port: int, request: bytes, clients: int, seconds: float, *, kept: bool = True, pause_s: float = 0.0) -> Asked:
    """Have each of some clients send its request again as soon as it has its answer.

    Parameters
    ----------
    kept : bool
        Whether a client keeps its connection, or makes a new one for each request.
    pause_s : float
        Between an answer and the next request.
    """
    asked = Asked(seconds)
    end = time.perf_counter() + seconds
    everybody = [_Client(port, kept) for _ in range(clients)]
    with selectors.DefaultSelector() as ready:

        def send(client: _Client) -> None:
            try:
                client.ask(request)
                ready.register(client.socket, selectors.EVENT_READ, client)  # type: ignore[arg-type]
            except OSError:
                asked.lost += 1
                client.close()

        for client in everybody:
            send(client)
        while (now := time.perf_counter()) < end:
            for key, _ in ready.select(end - now):
                if _over(key.data, asked):
                    ready.unregister(key.fileobj)
                    if pause_s:
                        time.sleep(pause_s)
                    send(key.data)
    for client in everybody:
        client.close()
    return asked


def _over(client: _Client, asked: Asked) -> bool:
    """Take what has come; True once the request is answered or lost."""
    try:
        answer = client.answer()
    except OSError:
        client.close()
        asked.lost += 1
        return True
    if answer is None:
        return False
    if answer.startswith(b"HTTP/1.1 200"):
        asked.taken.append(time.perf_counter() - client.start)
    else:
        asked.refused += 1
    return True
