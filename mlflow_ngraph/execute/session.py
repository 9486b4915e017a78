"""What everything shares that works on a study at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_ngraph.execute.child import Warden
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.plan import StudyPlan


@dataclass(frozen=True)
class Session:
    """One go at a study: until it is finished, or interrupted."""

    plan: StudyPlan
    places: Places
    journal: Journal
    warden: Warden
    number: int
    """Counted from 1."""
