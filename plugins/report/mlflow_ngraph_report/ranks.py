"""Figure 1 as in the paper: ranks of models by throughput under each compiler, with a test of the reversals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.findings.base import MOST_ALIKE
from mlflow_ngraph.estimates import ALPHA
from mlflow_ngraph.metrics import METRICS, with_estimates
from mlflow_ngraph.text import counted
from mlflow_ngraph_report import style, texts
from mlflow_ngraph_report.blocks import Figure, Missing
from mlflow_ngraph_report.curves import shortened
from mlflow_ngraph_report.model_tables import NEEDS_MODELS
from mlflow_ngraph_report.points import first_models
from mlflow_ngraph_report.prepared import Prepared, batch_sizes, order_of_families, order_of_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_KEY, _TITLE = "f1", "Figure 1: rank of architectures, compiled and not"
_COVERED = 0.5
"""Least share of models that a compiler must have. Leaving it out lets more models be ranked."""


def reversals(prepared: Prepared) -> Figure | Missing:
    """Figure 1: ranks of models from the baseline to each compiler, by device."""
    frame = prepared.models
    if frame.empty:
        return Missing(_KEY, _TITLE, NEEDS_MODELS)
    parts, sentences, left_out = [], [], []
    for device in prepared.devices:
        own = _ranked(frame[frame["device"] == device])
        if own is None:
            continue
        parts.append(own)
        sentences.append(_told(own, device, several=len(prepared.devices) > 1))
        here = frame[(frame["device"] == device) & (frame["batch"] == own["batch"].iloc[0])]
        gone = [name for name in order_of_series(here) if name not in set(own["series"])]
        gone += sorted(set(here["label"]) - set(own["label"]))
        if gone:
            left_out.append(
                f"Left out on {device}, because not everything shown was measured with it: {texts.listed(gone)}."
            )
    if not parts:
        return Missing(
            _KEY,
            _TITLE,
            f"needs two models or more that were measured with {prepared.baseline} and with another compiler",
        )
    data = pd.concat(parts, ignore_index=True)
    drawn, notes = first_models(data.sort_values("rank", kind="stable"), "label")
    columns = ["device", "batch", "series", "compiler", "label", "family", "rank", "throughput"]
    return Figure(
        _KEY,
        _TITLE,
        "Models by throughput, the fastest on top, with the compiler that they run with. Lines that cross are choices that "
        "turn round when one compiles. " + " ".join(sentences),
        data[[*columns, *with_estimates(["throughput"])[1:]]],
        Ranks(drawn.sort_index()).draw,
        f"Ranks of {data['label'].nunique()} models by throughput under {texts.listed(order_of_series(data))}; "
        "the numbers are in the CSV file.",
        [*left_out, *notes],
    )


@dataclass(frozen=True)
class Ranks:
    """Panel for each device, with a line for each model."""

    data: pd.DataFrame

    def draw(self) -> Canvas:
        devices = list(dict.fromkeys(self.data["device"]))
        most = self.data["rank"].nunique()
        figure = style.canvas(0.5 + len(devices) * (0.6 + 0.21 * most))
        panels = figure.subplots(len(devices), 1, squeeze=False)
        families = order_of_families(self.data)
        for device, axes in zip(devices, panels.flat, strict=True):
            self._panel(axes, self.data[self.data["device"] == device], families)
        _legend(figure, families)
        return figure

    def _panel(self, axes: Axes, own: pd.DataFrame, families: Sequence[str]) -> None:
        series = order_of_series(own)
        for _, line in own.groupby("label"):
            places = [series.index(name) for name in line["series"]]
            order = np.argsort(places)
            colour = style.of_family(families.index(str(line["family"].iloc[0])))
            axes.plot(
                np.asarray(places)[order], line["rank"].to_numpy()[order], color=colour, marker="o", linewidth=2,
                markersize=6, markeredgewidth=0, alpha=0.9, clip_on=False,
            )  # fmt: skip
        axes.set_xticks(range(len(series)), [_broken(name) for name in series])
        axes.set_xlim(-0.15, len(series) - 0.85)
        axes.set_ylim(own["rank"].max() + 0.6, 0.4)
        axes.grid(visible=False, axis="y")
        axes.tick_params(length=0)
        axes.xaxis.set_ticks_position("top")
        for spine in axes.spines.values():
            spine.set_visible(False)
        last = axes.twinx()
        for side, name in ((axes, series[0]), (last, series[-1])):
            ends = own[own["series"] == name].sort_values("rank")
            names = [f"{shortened(str(label), 26)}" for label in ends["label"]]
            side.set_yticks(ends["rank"], names)
        last.set_ylim(axes.get_ylim())
        last.tick_params(length=0)
        last.grid(visible=False)
        for spine in last.spines.values():
            spine.set_visible(False)
        axes.set_ylabel(f"{own['device'].iloc[0]}, batch {own['batch'].iloc[0]}")


def reversed_pairs(ranked: pd.DataFrame, series: str) -> tuple[int, int, bool]:
    """Count pairs of models that a series reorders, the significant ones among them, and tell if any could be tested.

    A pair is significant if it differs both ways. Its p-value is the larger one, adjusted by Holm's method.
    """
    labels = sorted(ranked["label"].unique())
    base, other = (
        ranked[ranked["series"] == name].set_index("label").loc[labels].reset_index()
        for name in (order_of_series(ranked)[0], series)
    )
    first, second = np.triu_indices(len(labels), 1)
    before, after = (Comparison(frame, METRICS["throughput"]).ratios(first, second) for frame in (base, other))
    turned = np.sign(before.log) * np.sign(after.log) < 0
    p_values = significance.holm(np.where(turned, np.maximum(before.p_differs(), after.p_differs()), 1.0))
    tested = bool(np.isfinite(before.error).any())
    return int(turned.sum()), int((turned & (p_values < ALPHA)).sum()), tested


def _ranked(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Models of one device with ranks, at the largest batch size that all shown series share."""
    for batch in reversed(batch_sizes(frame)):
        own: pd.DataFrame = frame[frame["batch"] == batch]
        counts = own.groupby("series")["label"].nunique()
        kept = counts[counts >= max(2, _COVERED * counts.max())].index
        own = own[own["series"].isin(kept)]
        if own.empty or not own["of_baseline"].any() or own["compiler"].nunique() < 2:
            continue
        everywhere = own.groupby("label")["series"].nunique()
        own = own[own["label"].isin(everywhere[everywhere == own["series"].nunique()].index)].copy()
        if own["label"].nunique() > 1:
            own["rank"] = own.groupby("series")["throughput"].rank(ascending=False, method="first").astype(int)
            return own
    return None


def _told(ranked: pd.DataFrame, device: str, *, several: bool) -> str:
    where = (
        f"On {device} at batch size {ranked['batch'].iloc[0]}"
        if several
        else f"At batch size {ranked['batch'].iloc[0]}"
    )
    base = order_of_series(ranked)[0]
    turns = []
    models = ranked["label"].nunique()
    if models > MOST_ALIKE:
        return f"{where}, {models} models are too many to compare each pair."
    pairs = models * (models - 1) // 2
    for series in order_of_series(ranked)[1:]:
        turned, sure, tested = reversed_pairs(ranked, series)
        doubt = f" ({sure} beyond doubt)" if tested else ""
        turns.append(f"{turned}{doubt} with {series}")
    return f"{where}, of {counted(pairs, 'pair')} of models change places against {base}: {texts.listed(turns)}."


def _broken(name: str) -> str:
    """Break a name into lines for a column."""
    head, bracket, rest = shortened(name, 40).partition("[")
    return f"{head}\n{bracket}{rest}" if bracket else head


def _legend(figure: Canvas, families: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=style.of_family(place), marker="o", linewidth=2) for place in range(len(families))]
    figure.legend(handles, [shortened(name, 24) for name in families], loc="outside lower center", ncols=6)
