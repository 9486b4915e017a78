"""What a lane has in memory: an engine for one batch size, and what has been measured of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.measure.statistics import mean_duration
from mlflow_ngraph.study import Study

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
        """How far the interval of the mean duration reaches, as a share of the mean; None with one round."""
        mean = mean_duration(self.durations)
        return float(mean.reach()) if mean.known else None

    def left(self, study: Study) -> int:
        """Repetitions that the study may still take."""
        most = study.adaptive.max_repetitions if study.repetitions == "auto" else study.repetitions
        return most - self.repetitions

    def next_slice(self, study: Study) -> tuple[int, float]:
        """Repetitions and seconds of the next slice at most.

        A cell that has its share, and goes on because others are compared with it, gets whole slices.
        """
        repetitions, seconds = study.slice_repetitions, study.limits.slice_seconds
        left, left_s = self.left(study), study.limits.cell_seconds - self.timed_s
        return (
            min(repetitions, left) if left > 0 else repetitions,
            min(seconds, left_s) if left_s > 0 else seconds,
        )

    def wants_more(self, study: Study, *, accompanying: bool) -> bool:
        """Whether the cell needs another slice, and has repetitions and time left for it.

        Parameters
        ----------
        accompanying : bool
            It may have all that it needs itself, but another lane is compared with it.
        """
        auto = study.repetitions == "auto"
        # A number of repetitions is an order; whoever leaves it to us does not expect to wait for processes mostly.
        spent_s = self.timed_s + (self.loading * self.loading_s if auto else 0.0)
        if self.left(study) <= 0 or spent_s >= study.limits.cell_seconds:
            return False
        if not auto or accompanying or len(self.durations) < study.adaptive.min_rounds:
            return True
        reach = self.reach()
        return reach is None or reach > study.adaptive.within

    @property
    def call_s(self) -> float:
        """Seconds of a repetition, as far as they are known."""
        if self.durations:
            return float(np.median(self.durations[-1])) / 1e9
        return float(self.warm_up.get("call_s", self.first_call_s))

    @property
    def repetitions(self) -> int:
        """Timed repetitions so far."""
        return sum(part.size for part in self.durations)

    @property
    def timed_s(self) -> float:
        """Seconds spent in slices."""
        return sum(part.wall_s for part in self.slices)
