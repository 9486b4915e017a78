"""Tables 7 and 8 as in the paper: slope and retention of the speed-up over the depth of stacked blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.tables.sheet import EMPTY, Cell, Sheet, number
from mlflow_ngraph_report import combined, texts
from mlflow_ngraph_report.blocks import Missing
from mlflow_ngraph_report.combined import Value
from mlflow_ngraph_report.prepared import Prepared, batch_sizes, order_of_series

BATCHES = (8, 16)
"""Batch sizes of the paper's tables."""
_NUMBERS = {"conv": 7, "mha": 8}
_NAMES = {"conv": "convolutional", "mha": "attention"}


def depth(prepared: Prepared, target: str) -> Sheet | Missing:
    """Table 7 (``conv``) or 8 (``mha``): slope and retention of the speed-up over depth."""
    key = f"t{_NUMBERS[target]}"
    title = f"Table {_NUMBERS[target]}: the speed-up over depth, {_NAMES[target]} blocks"
    blocks = prepared.blocks(target)
    frame = blocks[~blocks["of_baseline"] & blocks["speedup"].notna()]
    if frame.empty:
        return Missing(key, title, f"needs the study paper-blocks-{target}, or block:{target} workloads")
    batches = chosen_batches(batch_sizes(frame))
    rows, data = [], []
    several = frame["block"].nunique() > 1
    for (device, series, block, width), cells in _groups(frame):
        by_batch = {batch: over_depth(cells[cells["batch"] == batch]) for batch in batches}
        if not any(by_batch.values()):
            continue
        name = [block] if several else []
        asked = _asked(prepared, block, width)
        values = [cell for batch in batches for cell in _cells(by_batch[batch], asked)]
        rows.append([device, series, *name, width, *values])
        compiler = cells["compiler"].iloc[0]
        row = {"device": device, "compiler": compiler, "series": series, "block": block, "width": width}
        for batch, fit in by_batch.items():
            row.update({f"{column}_b{batch}": value for column, value in (fit.row() if fit else {}).items()})
        data.append(row)
    if not rows:
        at = texts.listed(batches)
        return Missing(key, title, f"needs block:{target} workloads of several depths with ok cells at batch size {at}")
    kinds = ["block"] if several else []
    return Sheet(
        title,
        [
            *("device", "compiler"),
            *kinds,
            number("width"),
            *(number(name, group=f"batch {batch}") for batch in batches for name in ("slope", "retention")),
        ],
        rows,
        _notes(batches, batch_sizes(frame)),
        caption=f"Slope: least squares of the speed-up over {prepared.over} against the number of stacked blocks, in speed-up per block. Retention: speed-up "
        "of the deepest stack divided by that of one block. Both with 95 % intervals.",
        key=key,
        data=pd.DataFrame(data),
        names=3 + several,
    )


def chosen_batches(present: Sequence[int]) -> list[int]:
    """Available batch sizes of the paper's tables, else the two largest."""
    return [batch for batch in BATCHES if batch in present] or list(present[-2:])


@dataclass(frozen=True)
class OverDepth:
    """Change of the speed-up with depth for one series, block, width and batch size."""

    slope: Value
    retention: Value | None
    """None where depth one was not measured."""
    depths: tuple[int, ...]

    def row(self) -> dict[str, float | str]:
        numbers: dict[str, float | str] = {}
        for name, estimate in (("slope", self.slope), ("retention", self.retention)):
            if estimate is not None:
                numbers.update({name: estimate.value, f"{name}_ci_low": estimate.low, f"{name}_ci_high": estimate.high})
        return {**numbers, "depths": " ".join(map(str, self.depths))}


def over_depth(cells: pd.DataFrame) -> OverDepth | None:
    """Slope and retention for one series, block, width and batch size; None with fewer than two depths."""
    ordered = cells.sort_values("depth")
    depths = tuple(int(depth) for depth in ordered["depth"])
    if len(set(depths)) < 2:
        return None
    parts = significance.figures(ordered, "speedup")
    return OverDepth(combined.slope(depths, parts), combined.retention(depths, parts), depths)


def _groups(frame: pd.DataFrame) -> list[tuple[tuple[str, str, str, int], pd.DataFrame]]:
    """Cells for each row: by device, compiler and width, as in the paper."""
    place = {series: index for index, series in enumerate(order_of_series(frame))}
    groups = [
        ((str(device), str(series), str(block), int(str(width))), cells)
        for (device, series, block, width), cells in frame.groupby(["device", "series", "block", "width"])
    ]
    return sorted(groups, key=lambda group: (group[0][0], place[group[0][1]], *group[0][2:]))


def _asked(prepared: Prepared, block: str, width: int) -> tuple[int, ...]:
    """Attempted depths of a block, including failures."""
    every = prepared.every
    depths = every.loc[(every["block"] == block) & (every["width"] == width), "depth"]
    return tuple(sorted(set(map(int, depths))))


def _cells(fit: OverDepth | None, asked: tuple[int, ...]) -> list[Cell]:
    if fit is None:
        return [EMPTY, EMPTY]
    few = "" if fit.depths == asked else f"depths {texts.listed(fit.depths)}"
    without = "no depth one" if fit.retention is None else few
    return [texts.estimate(fit.slope, few), texts.estimate(fit.retention, without)]


def _notes(batches: Sequence[int], present: Sequence[int]) -> list[str]:
    if tuple(batches) == BATCHES:
        return []
    paper, here = texts.listed(BATCHES), texts.listed(present)
    return [f"The paper's batch sizes are {paper}; these results have {here}."]
