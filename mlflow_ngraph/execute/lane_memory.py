"""What a lane has in memory: an engine for one batch size, and what has been measured of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.measure.statistics import slice_medians, typical
from mlflow_ngraph.study import Study

FEWEST_ROUNDS = 2
"""Without a second one there is no interval."""
RELOAD_CALLS = 4
"""After loading again: the first inferences place memory, and some runtimes settle their choices in them."""


@dataclass
class Loaded:
    """What is known about the engine that a lane has loaded."""

    batch: int
    problem: str | None
    """Why the engine does not compute the model's function; None or empty where nothing speaks against it."""
    unverified: str
    """Why no engine's outputs could tell; empty where they can."""
    first_call_s: float
    note: str = ""
    """What a reader should know of the verification; empty where there is nothing."""
    warm_up: dict[str, Any] = field(default_factory=dict)
    slices: list[SliceFacts] = field(default_factory=list)

    durations: list[NDArray[np.float64]] = field(default_factory=list)
    """Of each slice, in nanoseconds."""
    requests: int = 1
    """Inferences in flight within one repetition."""
    loading: int = 0
    """How often a fresh process has loaded the engine again."""
    loading_s: float = 0.0
    """What loading it again will take, about, with the calls after it and without imports."""

    def reach(self) -> float | None:
        """How far the interval of its duration reaches, as a share of it; None with one round."""
        duration = typical(slice_medians(self.durations))
        return float(duration.reach()) if duration.known else None

    def slice_s(self, study: Study) -> float:
        """Seconds that its next slice may take.

        Rounds say more than repetitions within one: where the study leaves it to us, the seconds of a slow cell are
        spread over as many rounds as it needs at least, down to one repetition in each. A cell that has its share, and
        goes on because others race with it, gets whole slices.
        """
        most, left_s = study.limits.slice_seconds, study.limits.cell_seconds - self.timed_s
        if left_s > 0:
            most = min(most, left_s)
        if study.repetitions == "auto":
            most = min(most, study.limits.cell_seconds / study.adaptive.min_rounds)
        return most

    def slice_repetitions(self, study: Study) -> int:
        """Repetitions of its next slice, as far as there are seconds for them."""
        left = self.left(study)
        return min(study.slice_length, left) if left > 0 else study.slice_length

    def left(self, study: Study) -> int:
        """Repetitions that the study may still take; below zero where it has taken more."""
        most = study.adaptive.max_repetitions if study.repetitions == "auto" else study.repetitions
        return most - self.repetitions

    def left_s(self, study: Study) -> float:
        """Seconds that the cell may still take; below zero where it has taken more."""
        # A number of repetitions is an order; whoever leaves it to us does not expect to wait for processes mostly.
        waited_s = self.loading * self.loading_s if study.repetitions == "auto" else 0.0
        return study.limits.cell_seconds - self.timed_s - waited_s

    def wants_more(self, study: Study, *, accompanying: bool) -> bool:
        """Whether the cell needs another slice, and has repetitions and time left for it.

        Parameters
        ----------
        accompanying : bool
            It may have all that it needs itself, but another lane is compared with it.
        """
        auto, left_s = study.repetitions == "auto", self.left_s(study)
        if self.left(study) <= 0 or left_s <= 0:
            return False
        if auto and len(self.durations) >= FEWEST_ROUNDS and self.call_s > left_s:
            return False
        if not auto or accompanying or len(self.durations) < study.adaptive.min_rounds:
            return True
        reach = self.reach()
        return reach is None or reach > study.adaptive.within

    @property
    def repetitions(self) -> int:
        """Timed repetitions so far."""
        return sum(part.size for part in self.durations)

    @property
    def call_s(self) -> float:
        """Mean seconds of a repetition so far; before the first, those of a call when it was warm."""
        if not self.repetitions:
            return float(self.warm_up.get("call_s", self.first_call_s))
        return self.timed_s / self.repetitions

    @property
    def timed_s(self) -> float:
        """Seconds spent in slices."""
        return sum(part.wall_s for part in self.slices)
