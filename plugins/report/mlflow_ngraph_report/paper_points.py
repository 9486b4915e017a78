"""Pairs of a measured number and the paper's, for its tables 3, 6, 7 and 8."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph_report import combined
from mlflow_ngraph_report.combined import Value
from mlflow_ngraph_report.depth_tables import BATCHES, over_depth
from mlflow_ngraph_report.model_tables import BANDS
from mlflow_ngraph_report.paper import (
    COMPILERS,
    Comparable,
    PaperPoint,
    named_by_paper,
    paper_number,
    table,
)
from mlflow_ngraph_report.prepared import order_of_families, order_of_series

_FILES = {"t7": "table7_depth_conv", "t8": "table8_depth_mha"}
_TARGETS = {"t7": "conv", "t8": "mha"}


def points(chosen: Comparable) -> dict[str, list[PaperPoint]]:
    """Comparable numbers by table."""
    return {
        "t3": list(_compile_seconds(chosen)),
        "t6": list(_families(chosen)),
        "t7": list(_depths(chosen, "t7")),
        "t8": list(_depths(chosen, "t8")),
    }


def _compile_seconds(chosen: Comparable) -> Iterator[PaperPoint]:
    frame = chosen.prepared.models
    frame = frame[frame["compile_total_s"].notna()]
    for row in table("table3_compile_seconds"):
        cells = frame[(named_by_paper(frame) == row["model"]) & (frame["batch"] == int(row["batch_size"]))]
        for cell in cells.to_dict("records"):
            theirs = chosen.devices[cell["device"]]
            name = f"{theirs}_{COMPILERS[cell['compiler']]}"
            if name in row:
                yield PaperPoint(
                    "t3", "compile seconds", cell["device"], theirs, cell["series"], cell["compiler"], row["model"],
                    row["batch_size"], Value(float(cell["compile_total_s"])), paper_number(row, name), None,
                )  # fmt: skip


def _families(chosen: Comparable) -> Iterator[PaperPoint]:
    """Table 6, as speed-ups over eager execution on the models and batch sizes that both have."""
    models = chosen.prepared.models
    papers = {(row["family"], row["compiler"], row["device"]): row for row in table("table6_families")}
    for device, theirs in chosen.devices.items():
        for family in order_of_families(models):
            for first, last in BANDS:
                here = models[
                    (models["device"] == device) & (models["family"] == family) & models["batch"].between(first, last)
                ]
                base = here[here["compiler"] == EAGER]
                base_row = papers.get((family, EAGER, theirs))
                for series in order_of_series(here):
                    cells = here[here["series"] == series]
                    row = papers.get((family, COMPILERS[cells["compiler"].iloc[0]], theirs))
                    common = _common(cells, base)
                    if row is None or base_row is None or common is None:
                        continue
                    column = f"throughput_b{first}_{last}"
                    tops, bottoms = (significance.figures(part, "throughput") for part in common)
                    speedup = combined.sum_ratio(tops, bottoms)
                    if cells["compiler"].iloc[0] == EAGER:
                        speedup = Value(1.0)
                    yield PaperPoint(
                        "t6", "speed-up by family", device, theirs, series, cells["compiler"].iloc[0], family,
                        f"{first}–{last}", speedup, paper_number(row, column) / paper_number(base_row, column), 1.0,
                        combined.mean(tops).value, paper_number(row, column),
                    )  # fmt: skip


def _common(cells: pd.DataFrame, base: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Models and batch sizes that a compiler shares with the baseline, in the same order."""
    keys = ["label", "batch"]
    compiled, eager = (part.drop_duplicates(keys).set_index(keys).sort_index() for part in (cells, base))
    both = compiled.index.intersection(eager.index)
    return (compiled.loc[both], eager.loc[both]) if len(both) else None


def _depths(chosen: Comparable, key: str) -> Iterator[PaperPoint]:
    """Table 7 or 8: slopes against 0, and retentions against 1."""
    if chosen.prepared.baseline != EAGER:
        return  # the paper's speed-ups are over eager execution
    target = _TARGETS[key]
    blocks = chosen.prepared.blocks(target)
    # Options other than the paper's make another block.
    frame = blocks[(blocks["block"] == target) & blocks["speedup"].notna()]
    papers = {(row["device"], row["compiler"], int(row["width"])): row for row in table(_FILES[key])}
    for (device, series, width), cells in frame.groupby(["device", "series", "width"]):
        compiler = cells["compiler"].iloc[0]
        theirs = chosen.devices[device]
        row = papers.get((theirs, COMPILERS[compiler], int(width)))
        if row is None:
            continue
        for batch in BATCHES:
            fit = over_depth(cells[cells["batch"] == batch])
            if fit is None:
                continue
            about = (device, theirs, series, compiler, f"width {width}", str(batch))
            yield PaperPoint(key, "depth slope", *about, fit.slope, paper_number(row, f"slope_b{batch}"), 0.0)
            if fit.retention is not None:
                theirs_too = paper_number(row, f"retention_b{batch}")
                yield PaperPoint(key, "depth retention", *about, fit.retention, theirs_too, 1.0)
