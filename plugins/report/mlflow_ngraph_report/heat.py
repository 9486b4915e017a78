"""Heat maps side by side, with numbers in their cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_ngraph_report import style
from mlflow_ngraph_report.curves import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_COLOURS = "cividis"
"""Colours that colour-blind readers can tell apart."""
_BESIDE = 3
_LIGHT, _DARK = "#fafafa", "#101418"


@dataclass(frozen=True)
class HeatMaps:
    """A map for each series."""

    data: pd.DataFrame
    """Data of `points.means`, with ``x`` as the horizontal axis and ``column`` as the vertical one."""
    x: str
    y: str

    def draw(self) -> Canvas:
        from matplotlib.colors import Normalize

        series = list(dict.fromkeys(self.data["series"]))
        rows = -(-len(series) // _BESIDE)
        columns = min(_BESIDE, len(series))
        ys, xs = (list(dict.fromkeys(self.data.sort_values(name, key=_numbers)[name])) for name in ("column", "x"))
        figure = style.canvas(0.4 + rows * (0.75 + 0.38 * len(ys)))
        panels = figure.subplots(rows, columns, squeeze=False)
        norm = Normalize(0.0, max(1.0, float(self.data["value"].max())))
        mesh: Any = None
        for index, axes in enumerate(panels.flat):
            if index >= len(series):
                axes.set_axis_off()
                continue
            own = self.data[self.data["series"] == series[index]]
            mesh = self._map(axes, own, xs, ys, norm)
            axes.set_title(shortened(series[index], 38))
            if index % columns == 0:
                axes.set_ylabel(self.y)
            if index + columns >= len(series):
                axes.set_xlabel(self.x)
        bar = figure.colorbar(mesh, ax=panels, shrink=0.8, aspect=30, pad=0.01)
        bar.outline.set_visible(False)
        bar.ax.set_title("ASE", fontsize=8, fontweight="normal")
        return figure

    def _map(self, axes: Axes, own: pd.DataFrame, xs: list[int], ys: list[str], norm: Any) -> Any:
        table = own.pivot_table(index="column", columns="x", values="value").reindex(index=ys, columns=xs)
        values = np.ma.masked_invalid(table.to_numpy(float))
        mesh = axes.pcolormesh(values, cmap=_COLOURS, norm=norm, edgecolors=style.PAPER, linewidth=1.5)
        axes.set_xticks(np.arange(len(xs)) + 0.5, [str(x) for x in xs])
        axes.set_yticks(np.arange(len(ys)) + 0.5, ys)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for point in own.to_dict("records"):
            place = xs.index(point["x"]) + 0.5, ys.index(point["column"]) + 0.5
            shade = _LIGHT if norm(point["value"]) < 0.55 else _DARK
            value = point["value"]
            half = (point["ci_high"] - point["ci_low"]) / 2
            text = f"{value:.2f}" if math.isnan(half) else f"{value:.2f}\n±{half:.2f}"
            axes.annotate(text, place, ha="center", va="center", fontsize=6.5, color=shade, linespacing=1.1)
        return mesh


def _numbers(values: pd.Series[float]) -> pd.Series[float]:
    return pd.to_numeric(values)
