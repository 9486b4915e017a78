"""uvicorn's server, but for its end: what has come in is answered, and no connection is reset."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from itertools import islice
from typing import Any

import uvicorn

from mlflow_ngraph_serve.connection import MOST, Connection, Crowd

_CLOSE = (b"connection", b"close")


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
        super().__init__(uvicorn.Config(http=Served, ws="none", lifespan="on", **config))
        self.held: list[socket.socket] = []
        self._crowd, self._kind = crowd, Served

    def connection(self) -> asyncio.Protocol:
        """Handler of a connection that is accepted elsewhere."""
        return self._kind(self.config, self.server_state, self.lifespan.state)

    def keep_connections(self, keep: bool) -> None:
        """Say with each answer from now on whether the connection ends."""
        for headers in (self.config.encoded_headers, self.server_state.default_headers):
            headers[:] = [header for header in headers if header != _CLOSE] + ([] if keep else [_CLOSE])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take what waits to be accepted, and answer everything."""
        self._crowd.ending = True
        self.keep_connections(False)
        loop = asyncio.get_running_loop()
        accepted = [connection for server in self.servers for connection in _backlog(server)]
        # Without a pause in between: who comes now is refused by the system, and may ask another server.
        for server in self.servers:
            server.close()
        for name in [*self.held, *(sockets or [])]:
            name.close()
        # The web server would cancel what is left a second later, with a page of its log for each.
        loop.call_later((self.config.timeout_graceful_shutdown or 0) - 1, self._cut)
        for connection in accepted:
            await loop.connect_accepted_socket(self.connection, connection)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in list(self._crowd.connections):
            connection.give_up("unread")


def _backlog(server: asyncio.Server) -> list[socket.socket]:
    """Connections that the system has let in and nobody has accepted."""
    accepted: list[socket.socket] = []
    for listening in server.sockets:
        with listening.dup() as own:
            accepted += islice(iter(partial(_accept, own), None), MOST)
    return accepted


def _accept(listening: socket.socket) -> socket.socket | None:
    try:
        connection, _ = listening.accept()
    except OSError:
        return None
    connection.setblocking(False)
    return connection
