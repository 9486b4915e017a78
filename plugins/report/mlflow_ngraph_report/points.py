"""Data of figures: means over cells with intervals; also alternative texts, remarks, reasons for missing figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.cell_columns import grouped
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import METRICS, is_complement
from mlflow_ngraph.text import counted
from mlflow_ngraph_report import combined, texts
from mlflow_ngraph_report.prepared import batch_sizes, order_of_series

MOST_MODELS = 24
"""Most models with a line or panel of their own; more take minutes to draw, and nobody reads them."""
PLACE = ("row", "column", "x")
COLUMNS = ("row", "column", "compiler", "series", "x", "value", "ci_low", "ci_high", "cells", "of")
"""``row`` and ``column`` select the panel, ``cells`` counts the averaged cells, and ``of`` those of the best covered
series there."""


def means(
    frame: pd.DataFrame, metric: str, *, row: str | None, column: str, order: Sequence[Any], x: str = "batch"
) -> pd.DataFrame:
    """Means of a metric over cells with equal row, column, series and x.

    Geometric means with intervals; arithmetic ones for metrics without intervals.

    Parameters
    ----------
    row : str | None
        A column of ``frame``; one row of panels when left out.
    column, order : str, Sequence[Any]
        A column of ``frame``, and the order of its values.
    """
    known = frame[frame[metric].notna()]
    known = known.assign(_row="" if row is None else known[row], _column=known[column])
    places = {value: index for index, value in enumerate(order)}
    series = {name: index for index, name in enumerate(order_of_series(known))}
    figures = None if METRICS[metric].interval == "none" else significance.figures(known, metric)
    names = ["_row", "_column", "compiler", "series", x]
    codes = known.groupby(names).ngroup().to_numpy(int)
    columns = [known[name].to_numpy(object) for name in names]
    entries = []
    for own in grouped(codes, np.flatnonzero(codes >= 0)).values():
        above, beside, compiler, name, at = (column[own[0]] for column in columns)
        point = dict(zip(COLUMNS[:5], (str(above), str(beside), compiler, name, int(at)), strict=True))
        mean = _plain_mean(known[metric].iloc[own]) if figures is None else _mean(figures.take(own), metric)
        entries.append((above, places[beside], series[name], int(at), {**point, **mean, "cells": len(own)}))
    ordered = [point for *_, point in sorted(entries, key=lambda entry: entry[:4])]
    data: pd.DataFrame = pd.DataFrame(ordered, columns=list(COLUMNS))
    data["of"] = data.groupby(list(PLACE))["cells"].transform("max")
    return data


def named(data: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Points for readers, with named columns. Columns without content are dropped."""
    silent = [name for name in ("row", "column") if name not in names]
    frame: pd.DataFrame = data.drop(columns=silent).rename(columns=names)
    return frame


def lacks(frame: pd.DataFrame, metric: str, needs: str) -> str:
    """Reason that curves of a metric over batch size cannot be drawn; empty if they can. ``needs`` is advice where
    there are no cells.
    """
    if frame.empty:
        return needs
    known = frame[frame[metric].notna()]
    if known.empty and metric in ("ase", "bsr"):
        return f"needs batch size 1, which scaling is relative to; there is {texts.listed(batch_sizes(frame))}"
    if known.empty:
        return f"no cell that counts has the metric {metric}"
    if known.groupby(["device", "label", "series"])["batch"].nunique().max() < 2:
        there = texts.listed(batch_sizes(known))
        return f"needs several batch sizes: run with --batch-sizes 1,2,4,8; there is only {there}"
    return ""


def alternative(data: pd.DataFrame, what: str, over: str) -> str:
    """Describe a figure in words."""
    names = texts.listed(list(dict.fromkeys(data["series"])))
    return f"Curves of {what} over {over} for {names}; the numbers are in the CSV file."


def incomplete(data: pd.DataFrame) -> list[str]:
    """Remark on points that average fewer cells than others."""
    few = int((data["cells"] < data["of"]).sum())
    if not few:
        return []
    number = counted(few, "point is a mean", "points are means")
    return [f"{number} over fewer cells than another compiler's at the same place: see cells and of in the CSV file."]


def first_models(data: pd.DataFrame, column: str) -> tuple[pd.DataFrame, list[str]]:
    """Points of the first models, with a remark where there are more."""
    models = list(dict.fromkeys(data[column]))
    if len(models) <= MOST_MODELS:
        return data, []
    drawn: pd.DataFrame = data[data[column].isin(models[:MOST_MODELS])]
    return drawn, [f"Drawn are the first {MOST_MODELS} of {len(models)} models; the CSV file has all."]


def _plain_mean(values: pd.Series[float]) -> dict[str, float]:
    return {"value": float(values.mean()), "ci_low": float("nan"), "ci_high": float("nan")}


def _mean(figures: Estimate, metric: str) -> dict[str, float]:
    mean = combined.geometric_mean(figures)
    if is_complement(metric):
        return {"value": 1 - mean.value, "ci_low": 1 - mean.high, "ci_high": 1 - mean.low}
    return {"value": mean.value, "ci_low": mean.low, "ci_high": mean.high}
