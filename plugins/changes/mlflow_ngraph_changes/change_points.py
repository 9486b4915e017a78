"""Change-point detection in series of measurements. docs/explanation/comparing.md derives the test."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.05
"""Share of constant series with a false change."""
FEWEST = 6
"""Fewest points for estimating the variance between studies."""
KEPT = 0.8
"""Share of differences between neighbours in the estimate. The largest are dropped."""
WORTH = 3
"""Differences per degree of freedom: neighbours share a point, and the largest are dropped."""


def change_points(logs: ArrayLike, errors: ArrayLike, freedom: ArrayLike, level: float = LEVEL) -> list[int]:
    """Positions at which a new level begins, ascending.

    Uses binary segmentation. The best split minimises the scatter around the means of both sides. It counts if the
    p-value of Welch's test, times the number of possible splits, is below ``level``. Both sides are then searched.

    ``logs`` are logarithms of the figures, in order of time, with the standard error and degrees of freedom of each;
    NaN means unknown, and the figure then scatters like the others.
    """
    values, known, counts = (np.asarray(series, float) for series in (logs, errors, freedom))
    if len(values) < 2:
        return []
    between = scatter(values, known)
    if not np.isfinite(known).any():
        if between is None:
            return []
        known, counts = np.zeros(len(values)), np.full(len(values), np.inf)
    known = np.where(np.isfinite(known), known, np.nanmedian(known))
    counts = np.where(np.isfinite(counts) | np.isposinf(counts), counts, np.nanmedian(counts))
    extra = between or 0.0
    weight = (len(values) - 1) / WORTH
    return sorted(_split(values, known**2, counts, extra, max(weight, 1.0), 0, len(values), level))


def scatter(logs: Array, errors: Array) -> float | None:
    """Variance between studies beyond their own errors; None with too few points.

    Estimated from squared differences between neighbours, without the largest: a change of level affects only one.
    """
    if len(logs) < FEWEST:
        return None
    squares = np.sort(np.diff(logs) ** 2)
    kept = int(np.ceil(KEPT * len(squares)))
    own = float(np.nanmean(errors**2)) if np.isfinite(errors).any() else 0.0
    return max(float(squares[:kept].mean()) / _shrinkage(kept / len(squares)) / 2 - own, 0.0)


def _shrinkage(share: float) -> float:
    """Mean of the smallest ``share`` of squared standard normal numbers."""
    if share >= 1:
        return 1.0
    bound = float(special.ndtri((1 + share) / 2))
    return 1 - 2 * bound * math.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi) / share


def levels(logs: ArrayLike, starts: list[int]) -> Array:
    """Mean of each point's level."""
    values = np.asarray(logs, float)
    ends = [*starts, len(values)]
    means = np.empty(len(values))
    for start, end in zip([0, *starts], ends, strict=True):
        means[start:end] = values[start:end].mean() if end > start else np.nan
    return means


def _split(
    values: Array, variances: Array, freedom: Array, between: float, weight: float, start: int, end: int, level: float
) -> list[int]:
    count = end - start
    if count < 2:
        return []
    inside = slice(start, end)
    left = np.arange(1, count)
    right = count - left
    sums, own = np.cumsum(values[inside]), np.cumsum(variances[inside])
    fourth = np.cumsum(variances[inside] ** 2 / freedom[inside])
    before, after = sums[:-1] / left, (sums[-1] - sums[:-1]) / right
    parts = own[:-1] / left**2 + (own[-1] - own[:-1]) / right**2
    shared = between * (1 / left + 1 / right)
    total = parts + shared
    squares = fourth[:-1] / left**4 + (fourth[-1] - fourth[:-1]) / right**4 + shared**2 / weight
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.abs(after - before) / np.sqrt(total)
        degrees = np.where(squares > 0, total**2 / squares, np.inf)
    p_values = _two_sided(score, degrees)
    # Splits are ranked by the remaining scatter, because p-values of large changes underflow to 0.
    best = int(np.argmax((after - before) ** 2 * left * right))
    if p_values[best] * (count - 1) >= level:
        return []
    place = start + best + 1
    rest = [
        _split(values, variances, freedom, between, weight, *ends, level) for ends in ((start, place), (place, end))
    ]
    return [*rest[0], place, *rest[1]]


def _two_sided(score: Array, degrees: Array) -> Array:
    """Two-sided p-values. Without an error, a difference is certain, and so is its absence."""
    certain = ~np.isfinite(score)
    plain = np.where(certain, 0.0, score)
    normal = 2 * special.ndtr(-plain)
    student = 2 * special.stdtr(np.where(np.isinf(degrees) | ~(degrees > 0), 1.0, degrees), -plain)
    p_values = np.where(np.isinf(degrees), normal, student)
    return np.where(np.isnan(score), 1.0, np.where(np.isinf(score), 0.0, p_values))
