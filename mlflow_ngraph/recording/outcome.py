"""Outcome: the record of an ended study, its directory, its links in MLflow, remarks and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_ngraph.errors import NO_GOOD_ANSWER
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """The end of a study."""

    record: StudyRecord
    directory: Path
    """Directory of the journal, the engines and the logs."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Links to the results in MLflow, by name; empty when nothing was recorded."""
    unrecorded: str = ""
    """Reason why the tracking server lacks something; empty when it does not."""
    notes: tuple[str, ...] = ()
    """Remarks about the recording, a line each."""

    @property
    def exit_code(self) -> int:
        """0: every cell that is not left out is ok, or built as requested. 3: some are not, or all are left out. 1: the
        tracking server lacks something.
        """
        if self.unrecorded:
            return 1
        cells = [cell for lane in self.record.lanes.values() for cell in lane.cells.values()]
        return 0 if cells and all(cell.verdict in (Verdict.OK, Verdict.BUILT) for cell in cells) else NO_GOOD_ANSWER
