"""Studies whose durations are drawn, so that the truth behind every figure is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.execute.derive import derive
from mlflow_ngraph.execute.record import CellRecord, Lane, LaneRecord, StudyRecord
from mlflow_ngraph.verdicts import Verdict

Durations = NDArray[np.float64]
"""Of repetitions in nanoseconds; shape (rounds, repetitions)."""
PROCESSORS = 2


def derived(
    drawn: Mapping[tuple[str, str, int], Durations], study_id: str = "id", started_at: float = 0.0, noise: str = ""
) -> StudyRecord:
    """The record of a study, with its figures.

    Parameters
    ----------
    drawn : Mapping[tuple[str, str, int], Durations]
        By workload, compiler and batch size; ``identity`` is the baseline.
    noise : str
        What disturbed the machine beside every cell; empty where it was quiet.
    """
    lanes: dict[str, LaneRecord] = {}
    for (workload, compiler, batch), durations in drawn.items():
        name = f"{workload}-{compiler}"
        batches = tuple(size for model, lane, size in drawn if (model, lane) == (workload, compiler))
        lane = lanes.setdefault(name, LaneRecord(_lane(name, workload, compiler, batches)))
        lane.cells[batch] = CellRecord(
            f"{name}-b{batch}", name, batch, Verdict.OK, samples=_slices(durations), noise=noise
        )
    fingerprint = {"digest": "machine", "hardware": {"cpu": {"threads": PROCESSORS}}}
    record = StudyRecord(study_id, "drawn", "host", {}, fingerprint, {}, started_at, started_at, lanes, {})
    derive(record)
    return record


def _lane(name: str, workload: str, compiler: str, batches: Sequence[int]) -> Lane:
    return Lane(
        name, workload, workload, "f", compiler, compiler, {}, "fp32", "sync", PROCESSORS, "host", tuple(batches)
    )


def _slices(durations: Durations) -> list[dict[str, object]]:
    return [
        {"session": 1, "round": number, "wall_s": part.sum() / 1e9, "peak_bytes": 1, "durations_ns": part.tolist()}
        for number, part in enumerate(durations)
    ]
