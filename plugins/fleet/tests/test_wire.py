from __future__ import annotations

import os

import pytest

from mlflow_ngraph.errors import FleetError
from mlflow_ngraph_fleet import wire
from mlflow_ngraph_fleet.wire import Listener


def test_events_are_told_from_what_is_for_people() -> None:
    log = f"a line\n{wire.line('ended', code=0)}\n@ngraph no json\n"
    assert list(Listener().hear(log)) == ["a line", {"event": "ended", "code": 0}, "@ngraph no json"]


def test_a_log_is_taken_in_as_it_grows() -> None:
    whole = "".join(f"{wire.line('stage', number=number)}\n" for number in range(20))
    listener, heard = Listener(), []
    for end in range(0, len(whole) + 1, 7):
        heard += list(listener.hear(whole[:end]))
    heard += list(listener.hear(whole))
    assert [event["number"] for event in heard if isinstance(event, dict)] == list(range(20))


def test_a_log_that_is_away_for_a_moment_says_nothing_twice() -> None:
    log = f"{wire.line('stage', number=1)}\n"
    listener = Listener()
    assert len(list(listener.hear(log))) == 1
    assert list(listener.hear("")) == []
    assert list(listener.hear(log)) == []


def test_no_samples_travel() -> None:
    event = {"event": "cell_finished", "cell": "c", "lane": "l", "batch": 1, "verdict": "ok", "samples": [1.0] * 1000}
    line = wire.of_study(event)
    assert line is not None
    assert "samples" not in line
    assert wire.of_study({"event": "slice"}) is None


def test_a_journal_arrives_as_it_was() -> None:
    content = os.urandom(100_000)
    lines = list(wire.of_journal(content))
    assert max(map(len, lines)) < 10_000
    listener = Listener()
    assert list(listener.hear("\n".join(lines) + "\n")) == []
    assert listener.journal == content


def test_a_damaged_journal_is_refused() -> None:
    lines = list(wire.of_journal(os.urandom(100_000)))
    del lines[3]
    with pytest.raises(FleetError, match="damaged on its way"):
        list(Listener().hear("\n".join(lines) + "\n"))
