"""Listening sockets."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph_serve.listening import listen, refuse_newcomers


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_nobody_comes_in_between_the_last_connection_and_the_end_of_the_socket(host: str) -> None:
    try:
        listening = listen(host, 0)
    except UsageError:
        pytest.skip(f"there is no {host}")
    where = listening.getsockname()[:2]
    with closing(listening), socket.create_connection(where, 5) as early:
        refuse_newcomers(listening)
        # Whoever came before is accepted, and is heard.
        early.sendall(b"question")
        accepted, _ = listening.accept()
        with accepted:
            accepted.settimeout(5)
            assert accepted.recv(16) == b"question"
            accepted.sendall(b"answer")
            assert early.recv(16) == b"answer"
        with pytest.raises(TimeoutError):
            socket.create_connection(where, 0.3)
        with pytest.raises(BlockingIOError):
            listening.accept()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, 5)
