"""Whatever a study of a test writes into its journal is what a reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlflow_ngraph.execute import events
from mlflow_ngraph.execute import journal as journals
from mlflow_ngraph.execute.journal import Event, Journal


@pytest.fixture(autouse=True)
def readable_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an event is written that the reader of journals would refuse: what was measured would be out of reach."""
    append = Journal.append

    def checked(journal: Journal, event: str, **fields: Any) -> Event:
        problem = events.wrong(json.loads(journals.line_of({"event": event, "at": 0.0, **fields}, "")[0]))
        assert not problem, f"{event} is written as no reader takes it: {problem}"
        return append(journal, event, **fields)

    monkeypatch.setattr(Journal, "append", checked)
