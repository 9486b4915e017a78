"""`Finding`, `Hypotheses` and the `Cells` they are about, with weights and helpers for texts and commands."""

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
from mlflow_ngraph.analysis.compare import ALIKE, latest
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.decision import Answer
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import BASELINE_COLUMN, CELL_METRICS, baseline_phrase, with_estimates
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.text import NO_INTERVAL
from mlflow_ngraph.verdicts import Verdict

Places = NDArray[np.int64]
"""Positions of rows."""

NEEDED = tuple(dict.fromkeys((
    "study_id", "study", "device", "fingerprint", "workload", "label", "family", "compiler", "compiler_label",
    "precision", "mode", "verdict", "reason", "cell", "threads", "batch", "started_at", "finished_at", "git_commit",
    *with_estimates(("throughput", "speedup", "ase", "bsr")), *sorted(rivals.needed("throughput")),
)))  # fmt: skip
"""Needed columns of the tidy table."""
ABOVE, BELOW = 1 + AS_GOOD, 1 / (1 + AS_GOOD)
"""Bounds of trivial differences. Tests are against these, not against equality."""
_SHOWN = 4
"""Most items named in a text."""


@dataclass(frozen=True)
class Finding:
    """A noteworthy fact with its evidence."""

    kind: str
    """One of `KINDS`."""
    title: str
    """One line without a full stop."""
    text: str
    """Sentences with figures; intervals are at 95 %, of single figures."""
    evidence: list[dict[str, Any]]
    """Plain mapping for each cell or comparison."""
    command: str
    """A command line that shows more, or measures again what is undecided."""
    weight: float
    """Importance: first by kind, then by size of the effect."""

    def command_in(self, scope: str) -> str:
        """The command with the options that say where to read; one that measures reads nothing."""
        return self.command if " benchmark " in self.command else f"{self.command} {scope}".rstrip()


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
"""Kinds of findings with their smallest weight. The size of an effect adds less than ten."""


MOST_ALIKE = 300
"""Models in equal conditions of which each pair is compared: the pairs grow with their square."""


def weight(kind: str, size: float) -> float:
    """Importance of a finding; ``size`` is the effect, as the absolute logarithm of a ratio or another number from 0 on."""
    return round(KINDS[kind] + 10 * (1 - float(np.exp(-abs(size)))), 6)


@dataclass(frozen=True)
class Hypotheses:
    """Hypotheses of one kind, with a function that describes those that hold."""

    p_values: NDArray[np.float64]
    """p-values; NaN where nothing can be tested."""
    answer: Callable[[Places, NDArray[np.float64]], Iterable[Finding]]
    """Takes the positions of significant hypotheses, and all adjusted p-values."""


class Cells:
    """Cells that findings are about: the latest row of each cell on each machine."""

    def __init__(self, frame: pd.DataFrame) -> None:
        cells = frame[[name for name in NEEDED if name in frame.columns]].copy()
        cells["fingerprint"] = cells["fingerprint"].fillna("")
        cells["place"] = _places(cells)
        cells["block"] = cells["workload"].astype(str).str.startswith("block:")
        self.all = cells.sort_values(["started_at", "finished_at"], kind="stable").reset_index(drop=True)
        self.latest = latest(self.all, (*ALIKE, "fingerprint")).reset_index(drop=True)
        trusted = (self.latest["verdict"] == str(Verdict.OK)).to_numpy(bool) & self.latest["throughput"].notna()
        self.ok = self.latest[trusted].reset_index(drop=True)
        self.rates = significance.figures(self.ok, "throughput")
        self._several = {name: self.all[name].nunique(dropna=False) > 1 for name in ("precision", "mode")}
        threads = self.all.groupby("place", dropna=False)["threads"].nunique(dropna=False)
        self._threads = set(threads[threads > 1].index)
        self._known: dict[str, Places] = {}

    @cached_property
    def answers(self) -> list[tuple[Answer, Places]]:
        """Recommendation for each model and machine, with its ranking cells."""
        compared = Comparison(self.latest, CELL_METRICS["throughput"])
        return list(decision.answers(compared, compared.ranks | compared.unranked, ("workload", "place")))

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        # A row of a frame costs a hundred times as much as one of these mappings.
        records: list[dict[str, Any]] = self.ok.to_dict("records")
        return records

    def row(self, place: int) -> dict[str, Any]:
        return self._rows[place]

    def codes(self, *names: str) -> Places:
        """Number the ok cells that are equal in these columns."""
        codes = np.zeros(len(self.ok), np.int64)
        for name in names:
            if name not in self._known:
                column = baselines.labels(self.ok) if name == BASELINE_COLUMN else self.ok[name]
                self._known[name] = pd.factorize(column, use_na_sentinel=False)[0].astype(np.int64)
            code = self._known[name]
            codes = codes * (int(code.max(initial=0)) + 1) + code
        return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64).reshape(-1)

    def compiled(self) -> NDArray[np.bool_]:
        """Mark ok cells that are not of their study's baseline."""
        return ~baselines.own(self.ok)

    def baselines(self) -> Places:
        """Position of each ok cell's baseline; -1 without one."""
        key, over = self.codes("place", "threads", "workload", "precision", "mode", "batch"), baselines.labels(self.ok)
        where = {(int(key[place]), over[place]): int(place) for place in np.flatnonzero(~self.compiled())[::-1]}
        return np.array([where.get((int(code), label), -1) for code, label in zip(key, over, strict=True)], np.int64)

    def over(self, row: Any) -> str:
        """Name the baseline of a cell in a sentence."""
        return baseline_phrase(baselines.of_row(row))

    def context(self, row: Any) -> str:
        """Describe the place of a measurement: the device, and precision, mode and threads where they vary."""
        parts = [str(row["place"]), *(str(row[name]) for name, several in self._several.items() if several)]
        return ", ".join([*parts, *([f"{row['threads']} threads"] if row["place"] in self._threads else [])])


def _places(frame: pd.DataFrame) -> pd.Series[str]:
    """Device, with the fingerprint where several machines share its name."""
    machines = frame.groupby("device", dropna=False)["fingerprint"].transform("nunique")
    device, machine = frame["device"].astype(object), frame["fingerprint"].astype(object)
    names: pd.Series[str] = device.where(machines <= 1, device + " (" + machine.str[:6] + ")")
    return names.astype(str)


def pairs(codes: Places) -> tuple[Places, Places]:
    """Pairs of positions with equal codes, the smaller position first; none of over `MOST_ALIKE` equal ones."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=-1 if len(codes) else 0)) + 1
    starts = np.concatenate([[0], ends])[:-1]
    # Most groups have one member, and are as many as there are pairs of models.
    several = (ends - starts > 1) & (ends - starts <= MOST_ALIKE)
    firsts, seconds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
        group = order[start:end]
        first, second = np.triu_indices(len(group), 1)
        firsts.append(group[first])
        seconds.append(group[second])
    return np.concatenate(firsts), np.concatenate(seconds)


def groups(codes: Places, places: Places) -> list[Places]:
    """Group ``places`` by code, in order of first appearance."""
    by_code: dict[int, list[int]] = {}
    for place in places:
        by_code.setdefault(int(codes[place]), []).append(int(place))
    return [np.array(group, np.int64) for group in by_code.values()]


def percent(ratio: float) -> str:
    """Ratio as a change: ``+12 %``, ``−3.4 %``; as a multiple from twice on."""
    if ratio >= 2:
        return f"×{ratio:.3g}"
    change = 100 * (ratio - 1)
    return f"{'−' if change < 0 else '+'}{abs(change):.{1 if abs(change) < 10 else 0}f} %"


def change(ratios: Estimate, place: int) -> str:
    """Ratio as a change, with its interval."""
    value, low, high = figures_of(ratios, place).values()
    ends = NO_INTERVAL if math.isnan(low) else f"{percent(low)}, {percent(high)}"
    return f"{percent(value)} [{ends}]"


def figures_of(ratios: Estimate, place: int) -> dict[str, float]:
    """Ratio with the ends of its interval, for evidence."""
    low, high = ratios.interval()
    return {"value": float(ratios.value[place]), "ci_low": float(low[place]), "ci_high": float(high[place])}


def identity_of(row: Any) -> dict[str, Any]:
    """Identity of a cell, for evidence."""
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
    """First different texts, and the number of others."""
    known = list(dict.fromkeys(texts))
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def command(verb: str, options: dict[str, Iterable[Any]], *more: str) -> str:
    """Command line with filters: a verb with its group, and values by option. Values that a list on the command line
    cannot hold are left out.
    """
    words = ["mlflow-ngraph", *verb.split()]
    for name, values in options.items():
        texts = list(dict.fromkeys(str(value) for value in values))
        if texts and all(text and "," not in text for text in texts):
            words += [f"--{name}", ",".join(texts)]
    return shlex.join([*words, *more])


def filters(rows: pd.DataFrame, *names: str) -> dict[str, Iterable[Any]]:
    """Options that select rows like these; ``names`` are the options."""
    columns = {"devices": "device", "workloads": "workload", "compilers": "compiler", "batch-sizes": "batch",
               "precision": "precision", "studies": "study_id"}  # fmt: skip
    return {name: sorted(rows[columns[name]].unique()) for name in names}


def sentence(parts: Sequence[str]) -> str:
    """Join the sentences that are not empty."""
    return " ".join(part for part in parts if part)
