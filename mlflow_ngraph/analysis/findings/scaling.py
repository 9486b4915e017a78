"""Batch sizes beyond which throughput stops growing, and widths from which blocks scale worse with the batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.findings.base import (
    ABOVE,
    BELOW,
    Cells,
    Finding,
    Hypotheses,
    Places,
    change,
    command,
    figures_of,
    filters,
    groups,
    identity_of,
    listed,
    weight,
)
from mlflow_ngraph.estimates import unknown
from mlflow_ngraph.metrics import CELL_METRICS

FLAT = 1.05
"""Smallest gain of a larger batch size that pays."""
_OPTION = re.compile(r"(?<=[?&])(width|depth)=(\d{1,9})(?!\d)")


def knees(table: Cells) -> Hypotheses:
    """Batch sizes beyond which throughput stops growing."""
    knee, before, later, owner = _steps(table)
    growth = table.rates.take(knee).over(table.rates.take(before))
    beyond = table.rates.take(later).over(table.rates.take(knee[owner]))
    p_values = growth.p_above(ABOVE)
    with np.errstate(invalid="ignore"):
        # Every larger batch size has to be flat; np.maximum.at carries NaN along.
        np.maximum.at(p_values, owner, beyond.p_below(FLAT))
    p_values[_doubtful(table, knee)] = np.nan

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        lanes = table.codes("place", "threads", "workload", "compiler_label", "precision", "mode")
        first = np.array([group[np.argmin(table.ok["batch"].to_numpy(int)[knee[group]])]
                          for group in groups(lanes[knee], sure)], np.int64)  # fmt: skip
        arms = table.codes("place", "threads", "compiler_label", "precision", "mode")
        for group in groups(arms[knee], first):
            cells = table.ok.iloc[knee[group]]
            cell = cells.iloc[0]
            gains = {int(place): int(np.flatnonzero(owner == place)[np.argmax(beyond.log[owner == place])])
                     for place in group}  # fmt: skip
            texts = [
                f"{row['label']} at batch {row['batch']} ({change(growth, int(place))} over batch "
                f"{table.ok['batch'].iloc[before[place]]}; no larger batch more than {change(beyond, gains[int(place)])})"
                for place, (_, row) in zip(group, cells.iterrows(), strict=True)
            ]
            yield Finding(
                "knee",
                f"larger batches stop paying with {cell['compiler_label']} on {table.context(cell)}",
                f"Throughput stops growing: {listed(texts)}.",
                [
                    identity_of(table.row(knee[place]))
                    | {f"growth_{key}": value for key, value in figures_of(growth, int(place)).items()}
                    | {f"beyond_{key}": value for key, value in figures_of(beyond, gains[int(place)]).items()}
                    | {"p": float(adjusted[place])}
                    for place in group
                ],
                command(
                    "compare",
                    filters(cells, "devices", "workloads", "compilers", "precision"),
                    "--rows", "label", "--columns", "batch", "--intervals",
                ),
                weight("knee", max(float(growth.log[place]) for place in group)),
            )  # fmt: skip

    return Hypotheses(p_values, answer)


def _doubtful(table: Cells, knee: Places) -> NDArray[np.bool_]:
    """Mark batch sizes below one that cannot rank but may pay."""
    lane = ["place", "threads", "workload", "compiler_label", "precision", "mode"]
    throughput = CELL_METRICS["throughput"]
    compared = Comparison(table.latest, throughput)
    unsure = table.latest[compared.unranked]
    if unsure.empty:
        return np.zeros(len(knee), bool)
    hoped = unsure[[*lane, "batch"]].assign(hoped=compared.optimistic[compared.unranked])
    asked = table.ok.iloc[knee][[*lane, "batch", throughput.name]].reset_index(drop=True).reset_index(names="knee")
    both = asked.merge(hoped, on=lane, suffixes=("", "_later"))
    pays = (both["batch_later"] > both["batch"]) & (both["hoped"] > FLAT * both[throughput.name])
    mask = np.zeros(len(knee), bool)
    mask[both.loc[pays, "knee"].to_numpy(int)] = True
    return mask


def _steps(table: Cells) -> tuple[Places, Places, Places, Places]:
    """Every inner batch size of a lane, the one before, all larger ones, and their owners."""
    lanes = table.codes("place", "threads", "workload", "compiler_label", "precision", "mode")
    batches = table.ok["batch"].to_numpy(int)
    order = np.lexsort((batches, lanes)).astype(np.int64)
    knee: list[int] = []
    before: list[int] = []
    later: list[int] = []
    owner: list[int] = []
    for lane in groups(lanes, order):
        for place in range(1, len(lane) - 1):
            later += list(lane[place + 1 :])
            owner += [len(knee)] * (len(lane) - place - 1)
            knee.append(lane[place])
            before.append(lane[place - 1])
    return np.array(knee, np.int64), np.array(before, np.int64), np.array(later, np.int64), np.array(owner, np.int64)


def friction(table: Cells) -> Hypotheses:
    """Widths from which blocks scale worse with the batch size than the narrowest block."""
    rows, narrow, widths, styles = _blocks(table)
    whole = significance.figures(table.ok, "ase") if "ase" in table.ok else unknown(len(table.ok))
    ratios = whole.take(rows).over(whole.take(narrow))

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        lanes = table.codes("place", "threads", "compiler_label", "precision", "mode")
        kinds = pd.factorize(styles)[0]
        for group in groups(lanes[rows] * (int(kinds.max(initial=0)) + 1) + kinds, sure):
            onset = int(widths[rows[group]].min())
            at_onset = group[widths[rows[group]] == onset]
            worst = int(at_onset[np.argmin(ratios.log[at_onset])])
            row = table.row(rows[worst])
            cells = table.ok.iloc[np.concatenate([rows[group], narrow[group]])]
            others = [f"{table.ok['label'].iloc[rows[place]]} at batch {table.ok['batch'].iloc[rows[place]]}"
                      for place in group if place != worst]  # fmt: skip
            yield Finding(
                "friction",
                f"scaling friction sets in at width {onset} with {row['compiler_label']} on {table.context(row)}",
                f"Scaling efficiency (ASE) of {row['label']} at batch {row['batch']} against width "
                f"{widths[narrow[worst]]} at the same depth: {change(ratios, worst)}"
                + (f"; also {listed(others)}." if others else "."),
                [
                    identity_of(table.row(rows[place]))
                    | {"width": int(widths[rows[place]]), "than_width": int(widths[narrow[place]]), "metric": "ase",
                       **figures_of(ratios, int(place)), "p": float(adjusted[place])}
                    for place in group
                ],
                command(
                    "compare",
                    filters(cells, "devices", "workloads", "compilers", "precision"),
                    "--metric", "ase", "--rows", "label", "--columns", "batch", "--intervals",
                ),
                weight("friction", float(ratios.log[worst])),
            )  # fmt: skip

    return Hypotheses(ratios.p_below(BELOW), answer)


def _blocks(table: Cells) -> tuple[Places, Places, NDArray[np.int64], NDArray[Any]]:
    """Block cells, the narrowest otherwise equal block of each, widths of all cells, and kinds of block."""
    texts = table.ok["workload"].to_numpy(str)
    options = [dict(_OPTION.findall(text)) if text.startswith("block:") else {} for text in texts]
    widths = np.array([int(settings.get("width", 0)) for settings in options], np.int64)
    # References without width group comparable blocks; without depth as well, kinds of blocks.
    bare = [re.sub(r"(?<=[?&])width=\d+&?", "", text) for text in texts]
    kinds = np.array([re.sub(r"(?<=[?&])depth=\d+&?", "", text) for text in bare], object)
    alike = table.codes("place", "threads", "compiler_label", "precision", "mode", "batch")
    code = pd.factorize(pd.Series(bare, dtype=object) + "|" + pd.Series(alike, dtype=object).astype(str))[0]
    batches = table.ok["batch"].to_numpy(int)
    rows, narrow = [], []
    for group in groups(code.astype(np.int64), np.flatnonzero((widths > 0) & (batches > 1))):
        ranked = group[np.argsort(widths[group], kind="stable")]
        rows += list(ranked[1:])
        narrow += [ranked[0]] * (len(ranked) - 1)
    places = np.array(rows, np.int64)
    return places, np.array(narrow, np.int64), widths, kinds[places]
