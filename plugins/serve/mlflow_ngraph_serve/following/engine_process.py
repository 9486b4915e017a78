"""Process that serves one engine of a follower.

It inherits three sockets. It always answers on its own, so that it can be tried before any client connects. It shares the
clients' socket with the other processes, and accepts connections from it only while the follower says so; a change loses no
connection. The third is the channel to the follower.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes import parent_death
from mlflow_ngraph_serve import process
from mlflow_ngraph_serve.server import Server

if TYPE_CHECKING:
    from mlflow_ngraph_serve.process import Order
    from mlflow_ngraph_serve.service import Service


@dataclass(frozen=True)
class Inherited:
    """Inherited descriptors, and the parent's process id."""

    own: int
    public: int
    channel: int
    parent: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Inherited:
        return cls(**json.loads(text))


class SharedSocketServer(Server):
    """Serves on a socket of its own and, while the follower says so, on a shared one."""

    def __init__(
        self,
        service: Service,
        own: socket.socket,
        public: socket.socket,
        channel: socket.socket,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(service, own, tell, public)
        self._web.held.append(public)
        self._public = public
        self._channel = channel
        self._open: socket.socket | None = None

    async def _start(self) -> None:
        """Load the service, and obey the follower until it is gone."""
        reader, writer = await asyncio.open_connection(sock=self._channel)
        problem = await self._load()
        if problem is not None:
            _say(writer, failed=" ".join(str(problem).split()) or type(problem).__name__)
            return
        _say(writer, ready=True)
        while line := await _line(reader):
            if json.loads(line)["do"] == "open":
                self._take_connections()
            else:
                self._stand_aside()
            _say(writer, open=self._open is not None)
        self.stop()

    def _take_connections(self) -> None:
        if self._open is not None:
            return
        self._web.keep_connections(True)
        # What is closed when it stands aside is this process's own name of the socket.
        self._open = self._public.dup()
        self._web.listen(self._open)

    def _stand_aside(self) -> None:
        """Accept no more connections; existing ones end with their next answer, which says so."""
        if self._open is None:
            return
        self._web.ignore(self._open)
        self._open = None
        self._web.keep_connections(False)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


def _say(writer: asyncio.StreamWriter, **message: object) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def main() -> int:
    """Serve until a signal comes, or the follower has ended. The arguments are a `process.Order` and a `Inherited`."""
    order, descriptors = sys.argv[1:]
    inherited = Inherited.parse(descriptors)
    parent_death.send_to_self(signal.SIGTERM, inherited.parent)
    return process.serve(process.Order.parse(order), partial(_server, inherited))


def _server(inherited: Inherited, order: Order) -> Server:
    channel = socket.socket(fileno=inherited.channel)
    try:
        service = process.service_of(order)
    except NGraphError as error:
        channel.sendall(json.dumps({"failed": " ".join(str(error).split())}).encode() + b"\n")
        raise
    own, public = socket.socket(fileno=inherited.own), socket.socket(fileno=inherited.public)
    # Other processes share it, and a copy of a name that blocks would block them all.
    public.setblocking(False)
    return SharedSocketServer(service, own, public, channel, process.tell)
