"""A study whose folder is moved away while it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.open_cells import OpenCells
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.processes.child import ChildFailure
from mlflow_ngraph.verdicts import Verdict
from tests.support.script import Script


def test_a_cell_that_cannot_find_its_study_has_no_verdict_and_is_measured_again(tmp_path: Path) -> None:
    place, elsewhere, script = tmp_path / "study", tmp_path / "elsewhere", Script()
    lane = replay.fold(script.events).lanes["identity"].lane
    with Journal(script.write(place)) as writer:
        cells = OpenCells(Session(cast(Any, None), StudyPaths(place), writer, cast(Any, None), 1), {lane.id: [1]})
        place.rename(elsewhere)
        with pytest.raises(JournalError, match=f"{place}: the folder of the study was moved or removed"):
            cells.fail(lane, [1], ChildFailure(Verdict.FAILED, "spec.json is not readable"))
        assert cells.is_open(lane, 1)
    assert not [event for event in journal.read(elsewhere) if event["event"] == "cell_finished"]
