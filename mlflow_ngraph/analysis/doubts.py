"""Of a recommendation the workloads for which a cell that was left out for its noise could change the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from mlflow_ngraph.analysis import fleet_choice, undecided
from mlflow_ngraph.analysis.undecided import Rival
from mlflow_ngraph.metrics import Metric


@dataclass(frozen=True)
class Doubt:
    """Why there is no winner."""

    workload: str
    label: str
    device: str | None
    """None where one choice is for all devices."""
    answer: str
    """What would be recommended, with its figure; empty where nothing can be."""
    rivals: Sequence[Rival]

    @property
    def said(self) -> str:
        """One sentence, with what to do."""
        where = self.label if self.device is None else f"{self.label} on {self.device}"
        return undecided.said(self.rivals, self.answer, where)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "workload": self.workload,
            "label": self.label,
            "device": self.device,
            "said": self.said,
            "rivals": [one.to_plain() for one in self.rivals],
        }


def of_devices(table: pd.DataFrame, noisy: pd.DataFrame, metric: Metric) -> Iterator[Doubt]:
    """Where the choice for a workload on a device may be another one.

    Parameters
    ----------
    table : pd.DataFrame
        A recommendation for each device.
    noisy : pd.DataFrame
        The cells of `undecided.cells` that keep all limits.
    """
    best = {(row["workload"], row["device"]): row for row in table[table["rank"] == 1].to_dict("records")}
    for inside in noisy.groupby(["workload", "device"], sort=False, dropna=False).indices.values():
        rows = noisy.iloc[inside]
        answer = best.get((rows["workload"].iloc[0], rows["device"].iloc[0]))
        found = undecided.rivals(rows, metric, None if answer is None else float(answer["value"]))
        if found:
            told = "" if answer is None else _told(answer, undecided.figure(answer["value"], metric.name, metric.unit))
            yield _doubt(found, str(rows["device"].iloc[0]), told)


def of_fleet(
    table: pd.DataFrame,
    candidates: pd.DataFrame,
    noisy: pd.DataFrame,
    metric: Metric,
    chosen: pd.DataFrame,
    rule: Literal["maximin", "geomean"],
) -> Iterator[Doubt]:
    """Where one choice for all devices of a workload would be another one if noisy cells were as good as they may be.

    Parameters
    ----------
    table : pd.DataFrame
        A recommendation for the fleet; ``candidates``, ``chosen`` and ``rule`` are what it was made of.
    noisy : pd.DataFrame
        As in `of_devices`.
    """
    best = {row["workload"]: row for row in table[table["rank"] == 1].to_dict("records")}
    hoped = noisy.assign(**{metric.name: undecided.hopeful(noisy, metric)})
    both = pd.concat([candidates, hoped], keys=["ok", "noisy"])
    ranked = fleet_choice.ranked(both, metric, chosen, rule).sort_values("rank", kind="stable")
    for workload, places in ranked.groupby(both["workload"].iloc[ranked["place"]].to_numpy(), sort=False)["place"]:
        rows, answer = both.iloc[places.to_numpy(int)], best.get(workload)
        if answer is not None and _choice(rows.iloc[0]) == _choice(answer):
            continue
        ahead = rows if answer is None else rows[~(rows.apply(_choice, axis=1) == _choice(answer)).cummax()]
        # Also a cell of a choice that not all devices can run has a part in what the others are measured by.
        new = noisy.loc[ahead.loc["noisy"].index] if "noisy" in ahead.index else noisy[noisy["workload"] == workload]
        told = "" if answer is None else _told(answer, f"score {answer['score']:.3f}")
        yield _doubt(undecided.rivals(new, metric, None), None, told)


def _doubt(found: Sequence[Rival], device: str | None, answer: str) -> Doubt:
    first = found[0].row
    return Doubt(str(first["workload"]), str(first["label"]), device, answer, found)


def _told(answer: Any, figure: str) -> str:
    return f"{undecided.named(answer)}, {figure}"


def _choice(row: Any) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in fleet_choice.CONFIGURATION)
