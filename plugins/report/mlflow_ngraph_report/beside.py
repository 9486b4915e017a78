"""Comparison with the paper's tables: number by number, and agreement in direction, order and size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.tables.sheet import EMPTY, Cell, Sheet, number
from mlflow_ngraph.text import decimals, rounded, with_thousands
from mlflow_ngraph.workloads.catalogue import paper_blocks, paper_models
from mlflow_ngraph_report import texts
from mlflow_ngraph_report.blocks import Block, Missing, Text
from mlflow_ngraph_report.combined import Value
from mlflow_ngraph_report.environment import Machine
from mlflow_ngraph_report.paper import Comparable, PaperPoint, comparable, named_by_paper
from mlflow_ngraph_report.paper_points import points
from mlflow_ngraph_report.prepared import MODEL, Prepared

_NEEDS = {
    "t3": "needs ok cells of the paper's models at batch size 1 or 32 with openvino, tensorrt or a searched tvm",
    "t6": "needs ok cells of the paper's families at batch sizes from 2 to 16, with identity and a compiler",
    "t7": "needs ok cells of block:conv with widths 64 or 96 at batch size 8 or 16, in several depths",
    "t8": "needs ok cells of block:mha with widths 128 or 256 at batch size 8 or 16, in several depths",
}
_LEAST = 4
"""Fewest points for an interval of the rank correlation."""


def beside(prepared: Prepared, machines: Sequence[Machine]) -> dict[str, list[Block]]:
    """Blocks that ``--paper`` adds, by table; ``all`` holds those about the whole."""
    chosen = comparable(prepared, machines)
    by_table = points(chosen)
    everything = [point for part in by_table.values() for point in part]
    whole: list[Block] = [_set_up(chosen), _agreement(everything, chosen), _by_family(by_table["t6"], chosen)]
    blocks: dict[str, list[Block]] = {key: [_numbers(key, part, chosen)] for key, part in by_table.items()}
    return {"all": whole, "t4": [_models(prepared)], "t5": [_blocks(prepared)], **blocks}


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> Value | None:
    """Rank correlation with its 95 % interval after Bonett and Wright; None with fewer than three points.

    There is no interval at a correlation of 1 or -1, or with three points.
    """
    from scipy import stats

    if len(ours) < _LEAST - 1 or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    correlation = float(stats.spearmanr(ours, theirs).statistic)
    if len(ours) < _LEAST or abs(correlation) > 1 - 1e-9:
        return Value(correlation)
    reach = float(stats.norm.ppf(0.975)) * math.sqrt((1 + correlation**2 / 2) / (len(ours) - 3))
    return Value(correlation, math.tanh(math.atanh(correlation) - reach), math.tanh(math.atanh(correlation) + reach))


@dataclass(frozen=True)
class Agreement:
    """Agreement of one quantity of one compiler with the paper."""

    quantity: str
    device: str
    series: str
    ours: Sequence[float]
    theirs: Sequence[float]
    directions: Counter[str]
    order: Value | None
    ratio: float
    """Geometric mean of ours over theirs; NaN where numbers may be negative."""

    def row(self) -> dict[str, float | str]:
        counts = {name: self.directions[name] for name in ("agrees", "differs", "undecided")}
        order = self.order or Value(math.nan)
        return {
            "quantity": self.quantity, "device": self.device, "series": self.series, "points": len(self.ours), **counts,
            "spearman": order.value, "spearman_ci_low": order.low, "spearman_ci_high": order.high, "ratio": self.ratio,
        }  # fmt: skip

    def cells(self) -> list[Any]:
        """Row of the table."""
        return [
            *(self.quantity, self.series, self.device, len(self.ours)),
            share(self.directions),
            texts.estimate(self.order) if self.order is not None else Cell(EMPTY.text, "too few points"),
            rounded(self.ratio, 3) or None,
        ]


def agreements(every: Sequence[PaperPoint]) -> list[Agreement]:
    """One for each quantity, device and compiler, in the order of the tables."""
    groups: dict[tuple[str, str, str], list[PaperPoint]] = {}
    orders: dict[tuple[str, str, str], list[PaperPoint]] = {}
    for point in every:
        device = f"{point.device} / {point.paper_device}"
        if not point.is_baseline:
            groups.setdefault((_NAMES[point.table] + point.quantity, device, point.series), []).append(point)
        if math.isfinite(point.paper_raw):
            quantity = f"table 6: throughput of families, batch {point.batch}"
            orders.setdefault((quantity, device, point.series), []).append(point)
    comparisons = []
    for (quantity, device, series), part in groups.items():
        ours, theirs = [pair.here.value for pair in part], [pair.paper for pair in part]
        directions = Counter(pair.direction for pair in part if pair.direction)
        comparisons.append(_agree(quantity, device, series, ours, theirs, directions))
    for (quantity, device, series), part in orders.items():
        ours, theirs = [pair.here_raw for pair in part], [pair.paper_raw for pair in part]
        comparisons.append(_agree(quantity, device, series, ours, theirs, Counter()))
    return comparisons


def share(directions: Counter[str]) -> Cell:
    """Share of agreeing points among those whose interval decides the direction."""
    decided, open_ = directions["agrees"] + directions["differs"], directions["undecided"]
    if not decided and not open_:
        return EMPTY
    return Cell(f"{directions['agrees']} of {decided}", f"({open_} undecided)" if open_ else "")


_NAMES = {"t3": "table 3: ", "t6": "table 6: ", "t7": "table 7: ", "t8": "table 8: "}


def _agree(
    quantity: str, device: str, series: str, ours: list[float], theirs: list[float], directions: Counter[str]
) -> Agreement:
    positive = min(*ours, *theirs) > 0
    ratio = float(np.exp(np.mean(np.log(ours) - np.log(theirs)))) if positive else math.nan
    return Agreement(quantity, device, series, ours, theirs, directions, spearman(ours, theirs), ratio)


def _set_up(chosen: Comparable) -> Text:
    paragraphs = []
    if chosen.devices:
        paragraphs += ["What differs from the paper, although numbers stand beside each other:", *chosen.caveats]
    if chosen.reasons:
        paragraphs += ["What is not compared:", *(f"{reason}." for reason in chosen.reasons)]
    return Text("paper-setup", "What is compared", paragraphs)


def _agreement(every: Sequence[PaperPoint], chosen: Comparable) -> Sheet | Missing:
    key, title = "agreement", "Agreement with the paper"
    comparisons = agreements(every)
    if not comparisons:
        return Missing(key, title, _why(chosen, "none of the paper's numbers has a counterpart"))
    return Sheet(
        title,
        [
            *("quantity", "compiler", "device / the paper's"),
            *map(number, ("points", "direction agrees", "order", "size")),
        ],
        [comparison.cells() for comparison in comparisons],
        caption="Direction: the same side of 1 (speed-up, retention) or of 0 (slope), counted where our 95 % interval tells the side. "
        "Order: Spearman's rank correlation with its 95 % interval. Size: geometric mean of our numbers over the paper's.",
        key=key,
        data=pd.DataFrame([comparison.row() for comparison in comparisons]),
        names=2,
    )


def _by_family(part: Sequence[PaperPoint], chosen: Comparable) -> Sheet | Missing:
    key, title = "agreement-families", "Direction of the speed-up by family"
    compiled = [point for point in part if not point.is_baseline]
    if not compiled:
        return Missing(key, title, _why(chosen, _NEEDS["t6"]))
    series = list(dict.fromkeys((point.device, point.series) for point in compiled))
    rows, data = [], []
    for family in dict.fromkeys(point.group for point in compiled):
        cells: list[Any] = [family]
        for device, name in series:
            own = [point for point in compiled if (point.group, point.device, point.series) == (family, device, name)]
            directions = Counter(point.direction for point in own)
            counts = {kind: directions[kind] for kind in ("agrees", "differs", "undecided")}
            data.append({"family": family, "device": device, "series": name, "points": len(own), **counts})
            cells.append(share(directions))
        rows.append(cells)
    return Sheet(
        title,
        ["family", *(number(name, group=device) for device, name in series)],
        rows,
        caption="In how many bands of batch sizes a compiler is on the same side of eager execution here as in the paper, of those "
        "in which our 95 % interval tells the side.",
        key=key,
        data=pd.DataFrame(data),
    )


def _numbers(key: str, part: Sequence[PaperPoint], chosen: Comparable) -> Sheet | Missing:
    title = f"Table {key[1:]} beside the paper's"
    if not part:
        return Missing(f"{key}-paper", title, _why(chosen, _NEEDS[key]))
    raw = key == "t6"
    rows, data = [], []
    for point in part:
        absolute = [decimals(point.here_raw), decimals(point.paper_raw)] if raw else []
        ours = EMPTY if point.is_baseline else texts.estimate(point.here)
        numbers = [ours, EMPTY if point.is_baseline else rounded(point.paper)]
        named = [point.group, point.series, point.device, point.batch, *([] if raw else [point.quantity])]
        rows.append([*named, *absolute, *numbers, point.direction or None])
        data.append(
            {
                "quantity": point.quantity, "group": point.group, "series": point.series, "device": point.device,
                "paper_device": point.paper_device, "batch": point.batch, "here": point.here.value,
                "here_ci_low": point.here.low, "here_ci_high": point.here.high, "paper": point.paper,
                "direction": point.direction, "here_throughput": point.here_raw, "paper_throughput": point.paper_raw,
            }
        )  # fmt: skip
    what = {"t3": "model", "t6": "family"}.get(key, "blocks")
    groups = ["samples/s", "speed-up"] if raw else [""]
    return Sheet(
        title,
        [
            *(what, "compiler", "device"),
            number("batch"),
            *([] if raw else ["quantity"]),
            *(number(name, group=group) for group in groups for name in ("here", "paper")),
            "direction",
        ],
        rows,
        caption=_CAPTIONS[key],
        key=f"{key}-paper",
        data=pd.DataFrame(data),
        names=2,
    )


_DEPTH = "Slopes agree if they have the same sign, retentions if they are on the same side of 1."
_CAPTIONS = {
    "t3": "Seconds of compilation here and in the paper. Nothing is better or worse here than in the paper: processors, "
    "versions and caches differ. What can be compared is the order, in the table of agreement.",
    "t6": "Mean throughput over a family's models and a band's batch sizes, and the speed-up over eager execution: the sum of "
    "throughputs over that of identity, on the models and batch sizes that both have.",
    "t7": _DEPTH,
    "t8": _DEPTH,
}


def _models(prepared: Prepared) -> Sheet | Missing:
    """Table 4; all numbers have to be equal."""
    every = prepared.every.assign(label=named_by_paper(prepared.every))
    models = {model.label: model for model in paper_models().values()}
    known = every["parameters"].notna() & every["paper_macs"].notna()
    frame = every[(every["kind"] == MODEL) & known & every["label"].isin(list(models))].drop_duplicates("label")
    numbers = {row["label"]: (row["parameters"], row["paper_macs"]) for row in frame.to_dict("records")}
    rows = [
        (label, what, number, theirs)
        for label, model in models.items()
        if label in numbers
        for what, number, theirs in zip(
            ("parameters", "MACs"), numbers[label], (model.parameters, model.paper_macs), strict=True
        )
    ]
    return _equal("t4", "model", rows, "needs models of the paper")


def _blocks(prepared: Prepared) -> Sheet | Missing:
    """Table 5; all numbers have to be equal."""
    every = prepared.every
    frame = every[every["target"].notna()]
    parameters = {(block.block, block.width): block.parameters_per_block for block in paper_blocks()}
    rows = []
    for (target, width), cells in frame.groupby(["target", "width"]):
        theirs = parameters.get((str(target), int(width)))
        cell = cells.iloc[0]
        if theirs is not None and not pd.isna(cell["parameters"]):
            rows.append((f"{target}, width {width}", "parameters a block", cell["parameters"] // cell["depth"], theirs))
    return _equal("t5", "block", rows, "needs blocks of the paper's widths")


def _equal(key: str, what: str, rows: Sequence[tuple[str, str, float, float]], needs: str) -> Sheet | Missing:
    title = f"Table {key[1:]} beside the paper's"
    if not rows:
        return Missing(f"{key}-paper", title, needs)
    same = sum(bool(ours == theirs) for *_, ours, theirs in rows)
    return Sheet(
        title,
        [what, "number", *map(number, ("here", "paper", "equal"))],
        [
            [name, figure, *(with_thousands(float(value)) for value in pair), bool(pair[0] == pair[1])]
            for name, figure, *pair in rows
        ],
        caption=f"{same} of {len(rows)} numbers are equal to the paper's.",
        key=f"{key}-paper",
        data=pd.DataFrame(rows, columns=[what, "number", "here", "paper"]),
        names=2,
    )


def _why(chosen: Comparable, needs: str) -> str:
    return f"not comparable: {'; '.join([*chosen.reasons, needs])}" if chosen.reasons else needs
