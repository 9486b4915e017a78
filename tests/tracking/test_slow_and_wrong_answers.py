"""Servers that answer byte by byte, or something else than MLflow does, hold nobody up and are named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import requests

from mlflow_ngraph.analysis import listing
from mlflow_ngraph.errors import TrackingError, UnreachableError
from mlflow_ngraph.tracking import answer_limits, connection, plain_http

JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
LONG = JSON % 100_000


@contextmanager
def served(begin: bytes, trickle: bytes = b"") -> Iterator[str]:
    """A server that begins every answer like this, and goes on with one byte after the other for ever."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.wfile.write(begin)
            while trickle:
                time.sleep(0.05)
                self.wfile.write(trickle)

        do_GET = do_POST = answer  # noqa: N815 - the names that the library calls

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # whoever gives up closes the connection
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("begin", [LONG, b"HTTP/1.1 200 OK\r\nX: "], ids=["content", "head"])
def test_an_answer_that_comes_byte_by_byte_is_given_up(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_limits.LimitedAdapter, "_limit_s", lambda *_: 1.0)
    with served(begin, b" ") as uri, pytest.raises(UnreachableError, match="no answer in time") as caught:
        connection.reach(uri)
    assert uri in str(caught.value)
    with served(begin, b" ") as uri, pytest.raises(requests.ReadTimeout, match="did not come to an end"):
        plain_http.session(1).get(uri, timeout=5)


def test_the_limit_leaves_time_for_every_attempt_and_upload() -> None:
    adapter = answer_limits.LimitedAdapter(max_retries=3)
    upload = requests.Request("PUT", "http://h", data=b"x" * 1_000_000).prepare()
    assert adapter._limit_s(upload, 15.0) == 4 * 2 * 15.0 + 10.0


def test_a_download_of_which_nearly_nothing_comes_is_cut() -> None:
    with served(LONG, b" ") as uri, plain_http.session(1).get(uri, timeout=5, stream=True) as answer:
        started = time.monotonic()
        with pytest.raises(requests.RequestException):
            list(answer_limits.pieces(answer, 0.2))
        assert time.monotonic() - started < 3
    content = b"x" * 100_000
    with served(LONG + content) as uri, plain_http.session(1).get(uri, timeout=5, stream=True) as answer:
        assert b"".join(answer_limits.pieces(answer, 0.2)) == content


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    "content", [b"[]", b'"x"', b"null", b'{"experiments": [5]}', b'{"experiments": [{"name": []}]}']
)
def test_an_answer_of_another_shape_is_not_of_mlflow(content: bytes) -> None:
    with served(JSON % len(content) + content) as uri:
        with pytest.raises(TrackingError, match=r"something that is not MLflow's|not answer as MLflow does") as caught:
            listing.find([uri], None)
        assert uri in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_error_of_our_own_is_not_the_server_s() -> None:
    with pytest.raises(AttributeError), connection.talking("http://h", "ask", {}):
        [].items()  # type: ignore[attr-defined]
