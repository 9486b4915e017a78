"""The experiment that a verb looks at where none was named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.analysis.listing import FoundRuns, ListedRun
from mlflow_ngraph.analysis.scope import recorded_to_last
from mlflow_ngraph.errors import UsageError
from tests.support.script import Script

URI = "http://tracking"


def found(*names: str) -> FoundRuns:
    """Study runs, each later than the one before."""
    runs = [ListedRun(f"{place:032x}", name, name, "", {}, place) for place, name in enumerate(names)]
    return FoundRuns((), {URI: runs}, {URI: runs})


def kept(found: FoundRuns) -> list[str]:
    return [run.experiment for run in found.runs[URI]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path))
    return tmp_path


def recorded(home: Path, place: int, at: float) -> None:
    """A study of this machine that was recorded as one of the runs."""
    script = Script(study_id=f"s-{place}", at=at).say("study_finished", offline=False)
    script.say("study_recorded", run_id=f"{place:032x}").write(home / "studies" / f"s-{place}")


def test_the_only_experiment_needs_no_word() -> None:
    narrowed = recorded_to_last(found("a", "a"))
    assert (kept(narrowed), narrowed.notes) == (["a", "a"], [])


def test_the_newest_study_of_anybody_decides_where_none_is_of_this_machine() -> None:
    narrowed = recorded_to_last(found("a", "b", "a", "b"))
    assert kept(narrowed) == ["b", "b"]
    assert narrowed.notes == ["looked at experiment 'b', recorded to last; --all-experiments takes in 1 other"]


def test_what_others_record_later_changes_nothing(home: Path) -> None:
    recorded(home, 0, at=100.0)
    recorded(home, 1, at=200.0)
    narrowed = recorded_to_last(found("a", "b", "c", "c"))
    assert kept(narrowed) == ["b"]
    assert "recorded to last from here" in narrowed.notes[0]


def test_what_brings_an_engine_does_not_guess(home: Path) -> None:
    with pytest.raises(UsageError, match="in 2 experiments, none of which was recorded from here: name one"):
        recorded_to_last(found("a", "b"), guess=False)
    recorded(home, 0, at=100.0)
    assert kept(recorded_to_last(found("a", "b"), guess=False)) == ["a"]
