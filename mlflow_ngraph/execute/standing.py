"""What a cell that is still measured would be recorded with now: the figures that limits are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_ngraph.execute.derive import own_metrics
from mlflow_ngraph.execute.record import CellRecord, EngineRecord, Lane, LaneRecord
from mlflow_ngraph.objectives import Limit
from mlflow_ngraph.verdicts import Verdict

ONLY_GROWING = ("engine_size_mb", "peak_memory_mb")
"""Figures that further rounds make no smaller."""
_P99 = "latency_p99_ms"


def figures(
    lane: Lane, batch: int, engine: EngineRecord, requests: int, slices: Sequence[Mapping[str, Any]], processors: int
) -> dict[str, float]:
    """The metrics of a cell by the slices that it has.

    Parameters
    ----------
    requests : int
        Inferences within a repetition.
    slices : Sequence[Mapping[str, Any]]
        As a worker reports them.
    processors : int
        Of the whole machine.
    """
    cell = CellRecord(
        lane.cell(batch),
        lane.id,
        batch,
        Verdict.OK,
        engine=engine.id,
        ready={"requests": requests},
        samples=[dict(part) for part in slices],
    )
    return own_metrics(LaneRecord(lane, engines=[engine]), cell, processors)


def broken(limits: Sequence[Limit], metrics: Mapping[str, float]) -> Limit | None:
    """The first limit that figures do not keep."""
    return next((limit for limit in limits if not limit.kept_by(metrics.get(limit.metric))), None)


def hopeless(
    limits: Sequence[Limit], metrics: Mapping[str, float], slices: Sequence[Mapping[str, Any]], most: int
) -> Limit | None:
    """The first limit that a cell cannot keep any more, whatever its further rounds say.

    Parameters
    ----------
    most : int
        Repetitions that it may have in the end.
    """
    for limit in limits:
        if limit.bound == "max" and limit.metric in ONLY_GROWING and metrics.get(limit.metric, 0.0) > limit.value:
            return limit
        if limit.bound == "max" and limit.metric == _P99:
            late = sum(duration > limit.value * 1e6 for part in slices for duration in part["durations_ns"])
            # The percentile of all of them lies between two of those that are late already.
            if late - 1 >= 0.01 * (most - 1):
                return limit
    return None
