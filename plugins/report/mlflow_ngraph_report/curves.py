"""Panels of curves, the form of most figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mlflow_ngraph_report import style
from mlflow_ngraph_report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MOST_COLUMNS, _WRAP = 6, 5
"""Most panels in one row, and the number per row when there are more."""
_PANEL_HEIGHT, _SHORT_PANEL = 1.75, 1.45
_ROOM = 0.75
"""Inches for legend and labels."""
_AROUND = 0.1
"""Margin around the points as a share of their range."""
_MOST_BAND = 0.4
"""Largest share of the panel's height for a band. Higher intervals are drawn as lines, so that they hide nothing."""


@dataclass(frozen=True)
class Axis:
    """Axis shared by all panels."""

    label: str
    log: bool = False
    reference: float | None = None
    """Position of a line between better and worse."""
    from_zero: bool = False


@dataclass(frozen=True)
class Grid:
    """Panels in rows and columns, with a line for each series."""

    data: pd.DataFrame
    """Data of `points.means`. Panels follow its order of rows and columns; a column ``title`` titles each panel."""
    x: Axis
    y: Axis
    y_by_row: dict[str, Axis] | None = None
    """Axes of rows that show other quantities."""

    def draw(self) -> Canvas:
        data = _fitted(self.data)
        rows, columns = (list(dict.fromkeys(data[name])) for name in ("row", "column"))
        height = _PANEL_HEIGHT if len(rows) < 4 else _SHORT_PANEL
        figure = style.canvas(_ROOM + 0.25 + height * len(rows))
        panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True)
        known = data[["series", "compiler"]].drop_duplicates("series")
        look = style.looks(list(known.itertuples(index=False, name=None)))
        xs = sorted({float(x) for x in data["x"]})
        inside = dict(iter(data.groupby(["row", "column"], sort=False)))
        drawn = [place for place in product(rows, columns) if place in inside]
        highest, leftmost = {column: row for row, column in reversed(drawn)}, dict(reversed(drawn))
        lowest = {column: row for row, column in drawn}
        for (row, column), axes in zip(product(rows, columns), panels.flat, strict=True):
            cells = inside.get((row, column))
            if cells is None:
                axes.set_axis_off()
                continue
            self._panel(axes, cells, look, xs)
            if "title" in data:
                axes.set_title(shortened(str(cells["title"].iloc[0]), 26))
            elif highest[column] == row:
                axes.set_title(shortened(column, 26))
            if leftmost[row] == column:
                axes.set_ylabel(self._y_label(row, named="title" not in data))
            if lowest[column] == row:
                axes.tick_params(labelbottom=True)
                axes.set_xlabel(self.x.label)
        legend(figure, look)
        return figure

    def _y(self, row: str) -> Axis:
        return (self.y_by_row or {}).get(row, self.y)

    def _y_label(self, row: str, *, named: bool) -> str:
        label = self._y(row).label
        return f"{shortened(row, 22)}\n{label}" if row and named and self.y_by_row is None else label

    def _panel(self, axes: Axes, cells: pd.DataFrame, look: dict[str, Look], xs: list[float]) -> None:
        y = self._y(str(cells["row"].iloc[0]))
        if y.reference is not None:
            axes.axhline(y.reference, color=style.INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1.5)
        scale_x(axes, xs, self.x.log)
        # Points define the range of an axis. A band that is wide for lack of rounds would flatten them.
        values = [float(value) for value in cells["value"].dropna()]
        values += [] if y.reference is None else [y.reference]
        if y.log:
            scale_log_y(axes, [value for value in values if value > 0])
        else:
            low, high = 0.0 if y.from_zero else min(values), max(values)
            room = _AROUND * ((high - low) or abs(high) or 1.0)
            axes.set_ylim(low - (0.0 if y.from_zero else room), high + room)
            plain_ticks(axes)
        for series, points in cells.groupby("series", sort=False):
            _line(axes, points.sort_values("x"), look[str(series)])


def legend(figure: Canvas, look: dict[str, Look]) -> None:
    """Draw one legend below the figure."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=line.colour, marker=line.marker, linestyle=line.dashes, markersize=5)
        for line in look.values()
    ]
    names = [shortened(name, 48) for name in look]
    longest = max(map(len, names))
    figure.legend(handles, names, loc="outside lower center", ncols=max(1, min(len(names), 120 // (longest + 8))))


def scale_x(axes: Axes, xs: Sequence[float], log: bool) -> None:
    """Set ticks at measured values."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    if log:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(xs)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{x:g}" for x in xs]))
    axes.xaxis.set_minor_locator(NullLocator())


def scale_log_y(axes: Axes, values: Sequence[float]) -> None:
    """Set a logarithmic axis with a few plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_yscale("log")
    low, high = min(values), max(values)
    room = max(0.03, 0.06 * math.log10(high / low))
    low, high = low / 10**room, high * 10**room
    ticks = log_ticks(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([plain(tick) for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends, at most so many, spaced evenly where possible."""
    from matplotlib.ticker import MaxNLocator

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        ticks = sorted({digit * 10.0**decade for decade in decades for digit in steps})
        inside = [tick for tick in ticks if low <= tick <= high]
        if 3 <= len(inside) <= most:
            return inside
    every = [tick for tick in (10.0**decade for decade in decades) if low <= tick <= high]
    if len(every) > most:
        return every[:: math.ceil(len(every) / most)]
    # Within a small part of a decade a logarithmic axis looks linear.
    near = MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in near if low <= tick <= high]


_STEPS: tuple[tuple[float, ...], ...] = (
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)
"""Candidate ticks within a decade. The first choice with a suitable number of ticks is used."""


def plain_ticks(axes: Axes) -> None:
    """Set a few plain numbers as ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """Format a number of an axis."""
    return f"{value:,.6g}".replace(",", "\u202f").replace("-", "−")


def shortened(text: str, most: int) -> str:
    """Shorten a name; the table and the data have it in full."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _fitted(data: pd.DataFrame) -> pd.DataFrame:
    """Lay out panels that are too many for one row, each with a title."""
    if data["column"].nunique() <= _MOST_COLUMNS:
        return data
    several = data["row"].nunique() > 1
    titles = data["column"].astype(str) + (", " + data["row"].astype(str) if several else "")
    titles = data.get("title", titles)
    place = {title: index for index, title in enumerate(dict.fromkeys(titles))}
    places = titles.map(place)
    rows, columns = (places // _WRAP).astype(str), (places % _WRAP).astype(str)
    placed: pd.DataFrame = data.assign(title=titles, row=rows, column=columns)
    return placed


def _line(axes: Axes, cells: pd.DataFrame, look: Look) -> None:
    known = cells["ci_low"].notna() & cells["ci_high"].notna()
    axes.plot(
        cells["x"],
        cells["value"],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        markeredgewidth=0,
        clip_on=False,
        zorder=3,
    )
    inside = cells[known]
    if inside.empty:
        return
    if len(inside) > 1 and _share(axes, inside) <= _MOST_BAND:
        ends = inside["ci_low"], inside["ci_high"]
        axes.fill_between(inside["x"], *ends, color=look.colour, alpha=0.18, linewidth=0, zorder=2)
    else:
        axes.vlines(inside["x"], inside["ci_low"], inside["ci_high"], color=look.colour, linewidth=0.8, zorder=2)


def _share(axes: Axes, cells: pd.DataFrame) -> float:
    """Largest share of the panel's height that a line's intervals take."""
    ends = np.clip(cells[["ci_low", "ci_high"]].to_numpy(float), *axes.get_ylim())
    heights = axes.transData.transform([(1.0, end) for end in (*axes.get_ylim(), *ends.ravel())])[:, 1]
    return float(np.diff(heights[2:].reshape(-1, 2)).max() / (heights[1] - heights[0]))
