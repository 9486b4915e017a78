"""What a server makes of an engine: throughput and latency with eight clients, beside the engine alone.

``python benchmarks/server_throughput.py [PACKAGE] [--max-p99-ms MS] [--concurrency 8] [--seconds 20]``

Without a package a study of ``--workload`` (resnet50) is measured first, in a directory that is removed in the end. The
engine alone is timed in a process of its own at the batch size that the server has chosen, before and after the server.
Exit code 1: the server reaches less than 90 % of the engine's throughput, its 99th percentile is above the bound that it
was given, or a request failed.

What is fair where everything runs on one machine. The engine uses all processors, so the server and the clients take their
time from it, as a real server does for its part; real clients are elsewhere. So the clients here are one process that only
sends the same bytes again and again and looks at the status of the answer, and its own CPU time is printed. The model has
to be one that is worth a server: where an inference takes less than the transport of its input, the transport is what is
measured. Each request is one image as a binary tensor.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.server import free_port

from mlflow_ngraph.engines.package import Package, open_package
from mlflow_ngraph_serve import speeds
from mlflow_ngraph_serve.client import encode

SHARE = 0.9
"""Of the engine's throughput, that the server has to reach."""
WARM_UP_S = 3.0
ROOM = 2.5
"""The bound, as a multiple of the 99th percentile of half the clients in a batch, where none is given."""
NAME = "measured"


def main() -> int:
    """Measure and compare, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", type=Path)
    parser.add_argument("--workload", default="timm:resnet50")
    parser.add_argument("--compiler", default="openvino")
    parser.add_argument("--max-p99-ms", type=float)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", type=int, metavar="BATCH", help=argparse.SUPPRESS)
    parser.add_argument("--clients", metavar="PORT", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        return _engine(options.package, options.engine, options.seconds)
    if options.clients:
        return _clients(options.package, options.clients, options.concurrency, options.seconds)
    with tempfile.TemporaryDirectory(prefix="server-throughput-") as folder:
        directory = options.package or _study(Path(folder), options.workload, options.compiler)
        return _compare(open_package(directory), options, Path(folder))


def _study(home: Path, workload: str, compiler: str) -> Path:
    """A package that was measured on this machine just now."""
    from mlflow import MlflowClient

    from mlflow_ngraph.runner import run_study
    from mlflow_ngraph.study import parse
    from mlflow_ngraph.tracking import connection, download

    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = connection.connect(uri)
    experiment = client.create_experiment("server", artifact_location=str(home / "artifacts"))
    given = {"name": "server", "workloads": [workload], "compilers": [compiler], "batch_sizes": [1, 2, 4, 8]}
    run_study(parse(given), home=home, tracking_uri=uri, experiment="server")
    found = MlflowClient(uri).search_logged_models([experiment])
    (remote,) = [download.of_model(one, uri) for one in found if one.tags["ngraph.compiler"] == compiler]
    return download.pull(remote, home / "package").directory


def _compare(package: Package, options: argparse.Namespace, folder: Path) -> int:
    bound = options.max_p99_ms or _bound(package, options.concurrency)
    log = folder / "server.log"
    port = free_port()
    serve = [sys.executable, "-m", "mlflow_ngraph", "engine", "serve", str(package.directory), "--name", NAME]
    with log.open("w") as output:
        server = subprocess.Popen([*serve, "--port", str(port), "--max-p99-ms", str(bound)], stderr=output)
    try:
        batch = _chosen(server, log)
        # The server idles meanwhile: it takes nothing from the engine that is timed alone.
        before = _measured(package, options, "--engine", str(batch))
        served = _measured(package, options, "--clients", str(port))
        after = _measured(package, options, "--engine", str(batch))
    finally:
        server.terminate()
        ended = server.wait(120)
    alone = (before["throughput"] + after["throughput"]) / 2
    share = served["throughput"] / alone
    print(log.read_text(), end="")
    print(f"engine alone at batch {batch}: {before['throughput']:.2f} and {after['throughput']:.2f} samples/s")
    print(
        f"server, {options.concurrency} clients: {served['throughput']:.2f} samples/s ({share:.1%}), p50 "
        f"{served['p50_ms']:.1f} ms, p99 {served['p99_ms']:.1f} ms (bound {bound:.1f}), {served['failures']} failures; the "
        f"clients used {served['client_cores']:.1%} of a processor"
    )
    good = share >= SHARE and served["p99_ms"] <= bound and served["failures"] == 0 and ended == 0
    print("ok" if good else "NOT ok")
    return 0 if good else 1


def _bound(package: Package, concurrency: int) -> float:
    """A bound that a batch of half the clients keeps, so that one half is computed while the other is on its way."""
    found, problem = speeds.recorded(package.manifest)
    fitting = [size for size in found if size <= max(1, concurrency // 2)]
    if not fitting:
        raise SystemExit(f"give --max-p99-ms: {problem or 'there are no figures for small batches'}")
    return ROOM * 1000 * found[max(fitting)].p99_s


def _chosen(server: subprocess.Popen[bytes], log: Path) -> int:
    """The batch size that the server says it has chosen, once it is ready."""
    while "ready: " not in log.read_text():
        if server.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.1)
    found = re.search(r"batches of at most (\d+)", log.read_text())
    assert found is not None
    return int(found[1])


def _measured(package: Package, options: argparse.Namespace, *role: str) -> dict[str, Any]:
    command = [sys.executable, __file__, str(package.directory), *role]
    command += ["--concurrency", str(options.concurrency), "--seconds", str(options.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _engine(directory: Path, batch: int, seconds: float) -> int:
    """The engine alone, as a study times it."""
    from mlflow_ngraph import load_model, process_memory
    from mlflow_ngraph.measure import loop

    process_memory.keep_freed()
    with load_model(directory) as engine:
        rng = np.random.default_rng(0)
        bound = engine.bind([spec.random(batch, rng) for spec in engine.inputs], batch)
        engine.call(lambda: loop.take_slice(bound.call, 1_000_000, WARM_UP_S))
        taken = engine.call(lambda: loop.take_slice(bound.call, 1_000_000, seconds))
    print(json.dumps({"throughput": batch * len(taken.durations_ns) / (sum(taken.durations_ns) / loop.NS)}))
    return 0


def _clients(directory: Path, port: int, concurrency: int, seconds: float) -> int:
    """Clients in one process: each sends its request again as soon as it has the answer."""
    rng = np.random.default_rng(0)
    tensors = open_package(directory).manifest.spec.inputs
    body, headers = encode({tensor.name: tensor.random(1, rng) for tensor in tensors})
    lines = [f"POST /v2/models/{NAME}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    begin = time.perf_counter() + WARM_UP_S
    taken: list[float] = []
    failures: list[bytes] = []
    threads = [
        threading.Thread(target=_client, args=(port, request, begin, begin + seconds, taken, failures))
        for _ in range(concurrency)
    ]
    cpu, start = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = (time.process_time() - cpu) / (time.perf_counter() - start)
    latency = np.sort(np.array(taken)) * 1000
    found = {
        "throughput": len(taken) / seconds,
        "p50_ms": float(np.percentile(latency, 50)) if taken else 0.0,
        "p99_ms": float(np.percentile(latency, 99, method="higher")) if taken else 0.0,
        "failures": len(failures),
        "client_cores": used,
    }
    for failure in failures[:3]:
        print(failure, file=sys.stderr)
    print(json.dumps(found))
    return 0


def _client(port: int, request: bytes, begin: float, end: float, taken: list[float], failures: list[bytes]) -> None:
    """Latencies of the answers that came between ``begin`` and ``end``."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (start := time.perf_counter()) < end:
            connection.sendall(request)
            answer = _answer(connection)
            stop = time.perf_counter()
            if not answer.startswith(b"HTTP/1.1 200"):
                failures.append(answer)
                if b"connection: close" in answer.lower():
                    return
            elif begin <= stop < end:
                taken.append(stop - start)


def _answer(connection: socket.socket) -> bytes:
    """A whole answer."""
    content = bytearray()
    while (head := content.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(1 << 18)
        if not piece:
            return bytes(content)
        content += piece
    length = int(re.search(rb"content-length: (\d+)", content[:head].lower())[1])  # type: ignore[index] # ours has one
    while len(content) < head + 4 + length:
        content += connection.recv(1 << 18)
    return bytes(content)


if __name__ == "__main__":
    raise SystemExit(main())
