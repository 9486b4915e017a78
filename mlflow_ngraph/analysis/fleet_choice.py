"""Rank the choices that run on all devices of a fleet, by performance relative to each device's best."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.estimates import ALPHA, Estimate, satterthwaite
from mlflow_ngraph.metrics import Metric, is_complement

CONFIGURATION = ("compiler_label", "precision", "mode", "batch")
"""Columns of a choice. Threads are none, because they differ between machines."""
Places = NDArray[np.int64]


def ranked(
    candidates: pd.DataFrame, metric: Metric, chosen: pd.DataFrame, rule: Literal["maximin", "geomean"]
) -> pd.DataFrame:
    """Rank the choices; one row for each choice and device with a candidate.

    ``candidates`` keep all limits. The devices of ``chosen``, all selected cells, are the fleet of a workload. Returns
    the ``place`` in ``candidates``, ``rank`` (equal on all devices), ``tied``, ``score``, ``worst_device``, and
    ``loss`` of the score with its interval.
    """
    parts: list[dict[str, Any]] = []
    for workload, inside in candidates.groupby("workload", sort=False, dropna=False).indices.items():
        devices = sorted(chosen.loc[chosen["workload"] == workload, "device"].dropna().unique())
        parts += _of_workload(candidates, np.asarray(inside, np.int64), devices, metric, rule)
    names = ("place", "rank", "tied", "loss", "loss_ci_low", "loss_ci_high", "score", "worst_device")
    table: pd.DataFrame = pd.DataFrame(parts, columns=list(names))
    return table


def _of_workload(
    candidates: pd.DataFrame, inside: Places, devices: list[str], metric: Metric, rule: str
) -> list[dict[str, Any]]:
    values = candidates[metric.name].to_numpy(float)
    badness = values if metric.better == "lower" else -values
    keys = list(zip(*(candidates[name].astype(str) for name in CONFIGURATION), strict=True))
    owners = candidates["device"].astype(str).tolist()
    places: dict[tuple[str, ...], dict[str, int]] = {}
    best: dict[str, int] = {}
    for place in inside[np.argsort(badness[inside], kind="stable")]:
        device = owners[place]
        best.setdefault(device, int(place))
        places.setdefault(keys[place], {}).setdefault(device, int(place))
    whole = {key: by_device for key, by_device in places.items() if len(by_device) == len(devices)}
    if not whole:
        return []
    names = sorted(whole)
    rows = np.array([[whole[key][device] for device in devices] for key in names], np.int64)
    tops = np.array([best[device] for device in devices], np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = values[rows] / values[tops] if metric.better == "higher" else values[tops] / values[rows]
        scores = relative.min(axis=1) if rule == "maximin" else np.exp(np.log(relative).mean(axis=1))
    order = np.lexsort((np.arange(len(names)), -scores))
    lead = int(order[0])
    against = _against(Comparison(candidates, metric), rows, tops, relative, lead, rule)
    adjusted = significance.holm(np.where(np.arange(len(names)) != lead, against.p_differs(), np.nan))
    low, high = against.interval()
    tested = np.isfinite(against.error) & (not is_complement(metric.name))
    value = np.where(tested, against.value, scores / scores[lead])
    low, high = (np.where(tested, end, np.nan) for end in (low, high))
    records = []
    for rank, choice in enumerate(order, 1):
        equal = choice != lead and scores[choice] == scores[lead]
        with np.errstate(invalid="ignore"):
            tied = bool(adjusted[choice] >= ALPHA) or bool(equal)
        records += [
            {
                "place": int(rows[choice, column]),
                "rank": rank,
                "tied": tied,
                "loss": float(1 - value[choice]),
                "loss_ci_low": float(1 - high[choice]),
                "loss_ci_high": float(1 - low[choice]),
                "score": float(scores[choice]),
                "worst_device": devices[int(relative[choice].argmin())],
            }
            for column in range(len(devices))
        ]
    return records


def _against(
    compared: Comparison,
    rows: Places,
    tops: Places,
    relative: NDArray[np.float64],
    lead: int,
    rule: str,
) -> Estimate:
    """Scores of all choices relative to the best one, with errors; ``rows`` has the cell of each choice on each device."""
    sign = 1 if compared.metric.better == "higher" else -1
    if rule == "geomean":
        # The devices' best cells are in both scores, and cancel.
        parts = [
            compared.ratios(rows[:, column], np.full(len(rows), rows[lead, column])) for column in range(rows.shape[1])
        ]
        logs, errors, freedoms = (
            np.stack([getattr(part, name) for part in parts]) for name in ("log", "error", "freedom")
        )
        variances = (errors / len(parts)) ** 2
        freedom = satterthwaite(variances, freedoms)
        return Estimate(sign * logs.mean(axis=0), np.sqrt(variances.sum(axis=0)), freedom)
    worst = relative.argmin(axis=1)
    own = rows[np.arange(len(rows)), worst]
    its = np.full(len(rows), rows[lead, worst[lead]])
    direct = compared.ratios(own, its)
    mine = compared.ratios(own, tops[worst])
    theirs = compared.ratios(its, np.full(len(rows), tops[worst[lead]]))
    ratios = direct.where(worst == worst[lead], mine.over(theirs))
    return Estimate(sign * ratios.log, ratios.error, ratios.freedom)
