"""A proxy to a tracking server that goes wrong: it delays, refuses, cuts, sends half of what it promised, and is away.

Run as a script with the address of the server and a file that says what to do: ``clear`` passes everything on, ``away``
nothing, and ``faulty`` goes wrong in every second window of time, in one of the ways of `FAULTS`. Prints its own address.
"""

from __future__ import annotations

import http.client
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

WINDOW_S = 3.0
FAULTS = ("late", "error", "cut before", "cut after", "half", "away")
"""Answers that come seconds later; errors of a server or of a proxy before it; a request that is cut off, or its answer; an
answer of which half arrives; nobody who answers."""
_LATEST_S = 4.0
_ERRORS = (500, 502, 503, 504)
_HOP = ("connection", "transfer-encoding", "keep-alive", "host")
_DONE, _PASSED, _WRONG = "do", "passed", "wrong"


def window(moment: float) -> int:
    """The number of the window of time in which a moment lies; the odd ones are faulty."""
    return int(moment // WINDOW_S)


def fault(moment: float, what: str) -> str:
    """How a request goes wrong that comes at a moment; empty where it does not."""
    if what == "faulty" and window(moment) % 2:
        return FAULTS[window(moment) // 2 % len(FAULTS)]
    return "away" if what == "away" else ""


@dataclass(frozen=True)
class Faulty:
    """A proxy that runs."""

    address: str
    folder: Path

    def do(self, what: str) -> None:
        """Be ``clear``, ``faulty`` or ``away`` from now on."""
        (self.folder / _DONE).write_text(what)

    def counted(self) -> tuple[int, int]:
        """How many requests came, and how many of these went wrong."""
        passed, wrong = ((self.folder / name).stat().st_size for name in (_PASSED, _WRONG))
        return passed + wrong, wrong


@contextmanager
def faulty(upstream: str, folder: Path) -> Iterator[Faulty]:
    """A proxy in a process of its own, ``clear`` at first.

    Parameters
    ----------
    upstream : str
        Address of the server.
    folder : Path
        For what it is told and what it counts.
    """
    folder.mkdir()
    for name, text in ((_DONE, "clear"), (_PASSED, ""), (_WRONG, "")):
        (folder / name).write_text(text)
    process = subprocess.Popen(
        [sys.executable, __file__, upstream, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield Faulty(process.stdout.readline().strip(), folder)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.folder = folder

    def goes_wrong(self) -> str:
        """How the request that has just come does; counts it."""
        wrong = fault(time.time(), (self.folder / _DONE).read_text())
        with (self.folder / (_WRONG if wrong else _PASSED)).open("a") as counted:
            counted.write(".")
        return wrong


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        with suppress(OSError):
            super().handle_one_request()

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        wrong = self.server.goes_wrong()
        if wrong == "late":
            time.sleep(random.uniform(0.2, _LATEST_S))
        if wrong == "error":
            self.send_error(random.choice(_ERRORS))
            return
        answer = None if wrong in ("away", "cut before") else self._asked(body)
        if answer is None or wrong == "cut after":
            self._cut()
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if wrong == "half" else content)
        if wrong == "half":
            self._cut()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = pass_on  # noqa: N815 - the names that the library calls

    def log_message(self, *_: object) -> None:
        pass

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """What the server says; None where it is not there."""
        upstream = self.server.upstream
        connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port, timeout=60)
        passed = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        try:
            connection.request(self.command, self.path, body, passed)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return None
        finally:
            connection.close()
        headers = [
            (name, value) for name, value in answer.getheaders() if name.lower() not in (*_HOP, "content-length")
        ]
        return answer.status, headers, content

    def _cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve until killed."""
    server = _Server(sys.argv[1], Path(sys.argv[2]))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
