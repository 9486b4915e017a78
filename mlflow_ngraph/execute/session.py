"""What everything shares that works on a study at the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.study_directories import Places
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.processes.warden import Warden


@dataclass(frozen=True)
class Session:
    """One go at a study: until it is finished, or interrupted."""

    plan: StudyPlan
    places: Places
    journal: Journal
    warden: Warden
    number: int
    """Counted from 1."""
    time: TimeBudget = field(default_factory=TimeBudget)
    """What all of it may take."""
    undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while anything is timed: what works beside the study stands still."""
    standstill: Callable[[], AbstractContextManager[None]] = nullcontext
    """The same for what may stand still for seconds only: entered around each slice."""

    @property
    def forks(self) -> bool:
        """Whether children that are not timed may be forked from one that has imported PyTorch.

        What an import begins with an accelerator does not survive a fork.
        """
        return self.plan.accelerator == "cpu"

    def leave_out(self, lane: Lane, batch: int, reason: str, *, final: bool = False) -> None:
        """Put into the journal that a cell is not measured.

        Parameters
        ----------
        lane : Lane
            Whose cell it is.
        batch : int
            The cell's batch size.
        reason : str
            Why, for readers.
        final : bool
            There is nothing to be gained by measuring it; else there is no time for it in this session.
        """
        self.journal.append("left_out", cell=lane.cell(batch), lane=lane.id, batch=batch, reason=reason, final=final)
