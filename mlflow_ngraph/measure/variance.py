"""Variance components: scatter between processes, slices and repetitions.

Kalibera and Jones, Rigorous benchmarking in reasonable time (ISMM 2013), for unequal numbers: a slow slice has fewer
repetitions than a quick one. The components are those of the analysis of variance of nested random effects (Searle,
Casella and McCulloch, Variance Components, 1992, chapter 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.estimates import Array

Level = Literal["repetition", "slice", "process"]


@dataclass(frozen=True)
class Component:
    """Scatter that one level adds to durations."""

    deviation: float
    """Standard deviation between its units, relative to a duration; 0 when the levels below explain it."""
    of_error: float
    """Its fraction of the variance of the cell's mean."""
    units: int
    """Number of processes, slices or repetitions."""


def components(
    durations: Array, slices: NDArray[np.int64], processes: NDArray[np.int64]
) -> dict[Level, Component | None]:
    """Estimate the scatter of each level; None when it cannot be told from the one above.

    Slices with a process each scatter as processes do: both together are ``process``, and ``slice`` is None. One
    process gives no ``process``, one slice only ``repetition``.

    Parameters
    ----------
    durations : Array
        Of repetitions, in any unit; shape (repetitions,). Estimates are relative, on the logarithmic scale.
    slices, processes : NDArray[np.int64]
        Slice and process of each repetition; a slice belongs to one process. Shape (repetitions,).

    Raises
    ------
    ValueError
        There are no repetitions, or a duration is not positive.
    """
    if not durations.size or not np.all(durations > 0):
        raise ValueError("components of a variance need repetitions, and positive durations")
    logs = np.log(durations)
    _, slice_of = np.unique(slices, return_inverse=True)
    _, process_of = np.unique(processes, return_inverse=True)
    in_slice = np.bincount(slice_of).astype(float)
    in_process = np.bincount(process_of).astype(float)
    # The process of each slice, from any of its repetitions.
    owner = np.empty(in_slice.size, np.int64)
    owner[slice_of] = process_of
    total = float(logs.size)
    slice_means = np.bincount(slice_of, logs) / in_slice
    process_means = np.bincount(process_of, logs) / in_process
    # Mean squares within slices, between the slices of a process, and between processes.
    within = _mean_square(logs - slice_means[slice_of], np.ones_like(logs), total - in_slice.size)
    between_slices = _mean_square(slice_means - process_means[owner], in_slice, in_slice.size - in_process.size)
    between_processes = _mean_square(process_means - logs.mean(), in_process, in_process.size - 1)
    squares = np.bincount(owner, in_slice**2) / in_process
    own = 0.0 if within is None else within
    slice_part: float | None = None
    if between_slices is not None:
        per_slice = (total - squares.sum()) / (in_slice.size - in_process.size)
        slice_part = max(0.0, (between_slices - own) / per_slice)
    process_part: float | None = None
    if between_processes is not None:
        per_slice = (squares.sum() - (in_slice**2).sum() / total) / (in_process.size - 1)
        per_process = (total - (in_process**2).sum() / total) / (in_process.size - 1)
        process_part = max(0.0, (between_processes - own - per_slice * (slice_part or 0.0)) / per_process)
    # A unit's weight in the mean is its share of the repetitions.
    in_mean: dict[Level, tuple[float | None, float, int]] = {
        "repetition": (within, own / total, logs.size),
        "slice": (slice_part, (slice_part or 0.0) * (in_slice**2).sum() / total**2, in_slice.size),
        "process": (process_part, (process_part or 0.0) * (in_process**2).sum() / total**2, in_process.size),
    }
    error = sum(added for _, added, _ in in_mean.values())
    return {
        level: None if part is None else Component(float(np.sqrt(part)), float(added / error) if error else 0.0, units)
        for level, (part, added, units) in in_mean.items()
    }


def slice_length(repetition: float, between: float, overhead_s: float, repetition_s: float) -> float:
    """Optimal number of repetitions in a slice, for the mean in a given time (Kalibera and Jones, section 6).

    Parameters
    ----------
    repetition, between : float
        Standard deviations of repetitions within a slice, and of slices.
    overhead_s : float
        Seconds of a slice outside its repetitions.
    repetition_s : float
        Seconds of a repetition.

    Returns
    -------
    float
        At least 1; infinite when slices do not differ by themselves.
    """
    if not between:
        return np.inf
    return max(1.0, float(np.sqrt(overhead_s / repetition_s) * repetition / between))


def _mean_square(deviations: Array, weights: Array, freedom: float) -> float | None:
    """None without degrees of freedom."""
    return float(weights @ deviations**2) / freedom if freedom > 0 else None
