"""Can clients of a server harm each other? A good client beside six hostile crowds, and stops under load.

``python benchmarks/hostile_crowds.py PACKAGE [--crowds NAME,...] [--seconds 60] [--stops 50]``

``mlflow-ngraph engine serve`` serves the engine. A good client asks every 20 ms, first alone and then beside each crowd:

- ``unread``: clients that ask for JSON and never read an answer;
- ``pipelining``: hundreds of requests in one write on each of 1,100 connections, and no answer read;
- ``bodies``, ``headers``: all but the end of a body, or of the headers, on 1,100 connections, again as soon as they are ended;
- ``resets``: requests whose clients reset the connection at once;
- ``connections``: 2,000 connections on which nothing is sent.

Then the server gets SIGTERM while the crowd is still there. In the end it is stopped ``--stops`` times while 40 clients ask over
kept and over new connections.

Exit code 1: beside a crowd less than 95 % of the good client's requests were answered within five times its quiet 99th percentile;
memory was more than 64 MB above that before the crowd, or 30 s after it still is; the server did not end within its grace; or a stop
reset a connection on which a request had been sent.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support import records
from support.asking import ask, post
from support.records import Result
from support.server import free_port

from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph_serve.client import encode

NAME = "hostile"
SHARE, TIMES, MEMORY_MB = 0.95, 5.0, 64.0
PAUSE_S, BACK_S = 0.02, 30.0
TIMEOUT_S, GRACE_S = 10.0, 20.0
LOCK_OUT = 1100
LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Requests:
    """What clients send."""

    good: bytes
    as_json: bytes
    """A question whose answer is JSON."""


Connect = Callable[[], socket.socket]


def main() -> int:
    """Try every crowd, and stops, and print a line for each; or be a crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--crowds", default=",".join(CROWDS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    records.add_option(parser)
    options = parser.parse_args()
    requests = _requests(options.package)
    if options.port:
        _crowd(options.crowds, options.port, requests)
        return 0
    results = [
        result
        for name in filter(None, options.crowds.split(","))
        for result in _beside(name, options.package, requests.good, options.seconds)
    ]
    resets = sum(_stopped(options.package, requests.good) for _ in range(options.stops))
    print(f"{options.stops} stops under load: {resets} resets of requests that had been sent")
    results.append(records.at_most(f"requests reset in {options.stops} stops under load", resets, 0))
    records.keep(options, "hostile_crowds", *results)
    good = all(result.met for result in results)
    print("ok" if good else "NOT ok")
    return 0 if good else 1


def _requests(directory: Path) -> Requests:
    rng = np.random.default_rng(0)
    tensors = open_package(directory).manifest.spec.inputs
    sample = {spec.name: spec.random(1, rng) for spec in tensors}
    nested = json.dumps({"inputs": {name: array.tolist() for name, array in sample.items()}}).encode()
    return Requests(
        post(f"/v2/models/{NAME}/infer", *encode(sample)),
        post("/invocations", nested, {"Content-Type": "application/json"}),
    )


def _beside(name: str, directory: Path, request: bytes, seconds: float) -> list[Result]:
    """Ask beside a crowd."""
    with _served(directory) as (server, port):
        quiet = ask(port, request, 1, min(seconds, 10.0), pause_s=PAUSE_S)
        before = _megabytes(server.pid)
        peak = [before]
        crowd = _begun(name, directory, port)
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(server.pid, peak, done))
        watcher.start()
        try:
            time.sleep(1.0)
            beside = ask(port, request, 1, seconds, pause_s=PAUSE_S)
        finally:
            done.set()
            watcher.join()
            crowd.kill()
            crowd.wait()
        back = _back(server.pid, before)
        crowd = _begun(name, directory, port)
        time.sleep(2.0)
        start = time.monotonic()
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_S + TIMEOUT_S)
        ended_s, ended = time.monotonic() - start, server.poll()
        crowd.kill()
        crowd.wait()
    within = TIMES * quiet.ms(99) / 1000
    asked = len(beside.taken) + beside.refused + beside.lost
    share = sum(taken <= within for taken in beside.taken) / max(1, asked)
    print(
        f"{name:>12}: {share:.1%} of {asked} within {1000 * within:.1f} ms ({beside.refused} refused, {beside.lost} lost; quiet p99 "
        f"{quiet.ms(99):.1f} ms, beside {beside.ms(99):.1f}); memory {before:.0f}, at most {max(peak):.0f}, then {back:.0f} MB; "
        f"ended with {ended} after {ended_s:.1f} s",
        flush=True,
    )
    end = records.at_most(f"{name}: end", ended_s, GRACE_S, "s", digits=1)
    return [
        records.at_least(f"{name}: answered in time", 100 * share, 100 * SHARE, "%", digits=1),
        records.at_most(f"{name}: memory above the quiet one", max(*peak, back) - before, MEMORY_MB, "MB", digits=0),
        end.model_copy(update={"met": end.met and ended == 0}),
    ]


def _stopped(directory: Path, request: bytes) -> int:
    """Requests that were sent and reset when the server was stopped."""
    with _served(directory) as (server, port):
        resets: list[Any] = []
        stop = threading.Event()
        clients = [
            threading.Thread(target=_ask_until_refused, args=(port, request, number % 2 == 0, stop, resets))
            for number in range(40)
        ]
        for client in clients:
            client.start()
        time.sleep(1.0)
        server.terminate()
        server.wait(GRACE_S + TIMEOUT_S)
        stop.set()
        for client in clients:
            client.join()
    return len(resets)


def _ask_until_refused(port: int, request: bytes, kept: bool, stop: threading.Event, resets: list[int]) -> None:
    connection: socket.socket | None = None
    while not stop.is_set():
        if connection is None:
            try:
                connection = socket.create_connection(("127.0.0.1", port), 5)
            except OSError:
                return
        try:
            connection.sendall(request)
            answer = connection.recv(1 << 16)
        except OSError:
            resets.append(port)
            return
        if not kept or not answer or b"connection: close" in answer.lower():
            connection.close()
            connection = None


def _begun(name: str, directory: Path, port: int) -> subprocess.Popen[bytes]:
    """A crowd that has begun: on a busy machine its process takes seconds to start."""
    command = [sys.executable, __file__, str(directory), "--crowds", name, "--port", str(port)]
    crowd = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert crowd.stdout is not None
    crowd.stdout.readline()
    return crowd


def _crowd(name: str, port: int, requests: Requests) -> None:
    """Harm a server until this process is killed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def connect() -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(2)
        connection.connect(("127.0.0.1", port))
        return connection

    print("begun", flush=True)
    CROWDS[name](connect, requests)


def _held(connect: Connect, content: bytes, connections: int) -> None:
    """Send the same on many connections, and again on new ones for those that have been ended."""
    everybody: list[socket.socket] = []
    while True:
        while len(everybody) < connections:
            try:
                connection = connect()
            except OSError:
                # It has ended, or is too busy; nobody shall wait for the processor because of that.
                time.sleep(0.1)
                continue
            everybody.append(connection)
            with suppress(OSError):
                connection.sendall(content)
            connection.setblocking(False)
        time.sleep(0.2)
        everybody = [connection for connection in everybody if not _has_ended(connection)]


def _has_ended(connection: socket.socket) -> bool:
    try:
        ended = connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        ended = True
    if ended:
        connection.close()
    return ended


def _unread(connect: Connect, requests: Requests) -> None:
    _held(connect, requests.as_json, 200)


def _pipelining(connect: Connect, requests: Requests) -> None:
    _held(connect, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 700, LOCK_OUT)


def _bodies(connect: Connect, requests: Requests) -> None:
    _held(connect, requests.good[:-1], LOCK_OUT)


def _headers(connect: Connect, requests: Requests) -> None:
    _held(connect, requests.good[:40], LOCK_OUT)


def _connections(connect: Connect, _: Requests) -> None:
    _held(connect, b"", 2000)


def _resets(connect: Connect, requests: Requests) -> None:
    while True:
        with suppress(OSError), connect() as connection:
            connection.sendall(requests.as_json)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        time.sleep(0.002)


CROWDS = {
    "unread": _unread,
    "pipelining": _pipelining,
    "bodies": _bodies,
    "headers": _headers,
    "resets": _resets,
    "connections": _connections,
}


@contextmanager
def _served(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that is ready, and its port."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow_ngraph", "engine", "serve", str(directory), "--name", NAME]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--timeout-s", str(TIMEOUT_S)], stderr=log, env=dict(os.environ)
        )
        try:
            while not _ready(port):
                if server.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read().decode())
                time.sleep(0.1)
            yield server, port
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()


def _ready(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as connection:
        connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.1 200")
    return False


def _megabytes(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def _watch(pid: int, seen: list[float], done: threading.Event) -> None:
    while not done.wait(0.1):
        seen.append(_megabytes(pid))


def _back(pid: int, before: float) -> float:
    """Memory once it is back, or after the time that it has for that."""
    deadline = time.monotonic() + BACK_S
    while _megabytes(pid) > before + MEMORY_MB and time.monotonic() < deadline:
        time.sleep(0.2)
    return _megabytes(pid)


if __name__ == "__main__":
    raise SystemExit(main())
