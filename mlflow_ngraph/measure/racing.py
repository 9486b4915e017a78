"""Race: eliminates cells that cannot be the best of their workload, by anytime-valid tests.

Two cells are compared by the rounds that both were measured in. docs/explanation/races.md divides the risk. Results are
a function of the rounds alone: a journal gives the same race again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlflow_ngraph.estimates import Array, Estimate
from mlflow_ngraph.measure import betting_tests, statistics
from mlflow_ngraph.objectives import AS_GOOD, Raced

Round = tuple[int, int]
"""Session and number."""
Ending = Literal["won", "alike"]
"""End of a race: one cell is left, or no other is noticeably better than the leader."""

ALPHA = 0.05
"""Probability of a wrong decision in a race."""
LEAVING, EXCLUDING, DECIDING = 0.4, 0.1, 0.5
"""Shares of `ALPHA`: for cells that leave, for those that need not start, and for the end of the race."""
MARGIN = 0.01
"""A cell leaves only when it is slower by more than this: unmeasured effects, such as the placement in memory, must not
decide."""
_SLOWER = -math.log1p(MARGIN)
HEAT_ROUNDS = 6
"""Rounds after which the next batch size joins."""
ROUNDS_OF_WINNER = 3
"""Rounds of the winner and of its baseline, whose ratio is reported, however soon all others have left."""

OWN_BATCH = 0.8
"""Share of a bet against a cell on rivals of its own batch size, which it meets in every round."""


@dataclass(frozen=True)
class Entrant:
    """A cell that may be the best of its workload."""

    lane: str
    batch: int
    baseline: bool = False
    """Gains are over it: it stays until it has as many rounds as a winner."""


@dataclass(frozen=True)
class Timed:
    """Result of a slice."""

    median_s: float
    """Median of its repetitions."""
    fastest_s: float
    samples: float
    """Inferences within a repetition."""


@dataclass(frozen=True)
class Departure:
    """A cell that cannot be the best any more."""

    cell: str
    rival: str
    """The fastest of the rivals with the strongest evidence."""
    rounds: int
    """Number of rounds shared with the rival."""
    ratio: float
    """Estimated ratio to the rival; above 1 is better."""
    bound: float
    """Upper bound of the ratio to the best of all others."""


@dataclass(frozen=True)
class Exclusion:
    """A cell that need not start, by its lane's result at a smaller batch size."""

    cell: str
    smaller: str
    """The measured cell of the same lane."""
    bound: float
    """Upper bound of the ratio to the best of all others."""


class Pair:
    """Differences of two cells in shared rounds, in order, with their scale before each."""

    def __init__(self) -> None:
        self._seen = 0
        self._differences: list[float] = []
        self._scales: list[float] = []
        self._theirs: list[float] = []

    def follow(self, ours: Mapping[Round, float], theirs: Mapping[Round, float]) -> Pair:
        """Add new shared rounds."""
        for round_ in list(ours)[self._seen :]:
            if round_ in theirs:
                self._scales.append(betting_tests.scale(self._differences))
                self._differences.append(ours[round_] - theirs[round_])
                self._theirs.append(theirs[round_])
        self._seen = len(ours)
        return self

    @property
    def differences(self) -> Array:
        """One a round."""
        return np.array(self._differences)

    def log_evidence(self, centre: float, best: float) -> float:
        """See `betting_tests.log_evidence`.

        Parameters
        ----------
        best : float
            The best figure of the first cell.
        """
        return betting_tests.log_evidence(
            self.differences, best - np.array(self._theirs), centre, np.array(self._scales)
        )


class Race:
    """The cells of one workload and the search for the best.

    Parameters
    ----------
    entrants : Mapping[str, Entrant]
        All cells that may ever take part, by id. Each of them shares the risk of a wrong decision, measured or not.
    objective : Raced
        The figure to optimise.
    """

    def __init__(self, entrants: Mapping[str, Entrant], objective: Raced) -> None:
        self.racing: list[str] = []
        """Cells that have started and not left."""
        self.barred: set[str] = set()
        """Cells that cannot win for now, whatever their figure; they eliminate no other."""
        self._entrants = dict(entrants)
        self._objective = objective
        self._figures: dict[str, dict[Round, float]] = {cell: {} for cell in entrants}
        self._best = dict.fromkeys(entrants, -math.inf)
        """Figure of the fastest repetition of each cell, timed or not."""
        self._fresh: set[str] = set()
        """The cells that started last."""
        self._pairs: dict[tuple[str, str], Pair] = {}

    @property
    def batch_sizes(self) -> list[int]:
        """Batch sizes in the order of their start.

        The smallest one first: slow lanes cost least there. Then from the largest one on when larger batches raise the
        rate.
        """
        smallest, *others = sorted({entrant.batch for entrant in self._entrants.values()})
        return [smallest, *(reversed(others) if self._objective == "throughput" else others)]

    def start(self, cells: Iterable[str]) -> None:
        """Add cells to the race."""
        self._fresh = set(cells)
        self.racing.extend(cell for cell in self._entrants if cell in self._fresh and cell not in self.racing)

    def withdraw(self, cell: str) -> None:
        if cell in self.racing:
            self.racing.remove(cell)

    def warmed_up(self, cell: str, timed: Timed) -> None:
        """Add a warm-up result: disturbances can only make it slower."""
        self._best[cell] = max(self._best[cell], self._figure(timed.fastest_s, timed))

    def measured(self, round_: Round, cell: str, timed: Timed) -> None:
        """Add the result of a cell in a round."""
        self._figures[cell][round_] = self._figure(timed.median_s, timed)
        self._best[cell] = max(self._best[cell], self._figure(timed.fastest_s, timed))

    def rounds(self, cell: str) -> int:
        """Number of rounds of a cell."""
        return len(self._figures[cell])

    def ratio(self, cell: str, other: str) -> Estimate:
        """Ratio of two cells, by shared rounds if any, else by all rounds of each."""
        differences = self._pair(cell, other).differences
        if differences.size:
            return statistics.paired_ratio(np.exp(differences), np.ones_like(differences))
        alone = (np.exp(np.array(list(self._figures[name].values()))) for name in (cell, other))
        top, bottom = (statistics.typical(figures) for figures in alone)
        return top.over(bottom)

    def leader(self) -> str | None:
        """The best cell in the race that is not barred, or None."""
        ahead: str | None = None
        for cell in self.racing:
            if cell in self.barred or not self._figures[cell]:
                continue
            if ahead is None or float(self.ratio(cell, ahead).log) > 0:
                ahead = cell
        return ahead

    def departures(self) -> list[Departure]:
        """Remove and return the cells that cannot be the best any more."""
        leader = self.leader()
        asked = (cell for cell in self.racing if cell != leader and self._figures[cell] and not self._stays(cell))
        departures = [self._departure(cell) for cell in asked if self._beaten(cell, _SLOWER, LEAVING)]
        for departure in departures:
            self.withdraw(departure.cell)
        return departures

    def _stays(self, cell: str) -> bool:
        return self._entrants[cell].baseline and self.rounds(cell) < ROUNDS_OF_WINNER

    def exclusion(self, cell: str) -> Exclusion | None:
        """Evidence that a cell need not start, as larger batches take no less time than smaller ones; else None."""
        entrant = self._entrants[cell]
        smaller = [
            other
            for other, rival in self._entrants.items()
            if rival.lane == entrant.lane and rival.batch < entrant.batch and self._figures[other]
        ]
        if not smaller:
            return None
        nearest = max(smaller, key=lambda other: self._entrants[other].batch)
        if self._objective == "latency":
            return None if nearest in self.barred else Exclusion(cell, nearest, 1.0)
        gain = entrant.batch / self._entrants[nearest].batch
        centre = _SLOWER - math.log(gain)
        if not self._beaten(nearest, centre, EXCLUDING):
            return None
        return Exclusion(cell, nearest, gain * math.exp(self._bound(nearest, centre, EXCLUDING)))

    def decided(self) -> Ending | None:
        """End of a decided race, or None."""
        leader = self.leader()
        if leader is None or self.rounds(leader) < ROUNDS_OF_WINNER:
            return None
        others = [cell for cell in self.racing if cell != leader]
        if not others:
            return "won"
        return "alike" if all(self._no_better(cell, leader) for cell in others) else None

    def ratio_to_leader(self, cell: str) -> Estimate | None:
        """Ratio of a cell to the leader; None for the leader, or without figures."""
        leader = self.leader()
        if leader is None or cell == leader or not self._figures[cell]:
            return None
        return self.ratio(cell, leader)

    def heat_over(self) -> bool:
        """Return True when the cells that started last have had their rounds or have left."""
        return all(self.rounds(cell) >= HEAT_ROUNDS for cell in self.racing if cell in self._fresh)

    def is_fresh(self, cell: str) -> bool:
        return cell in self._fresh

    def _figure(self, seconds: float, timed: Timed) -> float:
        """Logarithm of the objective; larger is better."""
        return (math.log(timed.samples) if self._objective == "throughput" else 0.0) - math.log(seconds)

    def _departure(self, cell: str) -> Departure:
        stakes = {rival: self._evidence(cell, rival, _SLOWER) for rival in self._rivals(cell)}
        clear = [rival for rival, stake in stakes.items() if stake >= max(stakes.values()) - math.log(10)]
        rival = min(clear, key=lambda name: float(self.ratio(cell, name).log))
        ratio, shared = float(self.ratio(cell, rival).value), self._pair(cell, rival).differences.size
        return Departure(cell, rival, shared, ratio, math.exp(self._bound(cell, _SLOWER, LEAVING)))

    def _rivals(self, cell: str) -> list[str]:
        """Cells with shared rounds, including those that have left."""
        return [
            other
            for other, figures in self._figures.items()
            if other != cell and other not in self.barred and not figures.keys().isdisjoint(self._figures[cell])
        ]

    def _beaten(self, cell: str, centre: float, share: float) -> bool:
        """Return True when the ratio of a cell to the best other is certainly below ``exp(centre)``."""
        weights = self._weights(cell)
        stakes = [math.log(weights[rival]) + self._evidence(cell, rival, centre) for rival in self._rivals(cell)]
        return bool(stakes) and betting_tests.log_sum(np.array(stakes)) >= -math.log(share * ALPHA)

    def _no_better(self, cell: str, leader: str) -> bool:
        """Return True when a cell is certainly not noticeably better than the leader, by its interval as well.

        Later queries for the best cell have only the interval.
        """
        if not self._pair(cell, leader).differences.size:
            return False
        weight, ratio = self._weights(cell)[leader], self.ratio(cell, leader)
        if not ratio.known or float(ratio.ends[1]) > 1 + AS_GOOD:
            return False
        return self._evidence(cell, leader, math.log1p(AS_GOOD)) >= -math.log(weight * DECIDING * ALPHA)

    def _bound(self, cell: str, known: float, share: float) -> float:
        """Smallest upper bound of the logarithm of a cell's ratio to the best other.

        Parameters
        ----------
        known : float
            A valid upper bound.
        """
        certain, open_ = (
            known,
            min(float(self._pair(cell, rival).differences.min()) for rival in self._rivals(cell)) - 1,
        )
        while certain - open_ > 1e-3:
            middle = (certain + open_) / 2
            certain, open_ = (middle, open_) if self._beaten(cell, middle, share) else (certain, middle)
        return certain

    def _evidence(self, cell: str, rival: str, centre: float) -> float:
        return self._pair(cell, rival).log_evidence(centre, self._best[cell])

    def _pair(self, cell: str, other: str) -> Pair:
        pair = self._pairs.setdefault((cell, other), Pair())
        return pair.follow(self._figures[cell], self._figures[other])

    def _weights(self, cell: str) -> dict[str, float]:
        """Weights of a bet against a cell by rival, most of it on its own batch size."""
        batch = self._entrants[cell].batch
        same = [other for other, rival in self._entrants.items() if other != cell and rival.batch == batch]
        others = [other for other, rival in self._entrants.items() if rival.batch != batch]
        share = OWN_BATCH if same and others else 1.0
        weights = dict.fromkeys(same, share / max(1, len(same)))
        return {**weights, **dict.fromkeys(others, (1 - share if same else 1.0) / max(1, len(others)))}
