"""Results of open-loop load: one row per cell and offered rate, as a table and as a section of the summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.tables.sheet import Head, Sheet, number
from mlflow_ngraph.text import rounded

TEXT = ("study_id", "lane", "cell", "label", "compiler_label", "precision", "mode", "purpose", "process", "reason")
WHOLE = ("batch", "session", "step", "servers", "requests", "unserved")
TRUTH = ("overloaded", "valid")
FIGURES = (
    "rate",
    "window_s",
    "offered_rate",
    "achieved_rate",
    "latency_mean_ms",
    "latency_p50_ms",
    "latency_p90_ms",
    "latency_p99_ms",
    "latency_p999_ms",
    "wait_mean_ms",
    "service_mean_ms",
    "queue_share",
    "utilisation",
    "lateness_p50_ms",
    "lateness_p99_ms",
    "late_share",
)
COLUMNS = (*TEXT[:7], *WHOLE[:3], *TEXT[7:9], *FIGURES[:2], *WHOLE[3:], *FIGURES[2:], *TRUTH, TEXT[9])


def measured(record: StudyRecord) -> bool:
    """Tell if requests arrived at any cell."""
    return any(cell.serving for lane in record.lanes.values() for cell in lane.cells.values())


def from_record(record: StudyRecord) -> pd.DataFrame:
    """Collect the offered rates of all cells in order; docs/reference/metrics.md lists the columns."""
    rows = [
        {**_about(record, lane, cell), **row}
        for lane in record.lanes.values()
        for _, cell in sorted(lane.cells.items())
        for row in cell.serving
    ]
    frame: pd.DataFrame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(
        {
            **dict.fromkeys(TEXT, "string"),
            **dict.fromkeys(WHOLE, "int64"),
            **dict.fromkeys(TRUTH, "bool"),
            **dict.fromkeys(FIGURES, "float64"),
        }
    )
    return frame


def differences(stored: pd.DataFrame, again: pd.DataFrame) -> list[dict[str, Any]]:
    """Differences between the stored table and the derived one: ``cell``, ``figure``, ``stored``, ``recomputed``."""
    key = ["cell", "session", "step"]
    old, new = stored.set_index(key), again.set_index(key)
    deviations: list[dict[str, Any]] = []
    for place in sorted({*old.index, *new.index}):
        about = {"cell": place[0], "figure": f"arrivals, step {place[2]}"}
        if place not in old.index or place not in new.index:
            deviations.append({**about, "stored": place in old.index, "recomputed": place in new.index})
            continue
        for name in new.columns:
            left, right = old.loc[place].get(name), new.loc[place, name]
            if left != right and not (pd.isna(left) and pd.isna(right)):
                deviations.append(
                    {**about, "figure": f"{about['figure']}: {name}", "stored": left, "recomputed": right}
                )
    return deviations


def parts(record: StudyRecord) -> Iterator[Sheet]:
    """Section of the summary; empty where no requests arrived."""
    if not measured(record):
        return
    bound = record.study["arrivals"]["max_p99_ms"]
    cells = [(lane, cell) for lane in record.lanes.values() for _, cell in sorted(lane.cells.items()) if cell.serving]
    named: list[Head] = ["workload", "compiler", number("batch"), number("rate [requests/s]")]
    if bound is not None:
        rows = [_row(lane, cell, _best(cell)) for lane, cell in cells]
        yield Sheet(f"The highest rate with a p99 of at most {bound:g} ms", [*named, number("p99 [ms]")], rows)
    figures = ("achieved", "p50 [ms]", "p90", "p99", "p99.9", "queue [%]", "utilisation [%]")
    yield Sheet(
        "Requests that arrive by themselves",
        [*named, *map(number, figures), ""],
        [
            _row(lane, cell, _figures(row))
            for lane, cell in cells
            for row in sorted(cell.serving, key=lambda row: float(row["rate"]))
        ],
        [
            "Latency counts from the moment at which a request was due. A rate with a remark says nothing about it.",
            *(
                f"{lane.lane.label} {lane.lane.compiler_label} batch {cell.batch}: {cell.arrivals_note}"
                for lane in record.lanes.values()
                for cell in lane.cells.values()
                if cell.arrivals_note
            ),
        ],
    )


def _about(record: StudyRecord, lane: LaneRecord, cell: CellRecord) -> dict[str, Any]:
    of_lane = {name: getattr(lane.lane, name) for name in ("label", "compiler_label", "precision", "mode")}
    return {"study_id": record.id, "lane": cell.lane, "cell": cell.id, "batch": cell.batch, **of_lane}


def _row(lane: LaneRecord, cell: CellRecord, values: list[str]) -> list[str]:
    return [lane.lane.label, lane.lane.compiler_label, str(cell.batch), *values]


def _best(cell: CellRecord) -> list[str]:
    rate, latency = (rounded(cell.metrics.get(name)) for name in ("serve_max_rate", "serve_max_rate_p99_ms"))
    return [rate or "none found", latency]


def _figures(row: dict[str, Any]) -> list[str]:
    names = ("rate", "achieved_rate", "latency_p50_ms", "latency_p90_ms", "latency_p99_ms", "latency_p999_ms")
    shares = [rounded(100 * row[name] if name in row else None) for name in ("queue_share", "utilisation")]
    remark = row["reason"] or ("overloaded" if row["overloaded"] else "")
    return [*(rounded(row.get(name)) for name in names), *shares, remark]
