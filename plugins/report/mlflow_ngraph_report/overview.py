"""Overview of a report: the answer, speed-ups by compiler, failures and contaminated cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.findings import Finding
from mlflow_ngraph.metrics import TOUCHED
from mlflow_ngraph.tables.sheet import Cell, Sheet, first, number
from mlflow_ngraph.text import brief, counted
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_report import combined, texts
from mlflow_ngraph_report.blocks import Missing, Text
from mlflow_ngraph_report.prepared import Prepared, order_of_series

_MOST_ROWS = 200
"""Most rows of a long list on the page."""
_LONGEST_REASON = 400
_NAMED = 2
"""Most cells named in one place of a table."""
ANSWER = "answer"
"""Key of the opening text."""


def answer(found: Sequence[Finding], prepared: Prepared) -> Text:
    """State the largest gains, one sentence for each compiler that gains most somewhere."""
    gains = [finding for finding in found if finding.kind == "gain"]
    said = [" ".join([f"{finding.title}.", finding.text]) for finding in gains]
    return Text(
        ANSWER,
        "What was gained",
        said
        or [
            f"No gain over {prepared.over} is sure once chance has been allowed for in all comparisons; the tables have each one's interval."
        ],
    )


def glance(prepared: Prepared) -> Sheet | Missing:
    """Compare each compiler with the baseline over all its cells."""
    key, title = "glance", "At a glance"
    every = prepared.every
    rows, data = [], []
    for device in prepared.devices:
        here = every[every["device"] == device]
        for series in order_of_series(here):
            asked = here[here["series"] == series]
            cells = prepared.counted[(prepared.counted["device"] == device) & (prepared.counted["series"] == series)]
            compared = cells[cells["speedup"].notna()]
            row: dict[str, Any] = {"device": device, "series": series, "compiler": asked["compiler"].iloc[0]}
            row["cells"] = len(asked)
            row.update(counted=len(cells), ok=int((asked["verdict"] == str(Verdict.OK)).sum()))
            shown: list[Any] = [device, series, f"{row['ok']} of {row['cells']}"]
            if bool(asked["of_baseline"].any()) or compared.empty:
                rows.append([*shown, *[None] * 5])
                data.append(row)
                continue
            parts = significance.figures(compared, "speedup")
            mean = combined.geometric_mean(parts)
            low, high = parts.ends
            sides = Counter(int(above) - int(below) for above, below in zip(low > 1, high < 1, strict=True))
            row.update(speedup=mean.value, speedup_ci_low=mean.low, speedup_ci_high=mean.high)
            row.update(faster=sides[1], slower=sides[-1], undecided=sides[0])
            sided = [sides[side] for side in (1, -1, 0)]
            rows.append([*shown, texts.estimate(mean), *sided, _not_compared(asked, compared)])
            data.append(row)
    return Sheet(
        title,
        [
            *("device", "compiler"),
            *map(number, ("cells ok", "speed-up", "faster", "slower", "undecided", "not compared")),
        ],
        rows,
        over_others(prepared),
        caption=f"Geometric mean of the speed-up over {prepared.over}, over all models, blocks and batch sizes that the compiler "
        "was measured with, and in how many cells it is faster, slower, or cannot be told apart at 95 %; the last column names "
        "those without a speed-up. Compilers that "
        "failed on different cells are means over different things.",
        key=key,
        data=pd.DataFrame(data),
        names=2,
    )


def _not_compared(asked: pd.DataFrame, compared: pd.DataFrame) -> Cell:
    """Count cells without a speed-up, by the side that failed."""
    rest = asked[~asked["cell"].isin(compared["cell"])]
    named = [
        f"{row['label']} at batch {row['batch']}: "
        + ("no baseline" if row["verdict"] == str(Verdict.OK) else row["verdict"])
        for row in rest.head(_NAMED).to_dict("records")
    ]
    more = [f"{len(rest) - _NAMED} more"] if len(rest) > _NAMED else []
    return Cell(str(len(rest)), "; ".join([*named, *more]))


def over_others(prepared: Prepared) -> list[str]:
    """Remark that ratios to other baselines are left out."""
    if not prepared.over_others:
        return []
    others = texts.listed(prepared.over_others)
    return [f"Left out are speed-ups over {others}: they are other figures than those over {prepared.baseline}."]


def verdicts(prepared: Prepared) -> Sheet | Missing:
    """Cells that are not ``ok`` with reasons; equal batch sizes share a row."""
    key, title = "verdicts", "Cells that are not ok"
    every = prepared.every
    frame = every[every["verdict"] != str(Verdict.OK)]
    if frame.empty:
        return Missing(key, title, f"there are none: all {len(every)} cells are ok")
    data, rows = _alike(frame)
    counts = texts.listed([f"{count} {verdict}" for verdict, count in frame["verdict"].value_counts().items()])
    consequence = (
        f"Those that are {texts.listed(prepared.included)} count all the same."
        if prepared.included
        else "Their numbers are left out everywhere else."
    )
    sheet = Sheet(
        title,
        ["verdict", "device", "workload", "compiler", "batch sizes", "reason"],
        rows,
        caption=f"{len(frame)} of {len(every)} cells: {counts}. {consequence}",
        key=key,
        data=data,
    )
    return first(sheet, _MOST_ROWS, "in the CSV file")


def noise(prepared: Prepared) -> Sheet | Missing:
    """Contaminated cells of each workload, with the most frequent cause."""
    key, title = "noise", "Where the machine was not quiet"
    counted_cells = prepared.counted
    frame = counted_cells[counted_cells["noise"].fillna("") != ""]
    if frame.empty:
        return Missing(key, title, f"nowhere: nothing disturbed the {len(counted_cells)} cells that count")
    rows = []
    beside = counted_cells.groupby(["device", "label"]).size()
    for (device, label), cells in frame.groupby(["device", "label"]):
        disturbed = brief(cells["noise"].value_counts().index[0], _LONGEST_REASON)
        rows.append([device, label, f"{len(cells)} of {beside[device, label]}", disturbed])
    sheet = Sheet(
        title,
        ["device", "workload", "cells", "what disturbed most of them"],
        rows,
        caption=f"{len(frame)} of {len(counted_cells)} cells. Their absolute figures (throughput, latency, CPU use), RTR and ASE are "
        f"unsteady, and their intervals are wider for it; {TOUCHED}.",
        key=key,
        data=frame[["device", "label", "series", "batch", "precision", "noise", "study_id", "cell"]].reset_index(
            drop=True
        ),
    )
    return first(sheet, _MOST_ROWS, "in the CSV file")


def _alike(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[list[str]]]:
    """Cells in order, grouped by verdict, workload, compiler and reason."""
    columns = ["verdict", "device", "label", "series", "batch"]
    ordered = frame.sort_values(columns)[[*columns, "precision", "reason", "study_id", "cell"]].reset_index(drop=True)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in ordered.to_dict("records"):
        why = "" if pd.isna(row["reason"]) else str(row["reason"])
        groups.setdefault((*(str(row[name]) for name in columns[:-1]), why), []).append(int(row["batch"]))
    rows = [
        [*place[:-1], ", ".join(map(str, batches)), brief(place[-1], _LONGEST_REASON)]
        for place, batches in groups.items()
    ]
    return ordered, rows


def subtitle(prepared: Prepared) -> str:
    """Describe the scope of the report in one line."""
    every = prepared.every
    parts = [
        counted(every["study_id"].nunique(), "study", "studies"),
        counted(len(every), "cell"),
        counted(every["workload"].nunique(), "workload"),
        f"on {texts.listed(prepared.devices)}",
    ]
    return ", ".join(parts)
