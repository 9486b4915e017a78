"""A proxy that cuts connections: it stands between a client and a real server, and counts what the client gets."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_BLOCK = 1 << 16
_HOP = ("connection", "transfer-encoding", "keep-alive")


@dataclass
class Served:
    """One answer of the server, as far as the client got it."""

    path: str
    range: str | None
    status: int = 0
    sent: int = 0
    whole: bool = False


@dataclass
class CuttingProxy:
    """Passes on what it is asked for until it has sent so many bytes of bodies; then it cuts all connections.

    ``stays_down``: it answers nothing any more after the cut, until `heal`.
    ``stalls``: instead of cutting it stops sending, and waits until `heal`.
    ``ranges``: whether it lets the client ask for parts of files.
    """

    upstream: str
    cut_after: int | None = None
    stays_down: bool = True
    stalls: bool = False
    ranges: bool = True
    served: list[Served] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    _down: bool = False
    _sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> CuttingProxy:
        self._healed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def down(self) -> bool:
        return self._down

    def files(self) -> list[Served]:
        """Answers that were files of artifacts."""
        return [one for one in self.served if "/mlflow-artifacts/artifacts/" in one.path]

    def arm(self, cut_after: int | None) -> None:
        """Count from nothing, and cut after so many bytes of files."""
        with self._lock:
            self.cut_after, self._sent, self._down = cut_after, 0, False
            self.served.clear()
            self.stalled.clear()
            self._healed.clear()

    def cut(self) -> None:
        """Answer nothing any more, until `heal`."""
        self._down = True

    def heal(self) -> None:
        """Cut no more."""
        self.cut_after, self._down = None, False
        self._healed.set()

    def take(self, wanted: int) -> tuple[int, bool]:
        """How many of so many bytes may be sent, and whether the connection is cut after them."""
        with self._lock:
            if self._down:
                return 0, True
            left = wanted if self.cut_after is None else self.cut_after - self._sent
            allowed = min(wanted, left)
            self._sent += allowed
            if self.cut_after is None or self._sent < self.cut_after:
                return allowed, False
            self.cut_after, self._down = None, self.stays_down and not self.stalls
        if self.stalls:
            self.stalled.set()
            self._healed.wait(120)
        return allowed, True


def _handler(proxy: CuttingProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def do_PUT(self) -> None:
            self.do_POST()

        def do_PATCH(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

        def _pass_on(self, body: bytes | None) -> None:
            if proxy.down:
                self._cut()
                return
            parts = urlsplit(proxy.upstream)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in (*_HOP, "host")}
            if not proxy.ranges:
                headers = {name: value for name, value in headers.items() if name.lower() != "range"}
            upstream = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
            try:
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                one = Served(self.path, headers.get("Range"), answer.status)
                proxy.served.append(one)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                counted = "/mlflow-artifacts/artifacts/" in self.path
                if answer.getheader("Content-Length") is None:
                    self.send_header("Connection", "close")
                    self.close_connection = True
                self.end_headers()
                self._body(answer, one, counted=counted)
            except OSError:
                self._cut()
            finally:
                upstream.close()

        def _body(self, answer: http.client.HTTPResponse, one: Served, *, counted: bool) -> None:
            while block := answer.read(_BLOCK):
                count, cut = proxy.take(len(block)) if counted else (len(block), False)
                self.wfile.write(block[:count])
                one.sent += count
                if cut:
                    self._cut()
                    return
            one.whole = True

        def _cut(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler
