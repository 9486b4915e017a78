"""WebServer: uvicorn's server, which accepts a few newcomers at a time, and at its end answers all that came in."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from itertools import islice
from typing import Any

import uvicorn

from mlflow_ngraph_serve.connection import Connection
from mlflow_ngraph_serve.crowd import MOST, Crowd
from mlflow_ngraph_serve.listening import refuse_newcomers

NEWCOMERS, PAUSE_S = 4, 0.001
"""Connections that are accepted in one turn of the event loop, and the pause after it where there are as many as there may be."""
_CLOSE = (b"connection", b"close")
HANDSHAKE_S = 0.2
"""Time for handshakes under way when the server ends."""


class WebServer(uvicorn.Server):
    """A web server on sockets that it is given.

    Attributes
    ----------
    held: further names of the listening sockets, which are closed with them: each would let connections in.
    """

    def __init__(self, crowd: Crowd, **config: Any) -> None:
        class Served(Connection):
            pass

        Served.crowd = crowd
        super().__init__(uvicorn.Config(http=Served, loop="uvloop", ws="none", lifespan="on", **config))
        self.held: list[socket.socket] = []
        self._listening: list[socket.socket] = []
        self._crowd, self._kind = crowd, Served

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and take connections from sockets."""
        await super().startup([])
        for listening in sockets or []:
            self.listen(listening)

    def listen(self, listening: socket.socket) -> None:
        """Take connections from a socket, a few in each turn of the event loop: a crowd that comes is in nobody's way."""
        listening.setblocking(False)
        self._listening.append(listening)
        self._watch(listening)

    def ignore(self, listening: socket.socket) -> None:
        """Take no more connections from a socket, and close it."""
        self._listening.remove(listening)
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()

    def keep_connections(self, keep: bool) -> None:
        """Say with each answer from now on whether the connection ends."""
        for headers in (self.config.encoded_headers, self.server_state.default_headers):
            headers[:] = [header for header in headers if header != _CLOSE] + ([] if keep else [_CLOSE])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take what waits to be accepted, and answer everything."""
        self._crowd.ending = True
        self.keep_connections(False)
        if not self.held:
            # Who comes between the last connection that is accepted and the end of the socket would be reset.
            for listening in self._listening:
                refuse_newcomers(listening)
            await asyncio.sleep(HANDSHAKE_S)
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        # Without a pause in between: who comes now is refused by the system, and may ask another server.
        for listening in list(self._listening):
            accepted += islice(iter(partial(_accept, listening), None), MOST)
            self.ignore(listening)
        for name in self.held:
            name.close()
        # The web server would cancel what is left a second later, with a page of its log for each.
        loop.call_later((self.config.timeout_graceful_shutdown or 0) - 1, self._cut)
        for connection in accepted:
            await self._begin(connection)
        await super().shutdown()

    def _watch(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._let_in, listening)

    def _let_in(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted = list(islice(iter(partial(_accept, listening), None), NEWCOMERS))
        for connection in accepted:
            task = loop.create_task(self._begin(connection))
            self.server_state.tasks.add(task)
            task.add_done_callback(self.server_state.tasks.discard)
        if not accepted or len(self._crowd.connections) >= MOST:
            # There are no descriptors left, or each newcomer ends another connection. The rest waits in the system, where it costs nothing.
            loop.remove_reader(listening)
            loop.call_later(PAUSE_S, self._watch, listening)

    async def _begin(self, connection: socket.socket) -> None:
        make = partial(self._kind, self.config, self.server_state, self.lifespan.state)
        await asyncio.get_running_loop().connect_accepted_socket(make, connection)

    def _cut(self) -> None:
        for connection in list(self._crowd.connections):
            connection.give_up("unread")


def _accept(listening: socket.socket) -> socket.socket | None:
    try:
        connection, _ = listening.accept()
    except OSError:
        return None
    connection.setblocking(False)
    return connection
