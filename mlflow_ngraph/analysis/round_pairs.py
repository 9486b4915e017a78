"""Ratios of cells by rounds that they share, and by chains of such pairs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.cell_columns import CellColumns, Mask, Places, grouped
from mlflow_ngraph.estimates import Array, Estimate, unknown
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import FOREIGN, METRICS, ROUNDS, Metric, uneven_load
from mlflow_ngraph.verdicts import Verdict

FIELD = ("study_id", "workload", "batch")
"""Columns that are equal in cells that may share rounds."""
CHOICE = ("device", "workload", "compiler_label", "precision", "mode", "threads")
"""Columns that are equal in cells that differ only in batch size."""
PER_SAMPLE = ("throughput",)
"""Metrics that compare batch sizes by shared rounds, where batch sizes race."""


class RoundPairs(CellColumns):
    """Cells of a table that were measured in the same rounds, by one metric."""

    def __init__(self, frame: pd.DataFrame, metric: Metric) -> None:
        super().__init__(frame)
        self.metric = metric
        self._by_round = METRICS[metric.name].by_round if metric.name in METRICS else 0
        self._has_rounds = bool(self._by_round) and {*FIELD, ROUNDS} <= set(frame.columns)
        self._rounds: dict[int, dict[str, float]] = {}
        self._pairs: dict[tuple[int, int], tuple[float, float, float]] = {}

    @cached_property
    def figures(self) -> Estimate:
        """Figures as they stand."""
        return significance.figures(self.frame, self.metric.name)

    @cached_property
    def ok(self) -> Mask:
        return self.with_verdicts({str(Verdict.OK)})

    def with_verdicts(self, names: Iterable[str]) -> Mask:
        return np.asarray(self.frame["verdict"].isin(list(names)), bool)

    @cached_property
    def together(self) -> Places:
        """Number the groups that may share rounds; rows without rounds get a number of their own."""
        if not self._has_rounds:
            return np.arange(len(self.frame))
        per_sample = self.metric.name in PER_SAMPLE
        return self.codes([name for name in FIELD if name != "batch" or not per_sample])

    @cached_property
    def _ok_by_study(self) -> dict[int, Places]:
        """Cells that are ``ok``, by the number of workload and study."""
        return grouped(self.codes(FIELD[:2]), np.flatnonzero(self.ok))

    def paired(self, tops: Places, bottoms: Places) -> Estimate:
        """Ratios round by round; NaN with fewer than two shared rounds."""
        found = unknown(len(tops))
        differences: dict[int, dict[tuple[int, int], Array]] = defaultdict(dict)
        related = np.flatnonzero((self.together[tops] == self.together[bottoms]) & (tops != bottoms)).tolist()
        asked = {place: (int(tops[place]), int(bottoms[place])) for place in related} if self._has_rounds else {}
        for pair in {pair for pair in asked.values() if pair not in self._pairs}:
            top, bottom = map(self._logs, pair)
            logs = np.array([self._by_round * (bottom[name] - log) for name, log in top.items() if name in bottom])
            self._pairs[pair] = (math.nan, math.nan, math.nan)
            if logs.size > 1:  # one round gives no interval
                differences[logs.size][pair] = logs
        for pairs in differences.values():  # vectorised over pairs with equally many rounds
            several = statistics.trimmed_mean(np.stack(list(pairs.values())))
            self._pairs.update(zip(pairs, zip(several.log, several.error, several.freedom, strict=True), strict=True))
        for place, pair in asked.items():
            found.log[place], found.error[place], found.freedom[place] = self._pairs[pair]
        return found.beside(np.maximum(self.load[tops], self.load[bottoms]))

    @cached_property
    def load(self) -> Array:
        """Share of the machine that others took beside each cell, where that slows lanes unequally; else 0."""
        if FOREIGN not in self.frame.columns:
            return np.zeros(len(self.frame))
        return np.array([uneven_load(percent) for percent in self.frame[FOREIGN].to_numpy(float).tolist()])

    def _logs(self, place: int) -> dict[str, float]:
        known = self._rounds.get(place)
        if known is None:
            text = self.column(ROUNDS)[place]
            known = self._rounds[place] = json.loads(text) if isinstance(text, str) and text else {}
        return known

    def chained(self, tops: Places, bottoms: Places, asked: Mask) -> Estimate:
        """Ratios by a third cell of the same study, the most certain one; NaN without any.

        The third cell shares rounds with both. Between batch sizes, it is the choice of one at the batch size of the
        other: the step between batch sizes uses that choice's own figures, the rest uses rounds.
        """
        found = unknown(len(tops))
        if not self._has_rounds:
            return found
        study, field, choice = self.codes(FIELD[:2]), self.codes(FIELD), self.codes(CHOICE)
        related = np.flatnonzero(asked & (study[tops] == study[bottoms]) & (choice[tops] != choice[bottoms]))
        if not len(related):
            return found
        thirds = [np.zeros(0, int)]
        for place in related.tolist():
            ends = tops[place], bottoms[place]
            own = self._ok_by_study.get(int(study[ends[0]]), thirds[0])
            linked = [(field[own] == field[end]) | (choice[own] == choice[end]) for end in ends]
            thirds.append(own[linked[0] & linked[1]])
        third, asker = np.concatenate(thirds), np.repeat(related, [len(places) for places in thirds[1:]])
        ways = self._step(tops[asker], third).over(self._step(bottoms[asker], third))
        known = np.flatnonzero(ways.known)
        order = known[np.lexsort((ways.error[known], asker[known]))]
        places, firsts = np.unique(asker[order], return_index=True)
        best = ways.take(order[firsts])
        found.log[places], found.error[places], found.freedom[places] = best.log, best.error, best.freedom
        return found

    def _step(self, tops: Places, bottoms: Places) -> Estimate:
        """Ratios by rounds within a field, and by figures between batch sizes of one choice."""
        field = self.codes(FIELD)
        figures = self.figures.take(tops).over(self.figures.take(bottoms))
        return self.paired(tops, bottoms).where(field[tops] == field[bottoms], figures)
