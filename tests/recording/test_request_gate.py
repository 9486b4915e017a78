"""Requests are held back between one and the next, and never in the middle."""

from __future__ import annotations

import threading
from typing import Any, cast

from mlflow_ngraph.recording.recorder_child import Gate


class Client:
    """Answers when it is told to."""

    version = "3"

    def __init__(self) -> None:
        self.entered, self.answer = threading.Event(), threading.Event()
        self.done: list[str] = []

    def log(self, text: str) -> None:
        self.entered.set()
        self.answer.wait()
        self.done.append(text)


def test_closing_waits_for_the_request_under_way_and_keeps_the_next_one_out() -> None:
    client, gate = Client(), Gate()
    gated = cast(Any, gate.around(cast(Any, client)))
    assert gated.version == "3"
    first = threading.Thread(target=gated.log, args=("first",))
    first.start()
    client.entered.wait()
    closing = threading.Thread(target=gate.close)
    closing.start()
    assert client.done == []
    client.answer.set()
    for thread in (closing, first):
        thread.join()
    assert client.done == ["first"]
    client.entered.clear()
    second = threading.Thread(target=gated.log, args=("second",))
    second.start()
    assert not client.entered.wait(0.2)
    gate.open()
    second.join()
    assert client.done == ["first", "second"]


def test_who_waits_at_the_gate_is_not_waited_for() -> None:
    client, gate = Client(), Gate()
    client.answer.set()
    gate.close()
    waiting = threading.Thread(target=cast(Any, gate.around(cast(Any, client))).log, args=("later",))
    waiting.start()
    gate.close()
    gate.open()
    waiting.join()
    assert client.done == ["later"]
