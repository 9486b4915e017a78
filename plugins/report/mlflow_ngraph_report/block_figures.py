"""Figures 7, 10 and 11 as in the paper: speed-up and batch scaling of stacked blocks by depth, width, batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mlflow_ngraph_report import style, texts
from mlflow_ngraph_report.blocks import Figure, Missing
from mlflow_ngraph_report.curves import Axis, Grid, shortened
from mlflow_ngraph_report.depth_tables import chosen_batches
from mlflow_ngraph_report.model_figures import BATCH, BSR, SPEEDUP
from mlflow_ngraph_report.points import alternative, incomplete, lacks, means, named
from mlflow_ngraph_report.prepared import Prepared, batch_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_TARGETS = {"conv": "convolutional blocks", "mha": "attention blocks"}
_COLOURS = "cividis"
"""Colours that colour-blind readers can tell apart."""
_BESIDE = 3
_LIGHT, _DARK = "#fafafa", "#101418"


def speedups(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 7: speed-up over depth, for each kind of block and device."""
    figures: list[Figure | Missing] = []
    for target, what in _TARGETS.items():
        blocks = prepared.blocks(target)
        frame = blocks[~blocks["of_baseline"] & blocks["speedup"].notna()]
        title = f"Figure 7: speed-up over depth, {what}"
        if frame.empty:
            figures.append(Missing(f"f7-{target}", title, _needs(target)))
            continue
        for key, name, own in _each(frame, f"f7-{target}"):
            batches = chosen_batches(batch_sizes(own))
            own = own[own["batch"].isin(batches)]  # noqa: PLW2901
            if own.groupby(["series", "width", "batch"])["depth"].nunique().max() < 2:
                reason = f"needs several depths with ok cells at batch size {texts.listed(batches)}"
                figures.append(Missing(key, f"{title}{name}", reason))
                continue
            data = means(
                own.assign(at="batch " + own["batch"].astype(str), wide="width " + own["width"].astype(str)),
                "speedup",
                row="at",
                column="wide",
                order=[f"width {width}" for width in sorted(own["width"].unique())],
                x="depth",
            )
            order = {f"batch {batch}": place for place, batch in enumerate(batches)}
            data = data.loc[data["row"].map(order).sort_values(kind="stable").index]
            figures.append(
                Figure(
                    key,
                    f"{title}{name}",
                    f"Speed-up over {prepared.over} against the number of stacked blocks, with 95 % intervals as bands.",
                    named(data, row="batch", column="width", x="depth", value="speedup"),
                    Grid(data.reset_index(drop=True), Axis("stacked blocks"), SPEEDUP).draw,
                    alternative(data, "speed-up", "depth"),
                )
            )
    return figures


def efficiency(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 10: heat maps of ASE over width and batch size, for each kind of block and device."""
    figures: list[Figure | Missing] = []
    for target, what in _TARGETS.items():
        frame = prepared.blocks(target)
        title = f"Figure 10: scaling efficiency over width and batch size, {what}"
        reason = lacks(frame, "ase", _needs(target))
        if reason:
            figures.append(Missing(f"f10-{target}", title, reason))
            continue
        for key, name, own in _each(frame, f"f10-{target}"):
            reason = lacks(own, "ase", _needs(target))
            if reason:
                figures.append(Missing(key, f"{title}{name}", reason))
                continue
            widths = sorted(int(width) for width in own["width"].unique())
            data = means(own, "ase", row=None, column="width", order=widths)
            figures.append(
                Figure(
                    key,
                    f"{title}{name}",
                    "Geometric mean of the ASE over depths; 1 is perfect batch parallelism. Beneath each number is half the "
                    "width of its 95 % interval. A place without a number had no cell that counts.",
                    named(data, column="width", x="batch", value="ase"),
                    HeatMaps(data, "batch size", "width").draw,
                    f"Heat maps of ASE over width and batch size, one for each of {texts.listed(list(dict.fromkeys(data['series'])))}.",
                    incomplete(data),
                )
            )
    return figures


def resilience(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 11: BSR of blocks over batch size by depth; a figure for each device."""
    key, title = "f11", "Figure 11: batch scaling resilience of blocks by depth"
    blocks = prepared.blocks()
    frame = blocks[~blocks["of_baseline"]]
    reason = lacks(frame, "bsr", "needs the studies paper-blocks-conv and paper-blocks-mha, or block: workloads")
    if reason:
        return [Missing(key, title, reason)]
    figures: list[Figure | Missing] = []
    for device in sorted(frame["device"].unique()):
        own = frame[frame["device"] == device]
        several = frame["device"].nunique() > 1
        own_key, own_title = (f"{key}-{texts.slug(device)}", f"{title}, {device}") if several else (key, title)
        reason = lacks(own, "bsr", "")
        if reason:
            figures.append(Missing(own_key, own_title, reason))
            continue
        depths = sorted(int(depth) for depth in own["depth"].unique())
        data = means(
            own.assign(deep="depth " + own["depth"].astype(str)),
            "bsr",
            row="block",
            column="deep",
            order=[f"depth {depth}" for depth in depths],
        )
        figures.append(
            Figure(
                own_key,
                own_title,
                "Geometric mean of the BSR over widths, with its 95 % interval as a band. Above 1 a compiler keeps more of "
                f"its efficiency than {prepared.over} as batches grow.",
                named(data, row="block", column="depth", x="batch", value="bsr"),
                Grid(data, BATCH, BSR).draw,
                alternative(data, "BSR", "batch size"),
                incomplete(data),
            )
        )
    return figures


def _needs(target: str) -> str:
    return f"needs the study paper-blocks-{target}, or block:{target} workloads"


def _each(frame: pd.DataFrame, key: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Cells of each device and variant of a block, with a key and an addition to the title."""
    several = frame["block"].nunique() > 1, frame["device"].nunique() > 1
    for number, ((block, device), own) in enumerate(frame.groupby(["block", "device"])):
        name = "".join(f", {text}" for text, varies in zip((block, device), several, strict=True) if varies)
        yield (f"{key}-{number + 1}" if any(several) else key), name, own


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
        ys, xs = (list(dict.fromkeys(self.data.sort_values(name, key=pd.to_numeric)[name])) for name in ("column", "x"))
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
