"""Two cells of a study compared by the rounds that they share: what slowed a round down is in neither.

The results have, of every cell, the logarithm of its median duration in each round.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.estimates import Array, Estimate, unknown
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import ROUNDS

TOGETHER = ("study_id", "workload", "batch")
"""What rows have in common that may share rounds."""
PER_SAMPLE = ("throughput",)
"""Metrics that compare batch sizes as well, where these race with each other."""
FEWEST = 2
"""Rounds of which something can be told."""
Places = NDArray[np.int_]


def together(metric: str) -> tuple[str, ...]:
    """What rows have in common of which a metric can be compared by the rounds that they share."""
    return tuple(name for name in TOGETHER if name != "batch" or metric not in PER_SAMPLE)


def throughput_ratios(
    frame: pd.DataFrame, tops: Places, bottoms: Places, together: tuple[str, ...] = TOGETHER
) -> Estimate:
    """The throughputs of some rows over those of others, round by round; NaN where they share fewer than two rounds.

    Parameters
    ----------
    frame : DataFrame
        The tidy table.
    tops, bottoms : Places
        Places of rows, as many of either.
    together : tuple[str, ...]
        As `together` gives it.
    """
    ratios = unknown(len(tops))
    if not {*TOGETHER, ROUNDS} <= set(frame.columns):
        return ratios
    candidates = np.flatnonzero(alike(frame, together, tops, bottoms) & (tops != bottoms))
    rounds = _rounds(frame[ROUNDS], {*tops[candidates].tolist(), *bottoms[candidates].tolist()})
    differences: dict[int, list[tuple[int, Array]]] = defaultdict(list)
    for place in candidates.tolist():
        logs = _differences(rounds[int(tops[place])], rounds[int(bottoms[place])])
        if logs.size >= FEWEST:
            differences[logs.size].append((place, logs))
    for pairs in differences.values():  # those with equally many rounds at once
        places = np.array([place for place, _ in pairs])
        several = statistics.trimmed_mean(np.stack([logs for _, logs in pairs]))
        ratios.log[places], ratios.error[places], ratios.freedom[places] = several.log, several.error, several.freedom
    return ratios


def alike(frame: pd.DataFrame, names: Iterable[str], one: Places, other: Places) -> NDArray[np.bool_]:
    """Which rows are equal in all of these columns; none where a column is missing."""
    columns = list(names)
    if not set(columns) <= set(frame.columns):
        return np.zeros(len(one), bool)
    equal = np.ones(len(one), bool)
    for name in columns:
        key = _key(frame[name])
        equal &= key[one] == key[other]
    return equal


def codes(frame: pd.DataFrame, names: Iterable[str]) -> Places:
    """Equal numbers for rows that are equal in all of these columns."""
    keys = zip(*(_key(frame[name]).tolist() for name in names), strict=True)
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], int)


def _key(column: pd.Series[Any]) -> NDArray[np.object_]:
    """The values of a column, of which those that are missing are equal."""
    values: NDArray[np.object_] = column.to_numpy(object)
    return np.where(pd.isna(values), "", values)


def _rounds(column: pd.Series[str], places: Iterable[int]) -> dict[int, dict[str, float]]:
    """The logarithms of some rows by round."""
    texts = column.to_numpy(object)
    known = ((place, texts[place]) for place in places)
    return {place: json.loads(text) if isinstance(text, str) and text else {} for place, text in known}


def _differences(top: Mapping[str, float], bottom: Mapping[str, float]) -> Array:
    """Logarithms of the ratio of throughputs in the rounds of both, in the order of time."""
    return np.array([bottom[name] - log for name, log in top.items() if name in bottom])
