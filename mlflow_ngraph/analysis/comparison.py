"""Pairwise comparison of cells by a metric: ratios with errors, the leader, its ties, equals and possible winners.

Cells that share rounds are compared round by round, because disturbances of a round cancel. Others are compared by a
chain of such pairs. Figures as they stand are compared only without a chain. docs/explanation/comparing.md has the
rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.cell_columns import Mask, Places, grouped
from mlflow_ngraph.analysis.round_pairs import CHOICE, FIELD, RoundPairs
from mlflow_ngraph.estimates import ALPHA, Array, Estimate, exactly, unknown
from mlflow_ngraph.metrics import BEATEN_BY, Metric, is_complement
from mlflow_ngraph.objectives import AS_GOOD, SECOND
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.verdicts import Verdict

SAME_ROUNDS, CHAIN, APART = "same rounds", "chain", "apart"
"""Kinds of comparison."""
_RETRYABLE = frozenset(str(verdict) for verdict in Verdict if verdict.retryable)
"""Verdicts of cells that could be ``ok`` next time. All others blame the model or the compiler."""
_KEPT = 100_000
"""Most ratios that are kept: the questions about one leader ask for the same several times."""
_AT_ONCE = 10_000
"""Ratios in one question from which on they are not kept, which would take longer than comparing."""


@dataclass(frozen=True)
class Ratios(Estimate):
    """Ratios with the kind of comparison of each."""

    how: NDArray[np.object_]


class Comparison(RoundPairs):
    """Cells of a table, compared by one metric. Cells are positions in the table."""

    def __init__(self, frame: pd.DataFrame, metric: Metric) -> None:
        super().__init__(frame, metric)
        self._ratios: dict[tuple[int, int], tuple[float, float, float, str]] = {}

    @cached_property
    def numbers(self) -> Array:
        """Figures as in the table, even of a complement."""
        return np.asarray(self.frame[self.metric.name], float)

    @cached_property
    def ranks(self) -> Mask:
        """Mark cells that can be the best: ``ok``, and measured in several rounds where rounds give the uncertainty.

        Rounds shared with another cell replace an interval of its own.
        """
        measured = self.ok & ~np.isnan(self.numbers)
        able: Mask = measured & ~self._alone
        fields = grouped(self.together, np.flatnonzero(measured))
        for place in np.flatnonzero(measured & self._alone):
            others = fields[int(self.together[place])]
            able[place] = bool(self.paired(np.full(len(others), place), others).known.any())
        return able

    @cached_property
    def unranked(self) -> Mask:
        """Mark cells that cannot rank but may be the best: their figure could be right, or is unknown."""
        possible: Mask = (self.ok | self.with_verdicts(_RETRYABLE)) & ~np.isnan(self.numbers) & ~self.ranks
        return possible | self.skipped

    @cached_property
    def skipped(self) -> Mask:
        """Mark cells skipped for lack of time."""
        return self.with_verdicts({str(Verdict.LEFT_OUT)})

    @cached_property
    def optimistic(self) -> Array:
        """Better end of each figure's interval."""
        low, high = self.interval(self.metric.name)
        ends = (np.fmin(self.numbers, low), np.fmax(self.numbers, high))
        return ends[self.metric.better != "lower"]

    @cached_property
    def badness(self) -> Array:
        """Figures with a sign such that the smallest is the best."""
        return self.numbers * (1.0 if self.metric.better == "lower" else -1.0)

    def ratios(self, tops: ArrayLike, bottoms: ArrayLike) -> Ratios:
        """Ratios of some cells to others: paired, else by a chain of pairs, else as figures stand.

        A cell's ratio to itself is 1. A ratio to zero, as of page faults, is NaN, and so is a ratio of speed-ups over
        different baselines.
        """
        top, bottom = np.asarray(tops, int), np.asarray(bottoms, int)
        if len(top) > _AT_ONCE:
            return self._compared(top, bottom)
        asked = list(zip(top.tolist(), bottom.tolist(), strict=True))
        if len(self._ratios) > _KEPT:
            self._ratios.clear()
        if new := list(dict.fromkeys(pair for pair in asked if pair not in self._ratios)):
            found = self._compared(*np.array(new, int).T)
            columns = (found.log.tolist(), found.error.tolist(), found.freedom.tolist(), found.how.tolist())
            self._ratios.update(zip(new, zip(*columns, strict=True), strict=True))
        rows = [self._ratios[pair] for pair in asked]
        log, error, freedom = (np.array([row[place] for row in rows], float) for place in range(3))
        return Ratios(log, error, freedom, np.array([row[3] for row in rows], object))

    def _compared(self, top: Places, bottom: Places) -> Ratios:
        nothing, how = unknown(len(top)), np.full(len(top), APART, object)
        found = self.figures.take(top).over(self.figures.take(bottom))
        found = found.where(np.isfinite(self.figures.log[bottom]), nothing)
        paired = self.paired(top, bottom)
        for name, better in ((SAME_ROUNDS, paired), (CHAIN, self.chained(top, bottom, ~paired.known))):
            known = better.known & np.isfinite(found.log)
            found, how[known] = better.where(known, found), name
        found = nothing.where(self._bases[top] != self._bases[bottom], found)
        same = (top == bottom) | (self._cells[top] == self._cells[bottom])
        found, how[same] = exactly(np.ones(len(top))).where(same, found), SAME_ROUNDS
        return Ratios(found.log, found.error, found.freedom, how)

    def ordered(self, places: ArrayLike) -> Places:
        """Sort cells, the best first; equal ones by name."""
        asked = np.asarray(places, int)
        order: Places = asked[np.lexsort((self._names[asked], self.badness[asked]))]
        return order

    def leader(self, places: ArrayLike) -> int:
        """Best ranking cell. Among equally good cells, `SECOND` decides.

        An equally good cell leads only if no more rivals could beat it than could beat the fastest one, neither of its
        choice nor of others.
        """
        asked = self.ordered(places)
        first = self._fastest(asked)
        good = self.equals(first, asked)
        if len(good) == 1:
            return first
        open_ = np.array([self._openness(place, asked) for place in good.tolist()])
        known = open_[good == first][0]
        return self.preferred(first, good[open_ <= known] if known < 2 else np.array([first]))[0]

    def equals(self, place: int, places: ArrayLike) -> Places:
        """Cells that are as good as one: the interval of the ratio is within ± `AS_GOOD`."""
        asked = np.asarray(places, int)
        ratios = self.ratios(asked, np.full(len(asked), place))
        low, high = ratios.ends
        with np.errstate(invalid="ignore"):
            within = (low >= 1 / (1 + AS_GOOD)) & (high <= 1 + AS_GOOD)
        within |= ~ratios.known & (self.numbers[asked] == self.numbers[place])
        equal: Places = asked[(within & ~self.left(asked, asked)) | (asked == place)]
        return equal

    def preferred(self, first: int, places: Places) -> tuple[int, str]:
        """The first criterion of `SECOND` in which equally good cells differ, with the best cell by it; else the first
        cell.
        """
        for name, said in SECOND.items():
            if name in self.frame.columns:
                values = self.column(name)[places].astype(float)
                if values.max() > (1 + AS_GOOD) * values.min():
                    return int(places[np.argmin(values)]), said
        return first, ""

    def tied(self, lead: int, places: ArrayLike) -> Mask:
        """Mark cells that are not significantly different from the leader. p-values are adjusted among them.

        Cells that clearly lose in their own rounds are not tied.
        """
        asked = np.asarray(places, int)
        ratios = self.ratios(asked, np.full(len(asked), lead))
        unlike = asked != lead
        ties: Mask = (significance.holm(np.where(unlike, ratios.p_differs(), np.nan)) >= ALPHA) & ~ratios.far
        if ties.any():
            ties &= ~(self._beaten(asked, lead) | self._covered(lead, asked))
        ties[np.isin(asked, self.equals(lead, asked))] = True
        others: Mask = ties & unlike
        return others

    def left(self, places: Places, among: Places) -> Mask:
        """Mark cells eliminated from a race by a cell that ranks."""
        beaten = np.zeros(len(places), bool)
        if BEATEN_BY not in self.frame.columns or not self._has_rounds:
            return beaten
        texts = [self.column(name) for name in ("study_id", "cell", BEATEN_BY)]
        where = {(texts[0][place], texts[1][place]): place for place in among[self.ranks[among]]}
        rivals = np.array([where.get((texts[0][place], texts[2][place]), -1) for place in places], int)
        beaten[:] = rivals >= 0
        beaten[beaten] = self.together[places[beaten]] == self.together[rivals[beaten]]
        return beaten

    def could_beat(self, ratios: Estimate) -> Mask:
        """Mark ratios that may be better than one by more than `AS_GOOD`; none is without an interval, or far below one."""
        low, high = ratios.ends
        with np.errstate(invalid="ignore"):
            able: Mask = low < 1 / (1 + AS_GOOD) if self.low_is_better else high > 1 + AS_GOOD
            able &= ratios.known & ~(ratios.far & ((ratios.log > 0) == self.low_is_better))
        return able

    @property
    def low_is_better(self) -> bool:
        """Direction of the ratios. Those of a complement are of its rest."""
        return self.metric.better == "lower" or is_complement(self.metric.name)

    @cached_property
    def _bases(self) -> NDArray[np.object_]:
        """Baseline of each cell's ratios; a constant for metrics without one."""
        if baselines.is_ratio(self.metric):
            return baselines.labels(self.frame)
        return np.full(len(self.frame), "", object)

    @cached_property
    def _alone(self) -> Mask:
        """Mark cells without an interval, of a metric that has them."""
        if self.metric.interval == "none":
            return np.zeros(len(self.frame), bool)
        return ~self.figures.known

    @cached_property
    def _cells(self) -> Places:
        """Number the cells of each study; rows without an id get a number of their own."""
        names = ("study_id", "cell")
        return self.codes(names) if set(names) <= set(self.frame.columns) else np.arange(len(self.frame))

    @cached_property
    def _names(self) -> Places:
        """Numbers in alphabetical order of the cells."""
        names = [name for name in (*CHOICE, "batch") if name in self.frame.columns]
        keys = [pd.factorize(self.frame[name], sort=True)[0] for name in reversed(names)]
        ranks = np.empty(len(self.frame), int)
        ranks[np.lexsort(keys)] = np.arange(len(self.frame))
        return ranks

    def other_choice(self, place: int, places: Places) -> Mask:
        """Mark cells that differ from one in more than the batch size."""
        other: Mask = self.codes(CHOICE)[places] != self.codes(CHOICE)[place]
        return other

    def _fastest(self, places: Places) -> int:
        """Best cell by pairs: first within each field by rounds, then among the winners.

        A winner without an interval is represented by the best cell of its field with one.
        """
        field = self.codes(FIELD)[places]
        inside = [places[field == number] for number in dict.fromkeys(field.tolist())]
        leads = {}
        for own in inside:
            lead, known = self._first(own), own[~self._alone[own]]
            leads[self._first(known) if self._alone[lead] and len(known) else lead] = lead
        return leads[self._first(np.array(list(leads), int))]

    def _first(self, places: Places) -> int:
        """Best cell in comparison with the one of the best figure, preferably one with an interval."""
        if len(places) == 1:
            return int(places[0])
        ordered = places[np.lexsort((self.badness[places], self._alone[places]))]
        ratios = self.ratios(ordered, np.full(len(ordered), ordered[0]))
        gains = ratios.log * (-1 if self.low_is_better else 1)
        paired = (ratios.how != APART) & ratios.known
        gains[~paired] = -np.inf
        gains[0] = 0.0
        return int(ordered[np.argmax(gains)])

    def could_win(self, answer: int, places: Places) -> Mask:
        """Mark ranking cells that could beat an answer.

        The ratio's interval exceeds `AS_GOOD`, or there is no interval and the figure does. Excluded are cells that
        clearly lose in their own rounds, and those that cannot beat the answer's choice at one of its batch sizes.
        """
        ratios = self.ratios(places, np.full(len(places), answer))
        near = self.could_beat(ratios)
        if self.metric.interval != "none":
            near |= ~ratios.known & self.better_than(self.numbers[places], answer)
        near &= places != answer
        if near.any():
            near &= ~(self._beaten(places, answer) | self._covered(answer, places))
        return near

    def better_than(self, numbers: Array, answer: int) -> Mask:
        """Mark numbers that are better than an answer's by more than `AS_GOOD`."""
        own = self.numbers[answer]
        gains = own - numbers if self.metric.better == "lower" else numbers - own
        better: Mask = gains > AS_GOOD * abs(own)
        return better

    def _openness(self, answer: int, places: Places) -> int:
        """2 where another choice could beat an answer, 1 where another batch size could, else 0."""
        near = places[self.could_win(answer, places)]
        return 2 if self.other_choice(answer, near).any() else int(len(near) > 0)

    def _beaten(self, places: Places, answer: int) -> Mask:
        """Mark ranking cells that clearly lose to another one of their field; those of the answer's choice by more than
        `AS_GOOD`, because a winner by less does not count as better than that choice (`_covered`).
        """
        field = self.codes(FIELD)[places]
        leads = {number: self._first(places[field == number]) for number in set(field.tolist())}
        low, high = self.ratios(places, [leads[number] for number in field.tolist()]).ends
        margin = np.where(self.other_choice(answer, places), 1.0, 1 + AS_GOOD)
        with np.errstate(invalid="ignore"):
            return self.left(places, places) | (low > margin if self.low_is_better else high < 1 / margin)

    def _covered(self, answer: int, places: Places) -> Mask:
        """Mark cells of other choices that cannot beat the answer's choice at one of its batch sizes."""
        covered = np.zeros(len(places), bool)
        other = np.flatnonzero(self.other_choice(answer, places))
        for cell in places[~self.other_choice(answer, places)].tolist():
            ratios = self.ratios(places[other], np.full(len(other), cell))
            covered[other] |= ratios.known & ~self.could_beat(ratios)
        return covered
