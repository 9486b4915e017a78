"""Of a recommendation the workloads for which another choice may be the best one, for all that can be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from mlflow_ngraph.analysis import contest, fleet_choice, undecided
from mlflow_ngraph.analysis.undecided import Rival
from mlflow_ngraph.metrics import Metric, is_complement
from mlflow_ngraph.text import plain


@dataclass(frozen=True)
class Doubt:
    """Why there is no winner."""

    workload: str
    label: str
    device: str | None
    """None where one choice is for all devices."""
    answer: Mapping[str, Any] | None
    """What would be recommended; None where nothing can be."""
    figures: str
    """What that has."""
    rivals: Sequence[Rival]

    @property
    def said(self) -> str:
        """One sentence, with what to do."""
        where = self.label if self.device is None else f"{self.label} on {self.device}"
        return undecided.said(self.rivals, self.answer, self.figures, where)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "workload": self.workload,
            "label": self.label,
            "device": self.device,
            "said": self.said,
            "rivals": [rival.to_plain() for rival in self.rivals],
        }


def of_devices(table: pd.DataFrame, able: pd.DataFrame, metric: Metric) -> Iterator[Doubt]:
    """Where the choice for a workload on a device may be another one.

    Parameters
    ----------
    table : pd.DataFrame
        A recommendation for each device.
    able : pd.DataFrame
        The cells that keep all limits: those of the table, and those that cannot rank.
    """
    best = {(row["workload"], row["device"]): row for row in table[table["rank"] == 1].to_dict("records")}
    # A loss of a complement has no interval, and tells nothing of who could be better.
    # Where a ratio is too uncertain to have an interval, the choice may be another one as well.
    near = table[is_complement(metric.name) | ~(table["loss_ci_low"] >= -contest.MARGIN / (1 + contest.MARGIN))]
    unsure = able[contest.doubtful(able, metric.name)]
    asked = {place for rows in (near, unsure) for place in zip(rows["workload"], rows["device"], strict=True)}
    for where, inside in able.groupby(["workload", "device"], sort=False, dropna=False).indices.items():
        if where not in asked:
            continue
        rows, answer = able.iloc[inside].reset_index(drop=True), best.get(where)
        place = None if answer is None else int((rows["cell"] == answer["cell"]).to_numpy().argmax())
        rivals = contest.rivals(rows, metric, place)
        if rivals:
            figures = "" if answer is None else undecided.figure(answer["value"], metric.name, metric.unit)
            yield _doubt(rivals, str(where[1]), answer, figures)


def of_fleet(
    table: pd.DataFrame,
    candidates: pd.DataFrame,
    noisy: pd.DataFrame,
    metric: Metric,
    chosen: pd.DataFrame,
    rule: Literal["maximin", "geomean"],
) -> Iterator[Doubt]:
    """Where one choice for all devices of a workload may be another one, or would be if the cells that cannot rank were as
    good as they may be.

    Parameters
    ----------
    table : pd.DataFrame
        A recommendation for the fleet; ``candidates``, ``chosen`` and ``rule`` are what it was made of.
    noisy : pd.DataFrame
        Cells that keep all limits and cannot rank.
    """
    best = {row["workload"]: row for row in table[table["rank"] == 1].to_dict("records")}
    untried, noisy = noisy[contest.untried(noisy)], noisy[~contest.untried(noisy)]
    hoped = noisy.assign(**{metric.name: contest.hopeful(noisy, metric)})
    both = pd.concat([candidates, hoped], keys=["ok", "noisy"])
    ranked = fleet_choice.ranked(both, metric, chosen, rule).sort_values("rank", kind="stable")
    for workload, places in ranked.groupby(both["workload"].iloc[ranked["place"]].to_numpy(), sort=False)["place"]:
        rows, answer = both.iloc[places.to_numpy(int)], best.get(workload)
        rivals = _near(table[table["workload"] == workload], metric)
        if answer is None or _choice(rows.iloc[0]) != _choice(answer):
            ahead = rows if answer is None else rows[~(rows.apply(_choice, axis=1) == _choice(answer)).cummax()]
            # Also a cell of a choice that not all devices can run has a part in what the others are measured by.
            new = (
                noisy.loc[ahead.loc["noisy"].index] if "noisy" in ahead.index else noisy[noisy["workload"] == workload]
            )
            rivals = [*rivals, *contest.rivals(new.reset_index(drop=True), metric, None)]
        own = untried[untried["workload"] == workload].reset_index(drop=True)
        rivals = [*rivals, *contest.rivals(own, metric, None)]
        if rivals:
            yield _doubt(rivals, None, answer, "" if answer is None else f"score {answer['score']:.3f}")


def _near(table: pd.DataFrame, metric: Metric) -> list[Rival]:
    """The choices whose scores may be better than the best one's by more than the margin, each by its worst device."""
    could = table["loss_ci_low"] < -contest.MARGIN
    if metric.interval != "none" and not is_complement(metric.name):  # too uncertain to have an interval
        could |= table["loss_ci_low"].isna() & (table["rank"] > 1)
    near = table[could & (table["device"] == table["worst_device"])]
    rivals = []
    for row in near.astype(object).where(near.notna(), None).to_dict("records"):
        low, high = (None if row[name] is None else 1 - row[name] for name in ("loss_ci_high", "loss_ci_low"))
        figures = float(row["value"]), plain(row["ci_low"]), plain(row["ci_high"]), 1 - row["loss"], low, high, True
        rivals.append(
            Rival(
                {name: row.get(name) for name in undecided.COLUMNS}, metric.name, metric.unit, metric.better, *figures
            )
        )
    return rivals


def _doubt(rivals: Sequence[Rival], device: str | None, answer: Mapping[str, Any] | None, figures: str) -> Doubt:
    first = rivals[0].row
    return Doubt(str(first["workload"]), str(first["label"]), device, answer, figures, rivals)


def _choice(row: Any) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in fleet_choice.CONFIGURATION)
