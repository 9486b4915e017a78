"""An answer from the cache comes with the notes that belong to it, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import user_cache
from mlflow_ngraph.analysis import answer_cache
from mlflow_ngraph.analysis.listing import FoundRuns


@dataclass(frozen=True)
class Number:
    value: int

    def to_plain(self) -> dict[str, Any]:
        return {"value": self.value}


def test_a_note_about_the_question_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "directory", lambda name: tmp_path / name)
    (tmp_path / "answers").mkdir()
    computed = []
    for _ in range(3):
        found = FoundRuns((), {}, notes=["looked at experiment 'a'"])

        def compute(found: FoundRuns = found) -> Number:
            found.notes.append("two models have one name")
            computed.append(1)
            return Number(7)

        answer = answer_cache.answer({"metric": "throughput"}, found, compute, lambda plain: Number(**plain))
        assert answer == Number(7)
        assert found.notes == ["looked at experiment 'a'", "two models have one name"]
    assert computed == [1]
