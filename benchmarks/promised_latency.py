"""Is a promised latency kept for what is answered, and does the rest get a 503 that arrives?

``python benchmarks/promised_latency.py PACKAGE [--bounds 5,20,100] [--clients 1,10,50,200] [--seconds 10] [--patient]``

For each bound ``mlflow-ngraph engine serve`` is started with ``--max-p99-ms``, and asked by crowds of clients, each over one
connection that it keeps, with its next request as soon as it has the answer: nobody is as impatient as that. With
``--patient`` they wait as long as ``Retry-After`` says. Time counts at the client, from before the request is sent until
all of the answer is there. The clients are one process that sleeps until something comes.

Exit code 1: the 99th percentile of what was answered is above the bound, nothing was answered, or a request got neither an
answer nor a 503 with ``Retry-After``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support import records
from support.records import Result
from support.server import free_port

from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph_serve.client import encode

NAME = "promised"
WARM_UP_S = 2.0
"""Before anything counts: the server learns how long requests take."""


def main() -> int:
    """Try every bound with every crowd and print a table, or be a crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--bounds", default="5,20,100")
    parser.add_argument("--clients", default="1,10,50,200")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--patient", action="store_true")
    parser.add_argument("--crowd", metavar="PORT", type=int, help=argparse.SUPPRESS)
    records.add_option(parser)
    options = parser.parse_args()
    if options.crowd:
        print(json.dumps(crowd(options.package, options.crowd, int(options.clients), options.seconds, options.patient)))
        return 0
    print(f"{'bound':>7} {'clients':>7} {'answers/s':>9} {'p50 ms':>7} {'p99 ms':>7} {'503/s':>7} {'broken':>6}")
    good, figures = True, []
    for bound in options.bounds.split(","):
        kept, worst_ms = _try(options, float(bound))
        good &= kept
        bar = f"at most {bound} ms, the rest 503"
        figures.append(
            Result(name=f"largest p99, bound {bound} ms", value=round(worst_ms, 1), unit="ms", bar=bar, met=kept)
        )
    print("ok" if good else "NOT ok")
    records.keep(options, "promised_latency", *figures)
    return 0 if good else 1


def _try(options: argparse.Namespace, bound: float) -> tuple[bool, float]:
    """Whether a bound is kept with every crowd, and the largest 99th percentile."""
    port, good, worst_ms = free_port(), True, 0.0
    serve = [sys.executable, "-m", "mlflow_ngraph", "engine", "serve", str(options.package), "--name", NAME]
    with tempfile.TemporaryDirectory(prefix="promised-latency-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as output:
            server = subprocess.Popen([*serve, "--port", str(port), "--max-p99-ms", f"{bound:g}"], stderr=output)
        try:
            while "ready: " not in log.read_text():
                if server.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            for clients in options.clients.split(","):
                own = [sys.executable, __file__, str(options.package), "--crowd", str(port), "--clients", clients]
                own += ["--seconds", str(options.seconds), *(["--patient"] if options.patient else [])]
                found = json.loads(subprocess.run(own, stdout=subprocess.PIPE, check=True).stdout)
                kept = found["answers"] > 0 and found["p99_ms"] <= bound and not found["broken"]
                good &= kept
                worst_ms = max(worst_ms, found["p99_ms"])
                print(
                    f"{bound:7g} {clients:>7} {found['answers']:9.1f} {found['p50_ms']:7.2f} {found['p99_ms']:7.2f} "
                    f"{found['refused']:7.1f} {found['broken']:6}{'' if kept else '  NOT kept'}",
                    flush=True,
                )
        finally:
            server.terminate()
            server.wait(120)
    return good, worst_ms


@dataclass
class Client:
    """A connection, and what has come of the answer to its request."""

    connection: socket.socket
    sent: float = 0.0
    came: bytes = b""


def crowd(package: Path, port: int, count: int, seconds: float, patient: bool) -> dict[str, float]:
    """Ask for some seconds, and return rates of answers and refusals, and percentiles of the answers' times."""
    rng = np.random.default_rng(0)
    inputs = open_package(package).manifest.spec.inputs
    body, headers = encode({spec.name: spec.random(1, rng) for spec in inputs})
    lines = [f"POST /v2/models/{NAME}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    request = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body
    waiting = selectors.DefaultSelector()
    later: list[tuple[float, int, Client]] = []
    begin = time.perf_counter() + WARM_UP_S
    taken: list[float] = []
    refused = broken = 0

    def ask(client: Client) -> None:
        client.sent, client.came = time.perf_counter(), b""
        client.connection.sendall(request)

    for number in range(count):
        client = Client(socket.create_connection(("127.0.0.1", port)))
        client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(client.connection, selectors.EVENT_READ, client)
        heapq.heappush(later, (time.perf_counter(), number, client))
    while (now := time.perf_counter()) < begin + seconds:
        while later and later[0][0] <= now:
            ask(heapq.heappop(later)[2])
        for key, _ in waiting.select(max(0.0, later[0][0] - now) if later else 0.1):
            client = key.data
            piece = client.connection.recv(1 << 18)
            client.came += piece
            head, end, rest = client.came.partition(b"\r\n\r\n")
            if piece and (not end or len(rest) < int(re.search(rb"content-length: (\d+)", head.lower())[1])):  # type: ignore[index]
                continue
            stop = time.perf_counter()
            retry = re.search(rb"retry-after: (\d+)", head.lower())
            if head.startswith(b"HTTP/1.1 200"):
                taken += [stop - client.sent] if stop >= begin else []
            elif head.startswith(b"HTTP/1.1 503") and retry:
                refused += stop >= begin
            else:
                broken += 1
            if not piece or b"connection: close" in head.lower():
                waiting.unregister(client.connection)
                client.connection.close()
                client.connection = socket.create_connection(("127.0.0.1", port))
                waiting.register(client.connection, selectors.EVENT_READ, client)
            heapq.heappush(later, (stop + (int(retry[1]) if retry and patient else 0), id(client), client))
    latency = 1000 * np.array(taken or [np.nan])
    return {
        "answers": len(taken) / seconds,
        "p50_ms": float(np.percentile(latency, 50)),
        "p99_ms": float(np.percentile(latency, 99, method="higher")),
        "refused": refused / seconds,
        "broken": broken,
    }


if __name__ == "__main__":
    raise SystemExit(main())
