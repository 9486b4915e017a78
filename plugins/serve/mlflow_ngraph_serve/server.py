"""Server: runs web server and application on a socket, loads the service in the background, and stops both."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlflow_ngraph_serve.application import Application
from mlflow_ngraph_serve.listening import address
from mlflow_ngraph_serve.service import Service

if TYPE_CHECKING:
    from mlflow_ngraph_serve.web_server import WebServer

IDLE_S = 75
"""Seconds for which an idle connection is kept: longer than the proxies in front usually keep it."""
GRACE_S = 5
"""Beyond the time of a request, for clients to take their answers when the server ends."""


class Server:
    """Serves until it is stopped, and then answers its last requests.

    Parameters
    ----------
    tell : Callable[[str], None]
        Called with lines for people.
    public : socket.socket | None
        The clients' socket, where it is another one.
    """

    def __init__(
        self,
        service: Service,
        listening: socket.socket,
        tell: Callable[[str], None],
        public: socket.socket | None = None,
    ) -> None:
        self._service = service
        self._listening = listening
        self._tell = tell
        self._problem: BaseException | None = None
        host = (public or listening).getsockname()[0]
        self._web = self._web_server(local=ipaddress.ip_address(host).is_loopback)

    def run(self) -> bool:
        """Serve, and say whether everything that came in was answered.

        Raises
        ------
        NGraphError
            The engine cannot be loaded or fails, or the options cannot be kept.
        """
        try:
            self._web.run(sockets=[self._listening])
        finally:
            done = self._service.stop()
        if self._problem is not None:
            raise self._problem
        return done

    def stop(self) -> None:
        """End `run`; may be called from any thread."""
        self._web.should_exit = True

    def _web_server(self, *, local: bool) -> WebServer:
        from mlflow_ngraph_serve.crowd import Crowd
        from mlflow_ngraph_serve.web_server import WebServer

        service = self._service
        crowd = Crowd(service.limits.timeout_s, service.max_body_bytes, service.metrics.refused)
        service.metrics.watch(lambda: len(crowd.connections), lambda: crowd.held)
        return WebServer(
            crowd,
            app=Application(service, crowd, local=local).asgi(self._start),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=round(service.limits.timeout_s) + GRACE_S,
        )

    async def _start(self) -> None:
        """Get the service ready, and say where it is."""
        where = f"{address(self._listening)}/v2/models/{self._service.interface.name}"
        self._tell(f"listening; the engine is being loaded: {where}")
        if await self._load() is None:
            self._tell(f"ready: {where}/infer")
            self._tell(f"try it: {self._service.interface.example(f'{where}/infer')}")

    async def _load(self) -> BaseException | None:
        """Load the service in a thread; without an engine there is nothing to serve. `run` raises its error."""
        try:
            where = self._listening.getsockname()[:2]
            await asyncio.get_running_loop().run_in_executor(None, self._service.start, where)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._problem = error
            self.stop()
        return self._problem
