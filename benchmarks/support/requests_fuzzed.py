"""An engine behind HTTP, asked with requests that are nearly right: JSON, binary tensors, and what is no HTTP at all."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.mutation import altered, replaced, with_doubled_key

NAME = "engine"
_START_S, _ANSWER_S, _MOST_ANSWER = 120.0, 15.0, 1 << 20


@dataclass(frozen=True)
class Asked:
    """A server that is asked."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def memory_mb(self) -> float:
        """What it has of the machine's memory."""
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def answer(self, request: bytes, framed: bool) -> tuple[str, bool]:
        """What is wrong with how it answers, or nothing; and whether the engine has computed.

        Parameters
        ----------
        framed : bool
            Whether as much is sent as the request says; else nothing more is promised to come.
        """
        if self.process.poll() is not None:
            return f"the server has ended with {self.process.returncode}", False
        said = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_S) as connection:
                connection.settimeout(_ANSWER_S)
                connection.sendall(request)
                if not framed:
                    connection.shutdown(socket.SHUT_WR)
                while len(said) < _MOST_ANSWER and (piece := connection.recv(1 << 16)):
                    said += piece
        except TimeoutError:
            return f"no answer within {_ANSWER_S:g} s", False
        except OSError:  # it has closed the connection
            pass
        status = said.partition(b"\r\n")[0]
        return "status 500" if b" 500 " in status else "", b" 200 " in status


@contextmanager
def server(package: Path, folder: Path) -> Iterator[Asked]:
    """``mlflow-ngraph engine serve`` of a package."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "serve.log"
    command = [
        sys.executable,
        "-m",
        "mlflow_ngraph",
        "engine",
        "serve",
        str(package),
        "--name",
        NAME,
        "--port",
        str(port),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--timeout-s", "5"], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _START_S
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield Asked(process, port, log)
    finally:
        process.terminate()
        process.wait(60)


def _ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(200)
    except OSError:
        return False


class Requests:
    """Makes requests for an engine.

    Parameters
    ----------
    package : Path
        Of the engine.
    """

    def __init__(self, package: Path) -> None:
        from mlflow_ngraph_serve.client import encode

        spec = json.loads((package / "manifest.json").read_bytes())["spec"]
        (wanted,) = spec["inputs"]
        shape = [1 if size == "batch" else size for size in wanted["shape"]]
        array = np.zeros(shape, wanted["dtype"])
        entry = {"name": wanted["name"], "datatype": "FP32", "shape": shape, "data": array.tolist()}
        self._json: dict[str, Any] = {"id": "1", "inputs": [entry], "outputs": [{"name": spec["outputs"][0]["name"]}]}
        self._binary, self._headers = encode({wanted["name"]: array})

    def one(self, rng: random.Random) -> tuple[bytes, bool]:
        """A request as it goes over the line, and whether it has the length that it says."""
        headers: dict[str, str] = {"Content-Type": "application/json"}
        chance = rng.random()
        if chance < 0.4:
            body = json.dumps(replaced(self._json, rng)).encode("utf-8", "surrogatepass")
        elif chance < 0.5:
            body = with_doubled_key(json.dumps(self._json), rng).encode("utf-8", "surrogatepass")
        elif chance < 0.6:
            body = altered(json.dumps(self._json).encode(), rng)
        else:
            body, headers = self._binary, dict(self._headers)
            if chance < 0.8:
                body = altered(body, rng)
            else:
                length = int(headers["Inference-Header-Content-Length"])
                head = json.dumps(replaced(json.loads(body[:length]), rng)).encode("utf-8", "surrogatepass")
                body = head + body[length:]
                headers["Inference-Header-Content-Length"] = str(len(head))
            if rng.random() < 0.2:
                name = "Inference-Header-Content-Length"
                headers[name] = rng.choice(("", "-1", "0", "9" * 30, "1e3", str(len(body)), "\u0661", "+5"))
        path = rng.choice((f"/v2/models/{NAME}/infer", f"/v2/models/{NAME}/versions/1/infer"))
        request = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
        request += [f"{name}: {value}" for name, value in headers.items()]
        whole = "\r\n".join(request).encode() + b"\r\n\r\n" + body
        return (altered(whole, rng), False) if rng.random() < 0.2 else (whole, True)
