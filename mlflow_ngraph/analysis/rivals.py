"""Rivals of an answer: cells that could beat it, their ratios, and the measurements that would decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mlflow_ngraph.analysis.cell_columns import Places
from mlflow_ngraph.analysis.comparison import APART, Comparison
from mlflow_ngraph.analysis.round_pairs import CHOICE, FIELD
from mlflow_ngraph.analysis.undecided import COLUMNS, Rival
from mlflow_ngraph.estimates import Estimate, quantile
from mlflow_ngraph.metrics import BEATEN_BY, FOREIGN, with_estimates
from mlflow_ngraph.objectives import AS_GOOD, SECOND
from mlflow_ngraph.text import plain

_MORE = np.geomspace(1, 1e4, 400)
"""Factors tried for the number of rounds."""


def needed(metric: str) -> set[str]:
    """Needed columns of the tidy table."""
    return {*COLUMNS, "rounds", "repetitions", *FIELD, *CHOICE, *SECOND, BEATEN_BY, FOREIGN, *with_estimates([metric])}


def rivals_of(compared: Comparison, answer: int | None, places: ArrayLike | None = None) -> tuple[Rival, ...]:
    """Cells that could beat an answer: those that rank, then the others, each best first.

    `Comparison.could_win` decides for cells that rank. Another cell is a rival if nobody measured it, or if its figure,
    or the better end of its interval, exceeds the answer by more than `AS_GOOD`.
    """
    asked = np.arange(len(compared.frame)) if places is None else np.asarray(places, int)
    unsure = asked[compared.unranked[asked]]
    near: Iterable[Rival] = ()
    if answer is not None:
        unsure = unsure[compared.skipped[unsure] | compared.better_than(compared.optimistic[unsure], answer)]
        ranked = asked[compared.ranks[asked]]
        near = _told(compared, ranked[compared.could_win(answer, ranked)], answer)
    return *near, *(Rival(**fields) for fields in _described(compared, unsure, answer))


def _told(compared: Comparison, places: Places, answer: int) -> Iterator[Rival]:
    """Rivals that rank, with ratio and the repetitions that would decide."""
    places = compared.ordered(places)
    ratios = compared.ratios(places, np.full(len(places), answer))
    low, high = ratios.interval()
    for place, fields in enumerate(_described(compared, places, answer)):
        loaded = ratios.how[place] != APART and bool(compared.load[[places[place], answer]].any())
        told = not loaded and bool(np.isfinite(low[place]))
        repetitions = _again(compared, int(places[place]), ratios.take(place)) if told else None
        yield Rival(
            **fields,
            ratio=plain(ratios.value[place]),
            ratio_ci_low=plain(low[place]),
            ratio_ci_high=plain(high[place]),
            how=str(ratios.how[place]),
            repetitions=repetitions,
            loaded=loaded,
        )


def _described(compared: Comparison, places: Places, answer: int | None) -> Iterator[dict[str, Any]]:
    """Fields of each rival, the best figure first."""
    metric = compared.metric
    places = compared.ordered(places)
    values = [compared.numbers, *compared.interval(metric.name)]
    choice = np.zeros(len(places), bool) if answer is None else ~compared.other_choice(answer, places)
    same = np.zeros(len(places), bool)
    for name in ("model_id", "engine"):
        if answer is not None and (own := compared.column(name)[answer]):
            same |= choice & (compared.column(name)[places] == own)
    for number, place in enumerate(places.tolist()):
        value, low, high = (plain(part[place]) for part in values)
        yield {
            "row": compared.row(place, COLUMNS),
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "value": value,
            "ci_low": low,
            "ci_high": high,
            "same_choice": bool(choice[number]),
            "same_engine": bool(same[number]),
        }


def _again(compared: Comparison, rival: int, ratio: Estimate) -> int | None:
    """Repetitions that would separate a rival from the answer, if both figures are right."""
    rounds, repetitions = (_number(compared.column(name)[rival]) for name in ("rounds", "repetitions"))
    if not (rounds >= 2 and repetitions > 0 and ratio.known):
        return None
    gain = float(ratio.log) * (-1 if compared.low_is_better else 1)
    enough = max(math.log(1 + AS_GOOD) - gain, gain)
    # With few rounds the interval is wide because they are few. More of them help by more than their root.
    freedom = float(ratio.freedom) * (rounds * _MORE - 1) / (rounds - 1)
    reach = quantile(freedom) * float(ratio.error) / np.sqrt(_MORE)
    wanted = math.ceil(rounds * (_MORE[reach <= enough][0] if reach[-1] <= enough else _MORE[-1]))
    more: int = math.ceil(wanted * repetitions / rounds)
    return more


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
