"""Which cell leads, and which could still beat it: the rule by which every verb that names a best one decides whether it may.

docs/method.md says what is compared with what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import shared_rounds, significance
from mlflow_ngraph.analysis.undecided import COLUMNS, Rival
from mlflow_ngraph.estimates import LEVEL, Estimate, quantile
from mlflow_ngraph.metrics import BEATEN_BY, METRICS, Metric, is_complement, with_estimates
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.text import plain
from mlflow_ngraph.verdicts import Verdict

MARGIN = AS_GOOD
"""What is better by less is as good: nobody has to know more."""
_RETRYABLE = frozenset(str(verdict) for verdict in Verdict if verdict.retryable)
"""Verdicts of cells that may be right and could end differently; of all others the function or the compiler is at fault."""
_COST = ("rounds", "repetitions", "throughput", "batch", "speedup", "load_s", "first_inference_s")
"""What tells how long more rounds would take."""
_STARTING_S = 2.0
"""What a fresh process of a lane takes before it loads its engine, about."""
_MORE = np.geomspace(1, 1e4, 400)
"""How many times as many rounds are considered."""
Mask = NDArray[np.bool_]


def needed(metric: str) -> set[str]:
    """The columns of the tidy table that are looked at here, beside those that choose the cells."""
    return {*COLUMNS, *_COST, *shared_rounds.TOGETHER, BEATEN_BY, *with_estimates([metric])}


def ranks(frame: pd.DataFrame, metric: str) -> Mask:
    """Which cells can be named a best one: ``ok``, measured, and in more than one round where rounds tell how sure it is."""
    counted: Mask = ((frame["verdict"] == str(Verdict.OK)) & frame[metric].notna()).to_numpy(bool)
    return counted & ~_alone(frame, metric)


def doubtful(frame: pd.DataFrame, metric: str) -> Mask:
    """Which cells may be better than a best one without ranking: their figure could be right, or nobody knows it."""
    ok = (frame["verdict"] == str(Verdict.OK)).to_numpy(bool)
    retryable = frame["verdict"].isin(_RETRYABLE).to_numpy(bool)
    measured = frame[metric].notna().to_numpy(bool)
    return untried(frame) | (measured & (retryable | (ok & _alone(frame, metric))))


def untried(frame: pd.DataFrame) -> Mask:
    """Which cells have no figure because there was no time for them: they may be anything."""
    left_out: Mask = (frame["verdict"] == str(Verdict.LEFT_OUT)).to_numpy(bool)
    return left_out


def leader(frame: pd.DataFrame, metric: str, better: str, order: NDArray[np.int_]) -> int:
    """The place of the best cell: the one with the best figure or, of those that share its rounds, the best in these.

    Parameters
    ----------
    better : str
        ``higher`` or ``lower``.
    order : NDArray[np.int_]
        Places of cells, those with the best figures first; at least one.
    """
    return leaders(frame, metric, better, order, np.zeros(len(order), int))[0]


def leaders(
    frame: pd.DataFrame, metric: str, better: str, order: NDArray[np.int_], among: NDArray[np.int_]
) -> dict[int, int]:
    """As `leader`, for several groups of cells at once: the place of the best one by the number of its group.

    Parameters
    ----------
    better : str
        ``higher`` or ``lower``.
    order : NDArray[np.int_]
        Places of cells, those with the best figures first.
    among : NDArray[np.int_]
        The number of the group of each of these.
    """
    numbers, where, group = np.unique(among, return_index=True, return_inverse=True)
    tops = np.asarray(order, int)
    best = where.copy()
    by_round = METRICS[metric].by_round if metric in METRICS else 0
    if by_round and len(numbers) < len(tops):
        known = shared_rounds.together(metric)
        together = shared_rounds.throughput_ratios(frame, tops, tops[where][group], known)
        sign = by_round * (1 if better == "higher" else -1)
        gains = np.where(together.known, sign * together.log, -np.inf)
        gains[where] = 0.0
        ranked = np.lexsort((np.arange(len(tops)), -gains, group))
        best = ranked[np.unique(group[ranked], return_index=True)[1]]
    return dict(zip(numbers.tolist(), tops[best].tolist(), strict=True))


def rivals(frame: pd.DataFrame, metric: Metric, answer: int | None) -> tuple[Rival, ...]:
    """The cells that could beat an answer: first those that rank, then those that cannot, the best first.

    One that there was no time for could. One that ranks could beat it by more than `MARGIN` for all that the interval of the ratio tells, unless a third one beats it
    for sure in rounds that both share. One that does not rank could if the good end of its interval, or its figure where it has
    none, is better.

    Parameters
    ----------
    frame : DataFrame
        The newest result of each cell that could have been the answer.
    answer : int or None
        The place of the answer; None where there is none.
    """
    unsure = frame.iloc[np.flatnonzero(doubtful(frame, metric.name))]
    if answer is None:
        return tuple(Rival(**fields) for fields in _described(unsure, metric))
    own = float(frame[metric.name].iloc[answer])
    best = hopeful(unsure, metric)
    unsure = unsure[untried(unsure) | (best < own if metric.better == "lower" else best > own)]
    places = np.flatnonzero(ranks(frame, metric.name))
    places = places[places != answer]
    ratios = significance.ratios(frame, metric.name, places, np.full(len(places), answer))
    near = could_beat(ratios, metric)
    if near.any():
        near &= ~_beaten(frame, metric, places)
    close = places[near][np.argsort(_badness(frame, metric)[places[near]], kind="stable")]
    return (
        *_near(frame, metric, close, answer),
        *(Rival(**fields) for fields in _described(unsure, metric)),
    )


def _near(frame: pd.DataFrame, metric: Metric, places: NDArray[np.int_], answer: int) -> Iterable[Rival]:
    """Cells that rank, with how they compare with the answer and what would tell."""
    if not len(places):
        return
    answers = np.full(len(places), answer)
    ratios = significance.ratios(frame, metric.name, places, answers)
    by_round = metric.name in METRICS and METRICS[metric.name].by_round
    together = shared_rounds.together(metric.name)
    paired = shared_rounds.throughput_ratios(frame, places, answers, together).known & bool(by_round)
    low, high = ratios.interval()
    for place, fields in enumerate(_described(frame.iloc[places], metric)):
        repetitions, minutes = _again(frame.iloc[places[place]], frame.iloc[answer], ratios.take(place), metric)
        yield Rival(
            **fields,
            ratio=float(ratios.value[place]),
            ratio_ci_low=plain(low[place]),
            ratio_ci_high=plain(high[place]),
            paired=bool(paired[place]),
            repetitions=repetitions,
            minutes=minutes,
        )


def _beaten(frame: pd.DataFrame, metric: Metric, places: NDArray[np.int_]) -> Mask:
    """Which of these cells another one beats for sure in the rounds that both share: they are not the best, whatever is.

    Sure is what the interval of their ratio says, or a race that both were in.
    """
    ranked = places[np.argsort(_badness(frame, metric)[places], kind="stable")]
    among = shared_rounds.codes(frame, shared_rounds.TOGETHER)
    best = leaders(frame, metric.name, metric.better, ranked, among[ranked])
    leads = np.array([best[code] for code in among[places].tolist()], int)
    low, high = significance.ratios(frame, metric.name, places, leads).ends
    with np.errstate(invalid="ignore"):
        worse: Mask = low > 1 if _low_ratio_is_better(metric) else high < 1
    return worse | left(frame, metric, places)


def left(frame: pd.DataFrame, metric: Metric, places: NDArray[np.int_]) -> Mask:
    """Which of these cells have left a race because of one that is here and ranks."""
    beaten = np.zeros(len(places), bool)
    if BEATEN_BY not in frame.columns or metric.name not in METRICS or not METRICS[metric.name].by_round:
        return beaten
    among = np.flatnonzero(ranks(frame, metric.name))
    where = dict(zip(zip(frame["study_id"].iloc[among], frame["cell"].iloc[among], strict=True), among, strict=True))
    keys = zip(frame["study_id"].iloc[places], frame[BEATEN_BY].iloc[places], strict=True)
    rivals = np.array([where.get(key, -1) for key in keys], int)
    beaten[:] = rivals >= 0
    beaten[beaten] = shared_rounds.alike(frame, shared_rounds.together(metric.name), places[beaten], rivals[beaten])
    return beaten


def could_beat(ratios: Estimate, metric: Metric) -> Mask:
    """Whose ratio to an answer may be better than one by more than `MARGIN`; without an interval nobody's."""
    low, high = ratios.ends
    with np.errstate(invalid="ignore"):
        able: Mask = low < 1 / (1 + MARGIN) if _low_ratio_is_better(metric) else high > 1 + MARGIN
    return able & ratios.known & (ratios.error > 0)


def hopeful(frame: pd.DataFrame, metric: Metric) -> NDArray[np.float64]:
    """The best that each figure can be, by its interval."""
    low, high = significance.interval(frame, metric.name)
    values = frame[metric.name].to_numpy(float)
    best: NDArray[np.float64] = np.fmin(values, low) if metric.better == "lower" else np.fmax(values, high)
    return best


def _low_ratio_is_better(metric: Metric) -> bool:
    """Of a complement the ratio is that of what is left."""
    return metric.better == "lower" or is_complement(metric.name)


def _alone(frame: pd.DataFrame, metric: str) -> Mask:
    """Which cells have one round of a metric of which rounds tell how sure it is."""
    if metric not in METRICS or METRICS[metric].interval == "none":
        return np.zeros(len(frame), bool)
    alone: Mask = ~significance.figures(frame, metric).known
    return alone


def _described(rows: pd.DataFrame, metric: Metric) -> Iterable[dict[str, Any]]:
    """What is told of each cell as a rival, the best figure first."""
    if rows.empty:
        return
    rows = rows.iloc[np.argsort(_badness(rows, metric), kind="stable")]
    cells = rows.reindex(columns=list(COLUMNS))
    texts = cells.astype(object).where(cells.notna(), None).to_dict("records")
    values = [rows[metric.name].to_numpy(float), *significance.interval(rows, metric.name)]
    for row, value, low, high in zip(texts, *(map(plain, part) for part in values), strict=True):
        yield {
            "row": row,
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "value": value,
            "ci_low": low,
            "ci_high": high,
        }


def _badness(rows: pd.DataFrame, metric: Metric) -> NDArray[np.float64]:
    """The figures, turned so that the best one is the smallest."""
    return rows[metric.name].to_numpy(float) * (1.0 if metric.better == "lower" else -1.0)


def _again(
    rival: pd.Series[Any], answer: pd.Series[Any], ratio: Estimate, metric: Metric
) -> tuple[int, float] | tuple[None, None]:
    """Repetitions that would tell the two apart if both are as they seem, and minutes that they take, as far as that is known."""
    rounds, repetitions = _number(rival, "rounds"), _number(rival, "repetitions")
    if not (rounds >= 2 and repetitions > 0):
        return None, None
    gain = float(ratio.log) * (-1 if _low_ratio_is_better(metric) else 1)
    enough = max(math.log(1 + MARGIN) - gain, gain)
    # Of few rounds the interval is wide because they are few: more of them help by more than their root.
    freedom = float(ratio.freedom) * (rounds * _MORE - 1) / (rounds - 1)
    reach = quantile(freedom, LEVEL) * float(ratio.error) / np.sqrt(_MORE)
    wanted = math.ceil(rounds * (_MORE[reach <= enough][0] if reach[-1] <= enough else _MORE[-1]))
    seconds = wanted * sum(_round_s(row) for row in (rival, answer))
    return math.ceil(wanted * repetitions / rounds), seconds / 60


def _round_s(row: pd.Series[Any]) -> float:
    """What a round of a lane and of its baseline takes, about: fresh processes, and the repetitions of both."""
    call_s = _number(row, "batch") / _number(row, "throughput")
    calls = _number(row, "repetitions") / _number(row, "rounds")
    loading = [_number(row, name) for name in ("load_s", "first_inference_s")]
    gain = _number(row, "speedup")
    parts = [call_s * calls * (1 + (gain if math.isfinite(gain) else 0.0)), *loading]
    return _STARTING_S + sum(part for part in parts if math.isfinite(part))


def _number(row: pd.Series[Any], name: str) -> float:
    value: Any = row.get(name)
    return math.nan if value is None or pd.isna(value) else float(value)
