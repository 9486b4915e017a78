"""Lines whose checks fit, as anybody can write them: what no study writes is refused with file and line, and never computed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import replay, timing_history
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph_archives.export import export
from tests.support.script import Script

FORGED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("slice", {"durations_ns": "many"}),
    ("slice", {"durations_ns": []}),
    ("slice", {"durations_ns": [0, 1]}),
    ("slice", {"durations_ns": [True]}),
    ("slice", {"durations_ns": [10**40]}),
    ("slice", {"durations_ns": [[1, 2], [3, 4]]}),
    ("slice", {"machine": 5}),
    ("slice", {"machine": {"seconds": "long", "cpu_s": 1.0, "counted": {}}}),
    ("slice", {"session": None}),
    ("slice", {"peak_bytes": -1}),
    ("cell_ready", {"flags": "all"}),
    ("cell_ready", {"parity": {"cosine": "x"}}),
    ("cell_ready", {"requests": 0}),
    ("cell_finished", {"verdict": "splendid"}),
    ("cell_finished", {"batch": 0}),
    ("cell_finished", {"warm_up": {"call_s": 0.0}}),
    ("engine_built", {"stages": {"compile": "long"}}),
    ("engine_built", {"stages": {"compile": float("inf")}}),
    ("engine_built", {"files": {"model": 5}}),
    ("engine_built", {"batch_sizes": []}),
    ("study_started", {"lanes": [{"id": 5}]}),
    ("study_started", {"study_id": ["a"]}),
    ("study_started", {"fingerprint": {"hardware": {"cpu": {"threads": 0}}}}),
)


def written(folder: Path, kind: str, changed: dict[str, Any]) -> Path:
    """A study with one event that holds something else."""
    script = Script()
    script.built("identity", [1, 4])
    for lane in ("identity", "fast"):
        script.measured(lane, 1, 10.0)
    next(event for event in script.events if event["event"] == kind).update(changed)
    return script.write(folder / "studies" / "s-1")


@pytest.mark.parametrize(("kind", "changed"), FORGED, ids=lambda value: str(value)[:60])
def test_what_no_study_writes_is_refused_with_its_line(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    directory = written(tmp_path, kind, changed)
    with pytest.raises(JournalError) as error:
        replay.load(directory)
    said = str(error.value)
    assert "journal.jsonl: line " in said
    assert repr(kind) in said
    assert "\n" not in said
    with pytest.raises(JournalError, match=r"journal\.jsonl: line "):
        export([directory], tmp_path / "study.tar")


@pytest.mark.parametrize(("kind", "changed"), FORGED, ids=lambda value: str(value)[:60])
def test_how_long_things_take_is_not_learned_from_it(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, kind, changed)
    known = timing_history.learn(tmp_path)
    assert known.building("identity", "identity", [1, 4], lambda flags: 5.0).seconds > 0
    assert known.preparing("timm:m", [1, 4], timing_history.Duration.of(7.0)).seconds > 0
    assert known.call_s("identity", 2) is None or known.call_s("identity", 2)


def test_a_figure_that_lacks_what_it_follows_from_is_refused(tmp_path: Path) -> None:
    script = Script()
    script.measured("identity", 1, 10.0)
    del next(event for event in script.events if event["event"] == "slice")["durations_ns"]
    with pytest.raises(JournalError, match=r"journal\.jsonl: has samples that no study measures: KeyError"):
        replay.load(script.write(tmp_path / "s-1"))


def test_sync_refuses_it(tmp_path: Path, sqlite_uri: str) -> None:
    with pytest.raises(JournalError, match="durations_ns"):
        sync_study(written(tmp_path, "slice", {"durations_ns": [1.5]}), tracking_uri=sqlite_uri)
