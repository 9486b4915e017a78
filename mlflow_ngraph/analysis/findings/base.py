"""What a finding is, how strong the evidence for one has to be, and the table that all kinds of findings look at."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import decision, rivals, significance
from mlflow_ngraph.analysis.compare import ALIKE
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.decision import Answer
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import BASELINE_COLUMN, CELL_METRICS, EAGER, baseline_phrase, with_estimates
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.text import NO_INTERVAL, missing
from mlflow_ngraph.verdicts import Verdict

Places = NDArray[np.int64]
"""Rows of a table, by their positions."""

NEEDED = tuple(dict.fromkeys((
    "study_id", "study", "device", "fingerprint", "workload", "label", "family", "compiler", "compiler_label",
    "precision", "mode", "verdict", "reason", "cell", "threads", "batch", "started_at", "finished_at", "git_commit",
    *with_estimates(("throughput", "speedup", "ase", "bsr")), *sorted(rivals.needed("throughput")),
)))  # fmt: skip
"""The columns of the tidy table that findings look at."""
ABOVE, BELOW = 1 + AS_GOOD, 1 / (1 + AS_GOOD)
"""Differences up to the margin are trivial: every test is against it, not against no difference."""
_SHOWN = 4
"""Places that a text names before it counts the others."""


@dataclass(frozen=True)
class Finding:
    """Something that a reader should know, with what it stands on."""

    kind: str
    """One of `KINDS`."""
    title: str
    """One line, without a full stop."""
    text: str
    """One or a few sentences with the figures; intervals are those of single figures, at 95 %."""
    evidence: list[dict[str, Any]]
    """A plain mapping for each cell or comparison that the finding stands on."""
    command: str
    """A command line that shows more."""
    weight: float
    """Larger is more important: the kind counts first, then the size of the effect."""


KINDS = {
    "gain": 80.0,
    "regression": 70.0,
    "undecided": 65.0,
    "tie": 62.0,
    "failed": 60.0,
    "reversal-compiled": 50.0,
    "reversal-devices": 50.0,
    "loss": 40.0,
    "bsr": 30.0,
    "friction": 30.0,
    "knee": 20.0,
    "noise": 10.0,
    "left_out": 5.0,
    "unsupported": 0.0,
    "built": 0.0,
}
"""What findings there are, with the weight of the smallest one of each kind. The size of an effect adds less than ten."""


def weight(kind: str, size: float) -> float:
    """The weight of a finding.

    Parameters
    ----------
    size : float
        How large the effect is, as the absolute logarithm of a ratio, or any other number from 0 on.
    """
    return round(KINDS[kind] + 10 * (1 - float(np.exp(-abs(size)))), 6)


@dataclass(frozen=True)
class Questions:
    """The hypotheses of one kind, and what to say about those that hold."""

    p_values: NDArray[np.float64]
    """How surprising the data are if there is nothing to be found; NaN where nothing can be tested."""
    answer: Callable[[Places, NDArray[np.float64]], list[Finding]]
    """Gets the positions of what was found, and all adjusted p-values."""


class Table:
    """The cells that findings are about: of each cell on each machine that of the latest study.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table; several studies may have measured the same.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        cells = frame[[name for name in NEEDED if name in frame.columns]].copy()
        cells["fingerprint"] = cells["fingerprint"].fillna("")
        cells["place"] = _places(cells)
        cells["block"] = cells["workload"].astype(str).str.startswith("block:")
        self.all = cells.sort_values(["started_at", "finished_at"], kind="stable").reset_index(drop=True)
        self.latest = self.all.drop_duplicates([*ALIKE, "fingerprint"], keep="last").sort_index().reset_index(drop=True)
        trusted = (self.latest["verdict"] == str(Verdict.OK)).to_numpy(bool) & self.latest["throughput"].notna()
        self.ok = self.latest[trusted].reset_index(drop=True)
        self.rates = significance.figures(self.ok, "throughput")
        self._several = {name: self.all[name].nunique(dropna=False) > 1 for name in ("precision", "mode")}
        threads = self.all.groupby("place", dropna=False)["threads"].nunique(dropna=False)
        self._threads = set(threads[threads > 1].index)
        self._known: dict[str, Places] = {}

    @cached_property
    def answers(self) -> list[tuple[Answer, Places]]:
        """What to run, for each model on each machine; with the latest cells that rank, the answer's own first."""
        compared = Comparison(self.latest, CELL_METRICS["throughput"])
        return list(decision.answers(compared, compared.ranks | compared.doubtful, ("workload", "place")))

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        # A row of a frame at a time costs a hundred times as much as one of these.
        records: list[dict[str, Any]] = self.ok.to_dict("records")
        return records

    def row(self, place: int) -> dict[str, Any]:
        """An ok cell by its position."""
        return self._rows[place]

    def codes(self, *names: str) -> Places:
        """Equal numbers for those ok cells that are equal in these columns."""
        codes = np.zeros(len(self.ok), np.int64)
        for name in names:
            if name not in self._known:
                column = baselines.labels(self.ok) if name == BASELINE_COLUMN else self.ok[name]
                self._known[name] = pd.factorize(column, use_na_sentinel=False)[0].astype(np.int64)
            code = self._known[name]
            codes = codes * (int(code.max(initial=0)) + 1) + code
        return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64).reshape(-1)

    def compiled(self) -> NDArray[np.bool_]:
        """Which ok cells are not of the baseline of their study."""
        return ~baselines.own(self.ok)

    def baselines(self) -> Places:
        """The ok cell of the baseline that belongs to each ok cell; -1 where there is none."""
        key, over = self.codes("place", "threads", "workload", "precision", "mode", "batch"), baselines.labels(self.ok)
        where = {(int(key[place]), over[place]): int(place) for place in np.flatnonzero(~self.compiled())[::-1]}
        return np.array([where.get((int(code), label), -1) for code, label in zip(key, over, strict=True)], np.int64)

    def over(self, row: Any) -> str:
        """What the ratios of a cell refer to, as a sentence calls it."""
        label = row.get(BASELINE_COLUMN)
        return baseline_phrase(EAGER if missing(label) else str(label))

    def context(self, row: Any) -> str:
        """Where a cell was measured: the device, and whatever else tells the cells of this table apart."""
        return context(row, self._several, row["place"] in self._threads)


def context(row: Any, several: dict[str, bool], threads: bool) -> str:
    """The device, and the precision, mode and threads as far as they have to be told."""
    parts = [str(row["place"])]
    parts += [str(row[name]) for name in ("precision", "mode") if several[name]]
    return ", ".join([*parts, *([f"{row['threads']} threads"] if threads else [])])


def _places(frame: pd.DataFrame) -> pd.Series[str]:
    """The device, with the machine where several machines are called the same."""
    machines = frame.groupby("device", dropna=False)["fingerprint"].transform("nunique")
    device, machine = frame["device"].astype(object), frame["fingerprint"].astype(object)
    names: pd.Series[str] = device.where(machines <= 1, device + " (" + machine.str[:6] + ")")
    return names.astype(str)


def pairs(codes: Places) -> tuple[Places, Places]:
    """All pairs of positions with equal codes; within a pair the first position is the smaller one."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=-1 if len(codes) else 0)) + 1
    firsts, seconds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    start = 0
    for end in map(int, ends):
        group = order[start:end]
        first, second = np.triu_indices(len(group), 1)
        firsts.append(group[first])
        seconds.append(group[second])
        start = end
    return np.concatenate(firsts), np.concatenate(seconds)


def groups(codes: Places, places: Places) -> list[Places]:
    """``places`` in groups of equal codes, in the order of their first appearance."""
    by_code: dict[int, list[int]] = {}
    for place in places:
        by_code.setdefault(int(codes[place]), []).append(int(place))
    return [np.array(group, np.int64) for group in by_code.values()]


def percent(ratio: float) -> str:
    """A ratio as a change: ``+12 %``, ``−3.4 %``; or how many times, from twice on."""
    if ratio >= 2:
        return f"×{ratio:.3g}"
    change = 100 * (ratio - 1)
    return f"{'−' if change < 0 else '+'}{abs(change):.{1 if abs(change) < 10 else 0}f} %"


def change(ratios: Estimate, place: int) -> str:
    """A ratio as a change, with its interval."""
    value, low, high = figures_of(ratios, place).values()
    ends = NO_INTERVAL if math.isnan(low) else f"{percent(low)}, {percent(high)}"
    return f"{percent(value)} [{ends}]"


def figures_of(ratios: Estimate, place: int) -> dict[str, float]:
    """A ratio with the ends of its interval, as evidence has it."""
    low, high = ratios.interval()
    return {"value": float(ratios.value[place]), "ci_low": float(low[place]), "ci_high": float(high[place])}


def identity_of(row: Any) -> dict[str, Any]:
    """What names a cell in evidence."""
    return {
        "device": str(row["device"]),
        "label": str(row["label"]),
        "compiler_label": str(row["compiler_label"]),
        "precision": str(row["precision"]),
        "batch": int(row["batch"]),
        "cell": str(row["cell"]),
        "study_id": str(row["study_id"]),
    }


def listed(texts: Iterable[str]) -> str:
    """The first few of different texts, and how many there are more."""
    known = list(dict.fromkeys(texts))
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def command(verb: str, options: dict[str, Iterable[Any]], *more: str) -> str:
    """A command line with filters. What a list on the command line cannot hold is not filtered by.

    Parameters
    ----------
    verb : str
        With its group, as it is typed.
    options : dict[str, Iterable[Any]]
        Values by the name of the option.
    """
    words = ["mlflow-ngraph", *verb.split()]
    for name, values in options.items():
        texts = list(dict.fromkeys(str(value) for value in values))
        if texts and all(text and "," not in text for text in texts):
            words += [f"--{name}", ",".join(texts)]
    return shlex.join([*words, *more])


def filters(rows: pd.DataFrame, *names: str) -> dict[str, Iterable[Any]]:
    """Options that let through what is like these rows; ``names`` are those of the options."""
    columns = {"devices": "device", "workloads": "workload", "compilers": "compiler", "batch-sizes": "batch",
               "precision": "precision", "studies": "study_id"}  # fmt: skip
    return {name: sorted(rows[columns[name]].unique()) for name in names}


def sentence(parts: Sequence[str]) -> str:
    """Sentences behind each other, without those that are empty."""
    return " ".join(part for part in parts if part)
