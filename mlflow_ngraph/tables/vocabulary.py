"""Metrics of a results table: those of the package, and those that its studies declare."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from mlflow_ngraph.metrics import CELL_METRICS, Metric

COLUMN = "custom_metrics"


def known(frame: pd.DataFrame) -> dict[str, Metric]:
    """Every metric of the table by name. The latest of several declarations counts."""
    metrics = {name: metric for name, metric in CELL_METRICS.items() if name in frame.columns}
    if COLUMN not in frame.columns:
        return metrics
    rows = frame[frame[COLUMN].fillna("") != ""]
    if "started_at" in rows.columns:
        rows = rows.sort_values("started_at", kind="stable")
    for text in rows[COLUMN].drop_duplicates(keep="last"):
        declared: dict[str, dict[str, Any]] = json.loads(text)
        for name, said in declared.items():
            if name in frame.columns:
                metrics[name] = Metric(name, said["unit"], said["better"], said["expression"])
    return metrics
