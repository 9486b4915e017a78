"""`Answer` for each workload and device: best cell, speed-ups, equals, rivals, in a sentence; also for fleets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import fleet_choice, undecided
from mlflow_ngraph.analysis.cell_columns import Mask, Places
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.rivals import rivals_of
from mlflow_ngraph.analysis.undecided import Rival
from mlflow_ngraph.metrics import METRICS, Metric, is_complement
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.text import UNSTEADY_MARK, plain, rounded

_three = partial(rounded, digits=3)

_SMALL = 8
"""Cells of a group that are all compared with each other at once: a pass over few cells costs as much as one over many."""


@dataclass(frozen=True)
class Gain:
    """Speed-up of a choice at a batch size."""

    batch: int
    value: float
    ci_low: float | None
    ci_high: float | None
    unsteady: bool
    """Contaminated by other load on the machine."""

    @property
    def known(self) -> bool:
        """Its size says something: it has an interval, or the machine was quiet."""
        return self.ci_low is not None or not self.unsteady

    def over(self, baseline: str) -> str:
        """Speed-up over a baseline with its interval; the direction alone where its size is unknown."""
        if not self.known:
            return f"{'faster' if self.value > 1 else 'not faster'} than {baseline} (by how much cannot be told)"
        none = "" if self.ci_low is not None else " (no interval)"
        return f"{times(self.value, self.ci_low, self.ci_high, unsteady=self.unsteady)}{none} times {baseline}"


@dataclass(frozen=True)
class Answer:
    """Recommendation for a workload, with its rivals."""

    workload: str
    label: str
    device: str | None
    """None where one choice is for all devices."""
    row: Mapping[str, Any] | None
    """Row of the cell; None without any."""
    figure: str
    gains: Sequence[Gain]
    """Speed-ups of its compiler by batch size, its own first; empty where the objective is not related to them."""
    equals: Sequence[Mapping[str, Any]]
    """Equally good cells."""
    criterion: str
    """Criterion that chose it among equals; empty for the fastest."""
    rivals: Sequence[Rival]
    """Cells that could beat it."""
    unbeaten: str = ""
    """Clause for the baseline as the answer."""

    @property
    def decided(self) -> bool:
        """Tell if the engine is decided. Its best batch size may be open."""
        return self.row is not None and all(rival.same_engine for rival in self.rivals)

    @property
    def where(self) -> str:
        """Model and device."""
        return self.label if self.device is None else f"{self.label} on {self.device}"

    @property
    def sentence(self) -> str:
        """One sentence: compiler with gain, batch size, and at its end `command` where either is open."""
        where = self.where
        if self.row is None or any(not rival.same_choice for rival in self.rivals):
            gain, certain = self._gain()
            figures = self.figure if certain or not gain else f"{gain}, {self.figure}"
            return undecided.sentence(self._open, self.row, figures, where, gain if certain else "")
        clauses = [*self._choice(self.row), *self._batch_sizes(self.row)]
        return f"{where}: {'; '.join(clauses)}"

    @property
    def command(self) -> str:
        """Command that measures again what is open; empty where nothing is, or the study is of another home."""
        return undecided.measuring(self._open, self.row)[1] if self.rivals else ""

    @property
    def _open(self) -> Sequence[Rival]:
        """Rivals of another choice; where only the batch size is open, those of other batch sizes."""
        return [rival for rival in self.rivals if not rival.same_choice] or self.rivals

    def to_plain(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "label": self.label,
            "device": self.device,
            "said": self.sentence,
            "decided": self.decided,
            "cell": None if self.row is None else self.row["cell"],
            "rivals": [rival.to_plain() for rival in self.rivals],
        }

    def _gain(self) -> tuple[str, bool]:
        """Gain of the cell over the baseline in words, or empty, and whether there certainly is one."""
        row = self.row
        if row is None or row["compiler_label"] == baselines.of_row(row):
            return "", False
        gain = next((gain for gain in self.gains if gain.batch == row["batch"]), None)
        return ("", False) if gain is None else (gain.over(baselines.over(row)), (gain.ci_low or 0) > 1)

    def _choice(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Compiler with its gain."""
        named = undecided.chosen(row)
        alike = list(dict.fromkeys(undecided.chosen(other) for other in self.equals))
        if alike := [name for name in alike if name != named]:
            reason = f", {self.criterion}," if self.criterion else ""
            named = f"either of {' and '.join([named, *alike])} (within {100 * AS_GOOD:g} %): {named}{reason}"
        at = f"at batch {row['batch']} ({self.figure})"
        if row["compiler_label"] == baselines.of_row(row):
            yield f"{named} {at}"
            yield self.unbeaten
        elif self.gains and self.gains[0].batch == row["batch"]:
            yield f"{named.removesuffix(',')}, {self.gains[0].over(baselines.over(row))} {at}"
            known = [gain for gain in self.gains if gain.known]
            if rest := [gain for gain in known if gain is not self.gains[0]]:
                yield ", ".join(f"{times(gain.value, unsteady=gain.unsteady)} at batch {gain.batch}" for gain in rest)
            if any(gain.unsteady for gain in known):
                yield f"{UNSTEADY_MARK} beside other load, which slows eager execution most"
        else:
            yield f"{named} {at}"

    def _batch_sizes(self, row: Mapping[str, Any]) -> Iterator[str]:
        """Batch sizes that are as good or could be better."""
        own = undecided.chosen(row)
        alike = [int(other["batch"]) for other in self.equals if undecided.chosen(other) == own]
        if alike:
            only = self.criterion and len(alike) == len(self.equals)
            reason = f", and batch {row['batch']} takes {self.criterion}" if only else ""
            yield f"batch {' or '.join(map(str, sorted(alike)))} is as good (within {100 * AS_GOOD:g} %){reason}"
        if self.rivals:
            could = undecided.listed([rival.clause for rival in self.rivals])
            again = " ".join(filter(None, undecided.measuring(self.rivals, row)))
            yield f"its batch size is undecided: {could} could be better; {again}"


def times(value: float, low: float | None = None, high: float | None = None, *, unsteady: bool = False) -> str:
    """Speed-up with its interval and the mark of contaminated figures."""
    mark = UNSTEADY_MARK if unsteady else ""
    ends = f" [{_ratio(low)}, {_ratio(high)}]" if low is not None and high is not None else ""
    return f"{mark}{_ratio(value)}{ends}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else rounded(float(f"{value:.3g}"))


def answers(
    comparison: Comparison, able: Mask, by: Sequence[str] = ("workload", "device")
) -> Iterator[tuple[Answer, Places]]:
    """Answer for each workload and device, with its ranking cells: the answer first, then by figure.

    ``able`` marks cells that may be the answer or beat it. The columns of ``by`` are equal in the cells of one answer.
    """
    places = np.flatnonzero(able)
    groups = comparison.frame.iloc[places].groupby(list(by), sort=False, dropna=False).indices.values()
    several = [places[np.asarray(inside, int)] for inside in groups]
    _compare_within(comparison, several)
    beyond = comparison.frame.loc[comparison.ranks & ~able, list(by)]
    limited = set(beyond.itertuples(index=False, name=None))
    for asked in several:
        ranked = comparison.ordered(asked[comparison.ranks[asked]])
        if len(ranked):
            lead = comparison.leader(ranked)
            group = tuple(comparison.frame[name].iloc[lead] for name in by)
            yield (
                _answer(comparison, asked, lead, limited=group in limited),
                np.array([lead, *ranked[ranked != lead]], int),
            )
        elif could := rivals_of(comparison, None, asked):
            yield _undecided(could, str(could[0].row["device"]), None, ""), ranked


def _compare_within(comparison: Comparison, groups: Sequence[Places]) -> None:
    """Compare the cells of small groups with each other, in one pass for all that will be asked of them."""
    small = [group for group in groups if len(group) <= _SMALL]
    if small:
        tops, bottoms = (
            np.concatenate([every(group, len(group)) for group in small]) for every in (np.repeat, np.tile)
        )
        comparison.ratios(tops, bottoms)


def of_fleet(
    table: pd.DataFrame,
    candidates: pd.DataFrame,
    noisy: pd.DataFrame,
    metric: Metric,
    chosen: pd.DataFrame,
    rule: Literal["maximin", "geomean"],
) -> Iterator[Answer]:
    """Undecided workloads of a fleet: another choice may be better, or would be if cells without rank were as good as
    possible.

    ``table`` is the recommendation for the fleet, made from ``candidates``, ``chosen`` and ``rule``. ``noisy`` are
    cells that keep all limits and cannot rank.
    """
    best = {row["workload"]: row for row in table[table["rank"] == 1].to_dict("records")}
    doubtful = Comparison(noisy, metric)
    skipped, hoped = noisy[doubtful.skipped], noisy.assign(**{metric.name: doubtful.optimistic})[~doubtful.skipped]
    noisy = noisy[~doubtful.skipped]
    both = pd.concat([candidates, hoped], keys=["ok", "noisy"])
    ranked = fleet_choice.ranked(both, metric, chosen, rule).sort_values("rank", kind="stable")
    for workload, places in ranked.groupby(both["workload"].iloc[ranked["place"]].to_numpy(), sort=False)["place"]:
        rows, answer = both.iloc[places.to_numpy(int)], best.get(workload)
        could = [*_near(table[table["workload"] == workload], metric)]
        if answer is None or _choice(rows.iloc[0]) != _choice(answer):
            ahead = rows if answer is None else rows[~(rows.apply(_choice, axis=1) == _choice(answer)).cummax()]
            # A cell counts as a device's best even if not all devices can run its choice.
            new = (
                noisy.loc[ahead.loc["noisy"].index] if "noisy" in ahead.index else noisy[noisy["workload"] == workload]
            )
            could += rivals_of(Comparison(new.reset_index(drop=True), metric), None)
        own = skipped[skipped["workload"] == workload].reset_index(drop=True)
        could += rivals_of(Comparison(own, metric), None)
        if could:
            yield _undecided(could, None, answer, "" if answer is None else f"score {answer['score']:.3f}")


def _unbeaten(metric: Metric, over: str, *, limited: bool) -> str:
    """Clause that nothing beats the baseline; ``limited`` where limits left cells out."""
    timed = metric.name in METRICS and METRICS[metric.name].by_round
    verb, by = ("was faster", "") if timed else ("is better", f" by {metric.name}")
    clause = f"no compiler {verb} than eager execution" if over == "eager" else f"nothing {verb} than {over}"
    return clause + by + (" within the limits" if limited else "")


def _answer(comparison: Comparison, asked: Places, lead: int, *, limited: bool) -> Answer:
    metric = comparison.metric
    ranked = asked[comparison.ranks[asked]]
    equals = comparison.ordered(comparison.equals(lead, ranked))
    others = equals[equals != lead]
    row = comparison.row(lead)
    figure = undecided.figure(row[metric.name], metric.name, metric.unit)
    low, high = (plain(end[lead]) for end in comparison.interval(metric.name))
    if low is not None and high is not None:
        figure += f" [{_three(low)}, {_three(high)}]"
    return Answer(
        workload=str(row["workload"]),
        label=str(row["label"]),
        device=str(row["device"]),
        row=row,
        figure=figure,
        gains=_gains(comparison, lead, ranked),
        equals=[comparison.row(place) for place in others.tolist()],
        criterion=comparison.preferred(lead, equals)[1] if len(others) else "",
        rivals=rivals_of(comparison, lead, asked),
        unbeaten=_unbeaten(metric, baselines.over(row), limited=limited),
    )


def _gains(comparison: Comparison, lead: int, ranked: Places) -> list[Gain]:
    """Speed-ups of a choice by batch size, the answer's first."""
    name = comparison.metric.name
    if name not in METRICS or not METRICS[name].by_round or "speedup" not in comparison.frame:
        return []
    batches, cells, speedups = (comparison.column(name) for name in ("batch", "cell", "speedup"))
    low, high = comparison.interval("speedup")
    alike = ranked[~comparison.other_choice(lead, ranked)].tolist()
    alike.sort(key=lambda place: (cells[place] != cells[lead], batches[place]))
    touched = comparison.unsteady("speedup")
    return [
        Gain(int(batches[place]), float(speedups[place]), plain(low[place]), plain(high[place]), bool(touched[place]))
        for place in alike
        if speedups[place] is not None
    ]


def _near(table: pd.DataFrame, metric: Metric) -> list[Rival]:
    """Choices that may score better than the best one by more than the margin, each at its worst device."""
    could = table["loss_ci_low"] < -AS_GOOD
    if metric.interval != "none" and not is_complement(metric.name):  # too uncertain to have an interval
        could |= table["loss_ci_low"].isna() & (table["rank"] > 1)
    near = table[could & (table["device"] == table["worst_device"])]
    rivals = []
    for row in near.astype(object).where(near.notna(), None).to_dict("records"):
        low, high = (None if row[name] is None else 1 - row[name] for name in ("loss_ci_high", "loss_ci_low"))
        cell = {name: row.get(name) for name in undecided.COLUMNS}
        figures = float(row["value"]), plain(row["ci_low"]), plain(row["ci_high"])
        ratio = {"ratio": 1 - row["loss"], "ratio_ci_low": low, "ratio_ci_high": high}
        rivals.append(Rival(cell, metric.name, metric.unit, metric.better, *figures, **ratio))
    return rivals


def _undecided(rivals: Sequence[Rival], device: str | None, row: Mapping[str, Any] | None, figure: str) -> Answer:
    first = rivals[0].row
    return Answer(str(first["workload"]), str(first["label"]), device, row, figure, [], [], "", rivals)


def _choice(row: Any) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in fleet_choice.CONFIGURATION)
