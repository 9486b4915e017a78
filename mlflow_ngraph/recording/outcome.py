"""How a study ended, and where it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_ngraph.errors import NO_GOOD_ANSWER
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """How a study ended."""

    record: StudyRecord
    directory: Path
    """Holds the journal, the engines and the logs."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Where to look at the results in MLflow, by name; empty when nothing was recorded."""
    unrecorded: str = ""
    """Why the tracking server does not have everything, or empty."""

    @property
    def exit_code(self) -> int:
        """0: every cell that is not left out is ok, or built as it was asked for. 3: some are not, or all are left out. 1: the
        tracking server lacks something.
        """
        if self.unrecorded:
            return 1
        cells = [cell for lane in self.record.lanes.values() for cell in lane.cells.values()]
        return 0 if cells and all(cell.verdict in (Verdict.OK, Verdict.BUILT) for cell in cells) else NO_GOOD_ANSWER
