"""Find the baselines that ratios in a results table refer to, and refuse ratios to different ones together."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.metrics import BASELINE_COLUMN, EAGER, METRICS, Metric, reciprocal_of
from mlflow_ngraph.text import missing

_NAME = re.compile(r"\w+")


def labels(frame: pd.DataFrame) -> NDArray[np.object_]:
    """Baseline of each row's ratios; eager execution in tables that do not record it."""
    if BASELINE_COLUMN not in frame.columns:
        return np.full(len(frame), EAGER, object)
    known = frame[BASELINE_COLUMN].astype(object)
    filled: NDArray[np.object_] = known.where(known.notna() & (known != ""), EAGER).to_numpy(object)
    return filled


def own(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Mark the rows of the baseline itself. Every form of eager execution counts where the baseline is one."""
    base = labels(frame)
    lanes, compilers = (frame[name].to_numpy(object) for name in ("compiler_label", "compiler"))
    eager = [text.partition("[")[0] == EAGER for text in base]
    mask: NDArray[np.bool_] = (lanes == base) | (np.array(eager, bool) & (compilers == EAGER))
    return mask


def is_ratio(metric: str | Metric) -> bool:
    """Tell a ratio to a baseline, including study metrics that are computed from one."""
    name = metric if isinstance(metric, str) else metric.name
    if name in METRICS:
        return METRICS[reciprocal_of(name)].of_baseline
    formula = "" if isinstance(metric, str) else metric.meaning
    return any(word in METRICS and METRICS[word].of_baseline for word in _NAME.findall(formula))


def differ(
    frame: pd.DataFrame, metric: str | Metric, tops: Sequence[int] | NDArray[Any], bottoms: Sequence[int] | NDArray[Any]
) -> NDArray[np.bool_]:
    """Mark the pairs of rows whose metric refers to different baselines."""
    top, bottom = np.asarray(tops, int), np.asarray(bottoms, int)
    if not is_ratio(metric):
        return np.zeros(len(top), bool)
    base = labels(frame)
    apart: NDArray[np.bool_] = base[top] != base[bottom]
    return apart


def of(frame: pd.DataFrame, metric: str | Metric) -> list[str]:
    """Baselines of the rows that have the metric, the most frequent first."""
    name = metric if isinstance(metric, str) else metric.name
    if not is_ratio(metric) or name not in frame.columns:
        return []
    counts = pd.Series(labels(frame)[frame[name].notna().to_numpy(bool)]).value_counts(sort=False)
    return [str(label) for label in counts.sort_values(ascending=False, kind="stable").index]


def check_one(frame: pd.DataFrame, metrics: Collection[str | Metric]) -> None:
    """Refuse rows whose ratios refer to different baselines."""
    for metric in metrics:
        several = of(frame, metric)
        if len(several) > 1:
            name = metric if isinstance(metric, str) else metric.name
            raise UsageError(
                f"{name} is over {' here and over '.join(several)} there, which are different figures: choose one with "
                f"--baselines {several[0]}, or another metric, such as throughput"
            )


def of_row(row: Mapping[str, Any]) -> str:
    """Baseline of a row's speed-up."""
    label = row.get(BASELINE_COLUMN)
    return EAGER if missing(label) else str(label)


def over(row: Mapping[str, Any]) -> str:
    """As `of_row`, to be read after "times"."""
    return "eager" if of_row(row) == EAGER else of_row(row)
