"""Session: plan, paths, journal, time budget and warden of one run of a study, for all parts that share them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.processes.warden import Warden


@dataclass(frozen=True)
class Session:
    """One run of a study, until it finishes or is interrupted."""

    plan: StudyPlan
    paths: StudyPaths
    journal: Journal
    warden: Warden
    number: int
    """Counted from 1."""
    time: TimeBudget = field(default_factory=TimeBudget)
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while anything is timed: suspends work outside the study."""
    standstill: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered around each slice: suspends work that may pause for seconds only."""

    @property
    def forks(self) -> bool:
        """Return True when untimed children may be forked from a process that has imported PyTorch.

        The state of an accelerator's runtime does not survive a fork.
        """
        return self.plan.accelerator == "cpu"

    def require_folder(self) -> None:
        """Check that the study is still in its place before a failure is blamed on an engine.

        Raises `JournalError` if its folder was moved or removed.
        """
        if not self.paths.root.is_dir():
            raise JournalError(
                f"{self.paths.root}: the folder of the study was moved or removed: put it back, then go on with --resume"
            )

    def leave_out(self, lane: Lane, batch: int, reason: str, *, final: bool = False) -> None:
        """Write to the journal that a cell is not measured.

        ``final``: nothing would be gained by measuring it; else this session has no time for it.
        """
        self.journal.append("left_out", cell=lane.cell(batch), lane=lane.id, batch=batch, reason=reason, final=final)
