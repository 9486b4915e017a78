"""Hundreds of requests that are none: each is told so, and none leaves anything behind."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from mlflow_ngraph_serve.client import encode, infer
from mlflow_ngraph_serve.protocol import LENGTH_HEADER
from tests.support.logged import Logged
from tests.support.servers import free_port
from tests.support.serving import NAME, Process, counted, started

pytestmark = pytest.mark.usefixtures("compilers")

REQUESTS = 400
SETTLED = 150
"""Requests after which a server has all the threads and memory that it will ever need."""
GROWTH_MB = 30
LARGE = 65536
"""Bytes of headers; where there are more, the connection may be reset before the answer is read."""
SHAPE = (1, 10, 16)
STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**40, "", "x" * 5000, "\ud800", [], {}, [[]], [None], {"a": {}}, "NaN", [1] * 1000, "\x00",
)  # fmt: skip


def command(logged: Logged, port: int) -> list[str]:
    package = str(logged.packages["onnxruntime"])
    return ["mlflow_ngraph", "engine", "serve", package, "--name", NAME, "--port", str(port)]


@pytest.fixture(scope="module")
def server(logged: Logged, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("fuzzed")
    port = free_port()
    with started(
        [*command(logged, port), "--timeout-s", "10"], port, folder / "log", {"XDG_CACHE_HOME": str(folder)}
    ) as found:
        yield found


def good() -> dict[str, Any]:
    data = np.zeros(SHAPE).tolist()
    return {"id": "1", "inputs": [{"name": "input", "datatype": "FP32", "shape": list(SHAPE), "data": data}]}


def spoiled_json(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A value in a request is replaced by another one, or taken away."""
    content = good()
    part = rng.choice(["id", "inputs", "input", "name", "datatype", "shape", "size", "data", "number", "outputs"])
    value, (entry,) = rng.choice(STRANGE), content["inputs"]
    if part in ("id", "inputs", "outputs"):
        content[part] = value
    elif part == "input":
        content["inputs"] = [value]
    elif part == "size":
        entry["shape"][rng.randrange(3)] = value
    elif part == "number":
        entry["data"][0][rng.randrange(10)][rng.randrange(16)] = value
    elif rng.random() < 0.3:
        del entry[part]
    else:
        entry[part] = value
    return json.dumps(content).encode(), {"Content-Type": "application/json"}


def spoiled_bytes(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Bytes of a request are changed, cut off or added."""
    body, headers = encode({"input": np.ones(SHAPE, np.float32)})
    changed = bytearray(body)
    way = rng.randrange(4)
    if way == 0:
        for _ in range(rng.randint(1, 20)):
            # Among the numbers any byte would do no harm.
            changed[rng.randrange(int(headers[LENGTH_HEADER]))] = rng.randrange(256)
    elif way == 1:
        del changed[rng.randrange(len(changed)) :]
    elif way == 2:
        changed += rng.randbytes(rng.randint(1, 3000))
    else:
        headers[LENGTH_HEADER] = rng.choice(["-1", "0", "x", "999999999", "1e3", "", str(rng.randrange(len(body)))])
    return bytes(changed), headers


def noise(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    return rng.randbytes(rng.randrange(5000)), {"Content-Type": rng.choice(["", "text/xml", "application/json"])}


def raw(rng: random.Random) -> bytes:
    """What is no HTTP, or breaks off."""
    head = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\n"
    return rng.choice(
        [
            rng.randbytes(rng.randint(1, 300)) + b"\r\n\r\n",
            f"{head}Content-Length: -5\r\n\r\n".encode(),
            f"{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde".encode(),
            f"{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
            f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nabcdeXX".encode(),
            f"{head}Content-Length: 2\r\n\r\n{{}}".encode(),
            f"{head}X: {'y' * 100_000}\r\n\r\n".encode(),
            b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            b"GET \x00 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /v2 HTTP/1.1\r\n\r\n",
        ]
    )


def status_of(url: str, content: bytes) -> int:
    """The status that a server answers bytes with."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.settimeout(20)
        answer = b""
        # A server that has answered may be gone before everything is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
        with contextlib.suppress(ConnectionError):
            while not answer.endswith(b"}\n") and (piece := connection.recv(65536)):
                answer += piece
    if not answer and len(content) > LARGE:
        return 400
    assert answer.startswith(b"HTTP/1.1 "), (content[:200], answer[:200])
    assert b'{"error": ' in answer, (content[:200], answer[-300:])
    return int(answer.split(b" ", 2)[1])


def ask(session: requests.Session, server: Process, rng: random.Random, number: int) -> None:
    """One malformed request, and what is expected of the answer."""
    if number % 8 == 0:
        content = raw(rng)
        status = status_of(server.url, content)
        assert 400 <= status < 500, (status, content[:300])
        return
    body, headers = rng.choice([spoiled_json, spoiled_json, spoiled_bytes, noise])(rng)
    answer = session.post(server.infer, data=body, headers=headers, timeout=30)
    if answer.status_code == 200:
        # A change may have made another good request of it, such as one with another id.
        assert answer.json()["outputs"] if "json" in answer.headers["content-type"] else answer.content
        return
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text, body[:300])
    assert isinstance(answer.json()["error"], str)
    assert answer.text.count("\n") == 1
    assert len(answer.text) < 1000


def test_each_is_refused_and_nothing_stays_behind(server: Process) -> None:
    rng = random.Random(7)
    with requests.Session() as session:
        for number in range(SETTLED):
            ask(session, server, rng, number)
        before = settled(server)
        for number in range(SETTLED, REQUESTS):
            ask(session, server, rng, number)
        after = settled(server)
    assert after["threads"] <= before["threads"], (before, after)
    assert after["files"] <= before["files"] + 2, (before, after)
    assert after["megabytes"] <= before["megabytes"] + GROWTH_MB, (before, after)
    refused = counted(server.url, "ngraph_failures_total", reason="malformed")
    assert refused > 0.6 * REQUESTS
    assert counted(server.url, "ngraph_failures_total", reason="internal") == 0
    assert infer(server.url, NAME, {"input": np.ones(SHAPE, np.float32)})["output"].shape == SHAPE
    assert "Traceback" not in server.log.read_text()


def settled(server: Process) -> dict[str, float]:
    """What the process has, once connections that have ended are closed on both sides."""
    time.sleep(1)
    process = server.system
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "megabytes": process.memory_info().rss / 1e6,
    }


def test_a_signal_ends_the_server_when_all_is_answered(logged: Logged, tmp_path: Path) -> None:
    port = free_port()
    options = ["--max-batch", "4", "--max-delay-ms", "2000"]
    with started([*command(logged, port), *options], port, tmp_path / "log") as server:
        assert server.process.poll() is None
        waiting = subprocess.Popen([sys.executable, "-c", CLIENT, server.url, NAME], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while counted(server.url, "ngraph_queue_samples") == 0:
            assert time.monotonic() < deadline
        server.process.send_signal(signal.SIGTERM)
        out, _ = waiting.communicate(timeout=30)
        assert out == "(1, 10, 16)\n"
        assert server.process.wait(30) == 0
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{server.url}/v2", timeout=5)
        said = server.log.read_text().splitlines()
    assert said[0].startswith(f"listening; the engine is being loaded: {server.url}/v2/models/{NAME}")
    assert any(line.startswith("ready: ") for line in said)
    assert said[-1] == "ended"
    assert not list(tmp_path.glob("ngraph-serve-*"))


CLIENT = """
import sys, numpy as np
from mlflow_ngraph_serve.client import infer
print(infer(sys.argv[1], sys.argv[2], {"input": np.ones((1, 10, 16), np.float32)})["output"].shape)
"""
