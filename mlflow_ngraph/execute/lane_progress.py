"""Loaded: the loaded engine of a lane, its measurements so far, and the repetitions and time that it still needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.measure.stability import SliceFacts, stops
from mlflow_ngraph.measure.statistics import slice_medians, typical
from mlflow_ngraph.study import Study

ROUNDS_OF_INTERVAL = 2
"""An interval needs two rounds."""
RELOAD_CALLS = 4
"""Calls after reloading: the first inferences place memory, and some runtimes choose their kernels in them."""


@dataclass
class Loaded:
    """State of the engine that a lane has loaded."""

    batch: int
    problem: str | None
    """Reason why the engine is wrong; None or empty when it is not."""
    unverified: str
    """Reason why no engine of the model can be verified; empty when it can."""
    first_call_s: float
    note: str = ""
    """Remark about the verification."""
    warm_up: dict[str, Any] = field(default_factory=dict)
    slices: list[SliceFacts] = field(default_factory=list)

    durations: list[NDArray[np.float64]] = field(default_factory=list)
    """Durations of each slice in nanoseconds."""
    requests: int = 1
    """Inferences in flight within one repetition."""
    loading: int = 0
    """Fresh processes that have loaded the engine again."""
    loading_s: float = 0.0
    """Expected seconds to reload it, with the calls after it and without imports."""

    def reach(self) -> float | None:
        """Relative margin of error of its duration; None with one round."""
        duration = typical(slice_medians(self.durations))
        return float(duration.reach()) if duration.known else None

    def slice_s(self, study: Study) -> float:
        """Time limit of the next slice in seconds.

        Rounds tell more than repetitions within one. With ``repetitions: auto`` the seconds of a slow cell are spread
        over the fewest rounds that it needs, down to one repetition in each. A cell that continues because others race
        with it gets whole slices.
        """
        most, left_s = study.limits.slice_seconds, study.limits.cell_seconds - self.timed_s
        if left_s > 0:
            most = min(most, left_s)
        if study.repetitions == "auto":
            most = min(most, study.limits.cell_seconds / study.adaptive.min_rounds)
        return most

    def slice_repetitions(self, study: Study) -> int:
        """Repetitions of the next slice."""
        left = self.remaining(study)
        return min(study.slice_length, left) if left > 0 else study.slice_length

    def remaining(self, study: Study) -> int:
        """Remaining repetitions; negative after an overrun."""
        most = study.adaptive.max_repetitions if study.repetitions == "auto" else study.repetitions
        return most - self.repetitions

    def remaining_s(self, study: Study) -> float:
        """Remaining seconds of the cell; negative after an overrun."""
        # A fixed number of repetitions is always measured; with auto, loading must not take most of the time.
        waited_s = self.loading * self.loading_s if study.repetitions == "auto" else 0.0
        return study.limits.cell_seconds - self.timed_s - waited_s

    def wants_more(self, study: Study, *, accompanying: bool) -> bool:
        """Return True when the cell needs another slice and has repetitions and time left.

        ``accompanying``: the slice is for the comparison with another lane.
        """
        auto, left_s = study.repetitions == "auto", self.remaining_s(study)
        if self.remaining(study) <= 0 or left_s <= 0:
            return False
        if auto and len(self.durations) >= ROUNDS_OF_INTERVAL and self.call_s > left_s:
            return False
        if not auto or accompanying or len(self.durations) < study.adaptive.min_rounds:
            return True
        reach = self.reach()
        return reach is None or reach > study.adaptive.within

    @property
    def remarks(self) -> str:
        """Remarks about the verification and about stops."""
        return "; ".join(filter(None, (self.note, stops(self.slices))))

    @property
    def repetitions(self) -> int:
        return sum(part.size for part in self.durations)

    @property
    def call_s(self) -> float:
        """Mean seconds of a repetition; before the first, those of a warm call."""
        if not self.repetitions:
            return float(self.warm_up.get("call_s", self.first_call_s))
        return self.timed_s / self.repetitions

    @property
    def timed_s(self) -> float:
        return sum(part.wall_s for part in self.slices)
