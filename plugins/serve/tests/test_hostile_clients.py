"""Clients that send slowly, read slowly, come in crowds or through a page of another origin harm themselves alone."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest
import requests

from mlflow_ngraph import process_memory
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph_serve import connection, crowd
from mlflow_ngraph_serve.batching import BatchAnswer
from mlflow_ngraph_serve.client import encode
from mlflow_ngraph_serve.listening import address, listen
from mlflow_ngraph_serve.metrics import Metrics
from mlflow_ngraph_serve.pace import Pace
from mlflow_ngraph_serve.protocol import LENGTH_HEADER, InferenceRequest, Interface
from mlflow_ngraph_serve.server import Server
from mlflow_ngraph_serve.service import RequestLimits, Service
from tests.support.serving import counted

HEAD = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE = 8 << 20
"""Bytes of an answer that no system takes from a server whose client does not read."""


class Echo(Service):
    """A service without an engine: each sample is answered with as many bytes as were asked for."""

    ready = True
    broken = ""
    metadata: ClassVar = {"name": "echo"}
    max_body_bytes = 70_000
    max_requests = 8

    def __init__(self, timeout_s: float, answer_bytes: int) -> None:
        spec = TensorSpec("x", "float32", (BATCH, 4))
        self.interface = Interface("echo", "1", [spec], [spec])
        self.metrics = Metrics([1])
        self.limits = RequestLimits(timeout_s)
        self.pace = Pace()
        self.go = threading.Event()
        self.go.set()
        self._answer = {"x": np.zeros((1, answer_bytes // 4), np.float32)}

    def start(self, *_: object) -> None:
        """Nothing is loaded."""

    def stop(self) -> bool:
        return True

    def submit(self, question: InferenceRequest) -> Future[BatchAnswer]:
        future: Future[BatchAnswer] = Future()

        def compute() -> None:
            self.go.wait(30)
            with suppress(Exception):
                future.set_result(BatchAnswer(self._answer, 0.0, 0.0))

        threading.Thread(target=compute, daemon=True).start()
        return future


class Echoing:
    """A server of an `Echo` in a thread."""

    def __init__(self, timeout_s: float = 20.0, answer_bytes: int = 16) -> None:
        self.service = Echo(timeout_s, answer_bytes)
        self.listening = listen("127.0.0.1", 0)
        self.address = self.listening.getsockname()
        self.url = address(self.listening)
        self.server = Server(self.service, self.listening, lambda _: None)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> Echoing:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.go.set()
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()

    @property
    def connections(self) -> set[Any]:
        return set(self.server._web.server_state.connections)

    @property
    def busy(self) -> int:
        """Connections with a whole question that is not answered yet."""
        return sum(not connection.stalled for connection in self.connections)

    def failures(self, reason: str) -> float:
        return counted(self.url, "ngraph_failures_total", reason=reason)

    def ask(self, **options: Any) -> requests.Response:
        body, headers = encode({"x": np.zeros((1, 4), np.float32)})
        headers |= options.pop("headers", {})
        return requests.post(f"{self.url}/v2/models/echo/infer", data=body, headers=headers, timeout=20, **options)

    @contextmanager
    def sent(self, content: bytes, receive_bytes: int | None = None) -> Iterator[socket.socket]:
        """A connection on which something was sent."""
        with socket.socket() as client:
            if receive_bytes is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            client.settimeout(20)
            client.connect(self.address)
            client.sendall(content)
            yield client


def question() -> bytes:
    """A whole request."""
    body, headers = encode({"x": np.zeros((1, 4), np.float32)})
    lines = [f"{name}: {value}\r\n" for name, value in (headers | {"Content-Length": str(len(body))}).items()]
    return ("POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n" + "".join(lines) + "\r\n").encode() + body


def half_a_body(size: int = 1000) -> bytes:
    return f"{HEAD}Content-Length: {size + 1}\r\n\r\n{' ' * size}".encode()


def rest(client: socket.socket) -> bytes:
    """All that still comes, until the server ends."""
    return b"".join(iter(lambda: client.recv(1 << 20), b""))


def until(condition: Callable[[], object], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_an_answer_that_is_not_taken_keeps_its_place_until_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "max_requests", 1)
    with Echoing(answer_bytes=LARGE) as echo, echo.sent(question(), 4096) as slow:
        until(lambda: counted(echo.url, "ngraph_held_bytes") > LARGE // 2)
        refused = echo.ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert counted(echo.url, "ngraph_requests_total") == 0
        taken = 0
        while taken < LARGE:
            taken += len(slow.recv(1 << 20))
        until(lambda: counted(echo.url, "ngraph_requests_total") == 1)
        assert counted(echo.url, "ngraph_held_bytes") == 0
        assert echo.ask().status_code == 200


def test_an_answer_that_is_never_taken_ends_the_connection() -> None:
    with Echoing(timeout_s=0.5, answer_bytes=LARGE) as echo, echo.sent(question(), 4096):
        until(lambda: echo.failures("unread") == 1)
        until(lambda: counted(echo.url, "ngraph_held_bytes") == 0)
        assert counted(echo.url, "ngraph_requests_total") == 0
        assert echo.failures("gone") == 0


def test_pipelining_clients_that_read_nothing_are_ended() -> None:
    with Echoing(timeout_s=0.5, answer_bytes=LARGE) as echo, echo.sent(question() * 100, 4096):
        until(lambda: echo.failures("unread") == 1)
        until(lambda: counted(echo.url, "ngraph_connections") == 1)


class Lined:
    """A connection of a `Crowd` that says when it goes on."""

    def __init__(self, name: str, gone_on: list[str], pipelines: bool = False) -> None:
        self.name, self.cycle = name, pipelines or None
        self.transport = MagicMock(is_closing=lambda: False)
        self.go_on = lambda: gone_on.append(name)


def test_new_and_pipelining_clients_take_turns_and_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "TURN_S", 60)
    gone_on: list[str] = []

    async def line_up() -> None:
        shared: Any = crowd.Crowd(1.0, 1, lambda _: None)
        assert shared.takes_turn(Lined("alone", gone_on))
        later = [Lined("pipelining", gone_on, pipelines=True), Lined("new", gone_on), Lined("lost", gone_on)]
        assert not any(map(shared.takes_turn, later))
        shared.lost(later[-1])
        for expected in (["new"], ["new", "pipelining"]):
            await asyncio.sleep(0)
            assert gone_on == expected
        await asyncio.sleep(0)
        prompt = Lined("prompt", gone_on)
        shared.under_way.add(prompt)
        assert not shared.takes_turn(Lined("waits", gone_on))
        await asyncio.sleep(0.05)
        assert "waits" not in gone_on
        shared.answered(prompt)
        await asyncio.sleep(0)
        assert gone_on[-1] == "waits"
        await asyncio.sleep(0)
        shared.under_way.add(prompt)
        monkeypatch.setattr(crowd, "TURN_S", 0)
        assert shared.takes_turn(Lined("has waited", gone_on))

    asyncio.run(line_up())


def test_pipelined_requests_are_all_answered_in_order() -> None:
    asked = "".join(f"GET /v2/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n" for number in range(2)).encode()
    asked = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20 + asked
    with Echoing() as echo, echo.sent(asked) as client, echo.sent(asked) as other:
        for one in (client, other):
            answers = rest(one)
            assert answers.count(b"HTTP/1.1 200 ") == 20
            assert answers.count(b"HTTP/1.1 404 ") == 1


def test_clients_that_send_nothing_more_get_their_answers() -> None:
    with Echoing(answer_bytes=LARGE) as echo:
        for asked, answers in ((question(), 1), (question() * 3, 3)):
            with echo.sent(asked) as client:
                client.shutdown(socket.SHUT_WR)
                assert rest(client).count(b"HTTP/1.1 200 ") == answers
        for half in (question()[:40], question()[:-1], b""):
            with echo.sent(half) as client:
                client.shutdown(socket.SHUT_WR)
                started = time.monotonic()
                answer = rest(client)
                assert answer.startswith(b"HTTP/1.1 400 ") if half else not answer
                assert time.monotonic() - started < 5
        with echo.sent(question() + question()[:-1]) as client:
            client.shutdown(socket.SHUT_WR)
            answer = rest(client)
            assert answer.index(b"HTTP/1.1 200 ") < answer.index(b"HTTP/1.1 400 ")
        until(lambda: counted(echo.url, "ngraph_connections") == 1)


def test_the_time_of_a_request_ends_with_the_last_byte_of_its_answer() -> None:
    with Echoing(answer_bytes=LARGE) as echo, echo.sent(question()[:-1], 4096) as slow:
        time.sleep(0.3)
        slow.sendall(question()[-1:])
        time.sleep(0.3)
        taken = 0
        while taken < LARGE:
            taken += len(slow.recv(1 << 20))
        until(lambda: counted(echo.url, "ngraph_requests_total") == 1)
        assert counted(echo.url, "ngraph_request_seconds_sum") >= 0.6


def test_half_sent_bodies_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "max_requests", 1)
    with Echoing() as echo, echo.sent(half_a_body()), echo.sent(half_a_body()), echo.sent(half_a_body()):
        assert echo.ask().status_code == 200


def test_the_oldest_half_sent_body_goes_when_there_are_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "ROOM", 100_000)
    monkeypatch.setattr(Echo, "max_body_bytes", 10_000)
    body = half_a_body(9_800)
    with Echoing() as echo:
        with ExitStack() as stack:
            oldest, second, *_ = [stack.enter_context(echo.sent(body)) for _ in range(11)]
            answer = rest(oldest).decode()
            assert answer.startswith("HTTP/1.1 503 Service Unavailable")
            assert "retry-after: 1" in answer
            assert echo.ask().status_code == 200
            second.sendall(b" ")
            assert second.recv(1000).startswith(b"HTTP/1.1 400 ")
            assert echo.failures("crowded") == 1
        until(lambda: counted(echo.url, "ngraph_held_bytes") == 0)


def test_beyond_the_limit_the_connection_goes_on_which_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MOST", 2)
    with Echoing() as echo:
        echo.service.go.clear()
        with echo.sent(question()) as busy:
            until(lambda: echo.busy == 1)
            with echo.sent(b"") as silent, echo.sent(b"GET /v2 HT") as half:
                assert rest(silent) == b""
                until(lambda: len(echo.connections) == 2)
                with echo.sent(b""):
                    assert rest(half).startswith(b"HTTP/1.1 503 ")
                    echo.service.go.set()
                    assert busy.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert echo.failures("crowded") >= 2


def test_health_and_metrics_answer_where_all_connections_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "MOST", 2)
    with Echoing() as echo:
        echo.service.go.clear()
        with echo.sent(question()) as first, echo.sent(question()) as second:
            until(lambda: echo.busy == len(echo.connections) == 2)
            assert requests.get(f"{echo.url}/v2/health/live", timeout=10).status_code == 200
            until(lambda: len(echo.connections) == 2)
            refused = echo.ask()
            assert (refused.status_code, refused.json()["error"]) == (503, "too many connections")
            until(lambda: len(echo.connections) == 2)
            monkeypatch.setattr(crowd, "SPARE", 0)
            refused = requests.get(f"{echo.url}/v2/health/live", timeout=10)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            echo.service.go.set()
            for client in (first, second):
                assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("size", [1_000_000, 20_000_000])
def test_the_refusal_of_a_large_body_arrives(size: int) -> None:
    with Echoing() as echo:
        for _ in range(5):
            answer = requests.post(
                f"{echo.url}/v2/models/echo/infer",
                data=bytes(size),
                headers={"Content-Type": "application/json"},
                timeout=20,
            )
            assert answer.status_code == 413


def test_a_client_that_resets_while_it_is_answered_is_no_fault_of_the_server() -> None:
    with Echoing(answer_bytes=LARGE) as echo:
        for _ in range(20):
            with echo.sent(question().replace(b"\r\n", b"\r\nConnection: close\r\n", 1)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: echo.ask().status_code == 200)
        assert echo.failures("internal") == 0


def test_habits_of_old_clients_and_proxies_are_answered(capfd: pytest.CaptureFixture[str]) -> None:
    """Empty lines before a request, the host in the target, an offer to speak another protocol."""
    with Echoing() as echo, echo.sent(b"\r\n\r\n") as client:

        def ask(head: str) -> bytes:
            client.sendall(head.encode() + b"\r\n\r\n")
            answer = client.recv(1 << 16)
            return answer if b"\r\n\r\n{" in answer else answer + client.recv(1 << 16)

        assert b" 200 " in ask("\r\nGET /v2 HTTP/1.1\r\nHost: localhost")
        client.sendall(b"\r\n")
        assert b'"name": "echo"' in ask(f"GET {echo.url}/v2/models/echo HTTP/1.1\r\nHost: localhost")
        assert b" 200 " in ask("GET http://localhost HTTP/1.1\r\nHost: localhost")
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
        assert b" 200 " in ask(f"GET /v2 HTTP/1.1\r\nHost: localhost\r\n{upgrade}")
        assert b" 421 " in ask("GET http://evil.example/v2 HTTP/1.1\r\nHost: localhost")
    assert "uvicorn" not in capfd.readouterr().err


def chunked(size: int, count: int) -> bytes:
    chunk = f"{size:x}\r\n{' ' * size}\r\n"
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{chunk * count}0\r\n\r\n".encode()


def test_a_body_in_crumbs_is_refused() -> None:
    """The server would parse a chunk for each byte, and serve nobody meanwhile."""
    with Echoing() as echo:
        for size, count, said in ((1, 1000, b"not JSON"), (1, 50_000, b"over 1000 chunks"), (64, 1060, b"not JSON")):
            with echo.sent(chunked(size, count)) as client:
                client.shutdown(socket.SHUT_WR)
                answer = rest(client)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert said in answer
        assert echo.failures("malformed") == 3


def test_nothing_of_a_refused_body_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it takes many times its bytes, and the frames of an error would hold it."""
    returned = threading.Event()
    monkeypatch.setattr(crowd, "QUIET_S", 0.1)
    monkeypatch.setattr(process_memory, "release_freed", returned.set)
    monkeypatch.setattr(Echo, "max_body_bytes", 1 << 21)
    values = "[]," * 500_000 + "[]"
    body = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,4],"data":[{values}]}}]}}'
    with Echoing() as echo:
        assert echo.ask().status_code == 200
        gc.disable()
        try:
            before = sys.getallocatedblocks()
            with echo.sent(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode()) as client:
                assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
            assert sys.getallocatedblocks() < before + 250_000
        finally:
            gc.enable()
        assert returned.wait(10)


def test_two_lengths_of_the_json_are_refused() -> None:
    lengths = "".join(f"{LENGTH_HEADER}: {length}\r\n" for length in (2, 3))
    with Echoing() as echo, echo.sent(f"{HEAD}{lengths}Content-Length: 3\r\n\r\n{{}} ".encode()) as client:
        assert b"has two values" in rest(client)


def test_headers_that_do_not_come_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_S", 0.2)
    with Echoing() as echo, echo.sent(b"GET /v2 HT") as half, echo.sent(b"") as silent:
        assert rest(half).startswith(b"HTTP/1.1 408 ")
        assert rest(silent) == b""


def test_a_server_that_ends_answers_all_that_has_come_in() -> None:
    """Also what the system has let in before anybody accepted it, and connections on which nothing has come yet."""
    with Echoing() as echo:
        echo.service.go.clear()
        with echo.sent(question()) as computed, echo.sent(b"") as silent, echo.sent(question()[:-1]) as half:
            until(lambda: counted(echo.url, "ngraph_connections") >= 3)
            blocked = threading.Event()
            next(iter(echo.connections)).loop.call_soon_threadsafe(blocked.wait, 10)
            with echo.sent(question()) as waiting:
                echo.server.stop()
                blocked.set()
                time.sleep(0.3)
                silent.sendall(question())
                half.sendall(question()[-1:])
                echo.service.go.set()
                for client in (computed, silent, half, waiting):
                    answer = rest(client)
                    assert answer.startswith(b"HTTP/1.1 200 ")
                    assert b"connection: close" in answer
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(echo.address)
        echo.thread.join(10)
        assert not echo.thread.is_alive()


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:80", "127.0.0.2:80", "[::1]:80"])
def test_a_local_server_is_called_by_local_names(host: str) -> None:
    with Echoing() as echo:
        assert echo.ask(headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "127.evil.example"]
)
def test_a_name_that_a_page_has_led_here_is_refused(host: str) -> None:
    with Echoing() as echo:
        assert echo.ask(headers={"Host": host}).status_code == 421
        assert requests.get(f"{echo.url}/metrics", headers={"Host": host}, timeout=10).status_code == 421
        assert echo.failures("foreign") == 2


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_any_page_can_send_is_refused(kind: str | None) -> None:
    content = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0]}]}
    with Echoing() as echo:
        for sent, status in ((kind, 415), ("application/json; charset=utf-8", 200)):
            answer = requests.post(
                f"{echo.url}/v2/models/echo/infer",
                data=json.dumps(content).encode(),
                headers={"Content-Type": sent} if sent else {},
                timeout=10,
            )
            assert answer.status_code == status
