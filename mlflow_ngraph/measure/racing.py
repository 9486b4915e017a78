"""Which cells of a workload cannot be its best one any more, by bets that stay valid however often one looks at them.

What is compared are the figures of two cells in the rounds that both were measured in. docs/explanation/races.md says how the risk is
shared out. Everything here is a function of the rounds alone: a journal gives the same race again.
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
"""How a race is decided: one cell is left, or none that is left is noticeably better than the first."""

ALPHA = 0.05
"""Of so many races at most one is decided wrongly."""
LEAVING, EXCLUDING, DECIDING = 0.4, 0.1, 0.5
"""Shares of `ALPHA`: for cells that leave, for those that need not start, and for the end of the race."""
MARGIN = 0.01
"""A cell leaves when it is slower than another by more than this. So what rounds do not know of, such as where a
process happens to lie in memory, decides nothing by itself."""
_SLOWER = -math.log1p(MARGIN)
HEAT_ROUNDS = 6
"""Rounds after which the next batch size joins those that are left."""
FEWEST_ROUNDS = 3
"""Of the winner, however soon all others have left: it is told with its figures."""

OWN_BATCH = 0.8
"""Of what is staked against a cell, the part on rivals of its own batch size, which it meets in every round."""


@dataclass(frozen=True)
class Entrant:
    """A cell that may be the best of its workload."""

    lane: str
    batch: int


@dataclass(frozen=True)
class Timed:
    """What a slice says."""

    median_s: float
    """Of its repetitions."""
    fastest_s: float
    samples: float
    """Inferences within a repetition."""


@dataclass(frozen=True)
class Departure:
    """A cell that cannot be the best any more."""

    cell: str
    rival: str
    """Of those that say so most clearly the one that is furthest ahead."""
    rounds: int
    """That it was measured in together with the rival."""
    ratio: float
    """Its figure over that of the rival, as estimated; above 1 is better."""
    bound: float
    """What its figure over that of the best of all others is at most."""


@dataclass(frozen=True)
class Exclusion:
    """A cell that need not start, because of what its lane did at a smaller batch size."""

    cell: str
    smaller: str
    """The cell of the same lane that was measured."""
    bound: float
    """What the figure of the cell over that of the best of all others is at most."""


class Pair:
    """The differences of two cells in the rounds that both have, in order, and how far they scattered before each."""

    def __init__(self) -> None:
        self._seen = 0
        self._differences: list[float] = []
        self._scales: list[float] = []
        self._theirs: list[float] = []

    def follow(self, ours: Mapping[Round, float], theirs: Mapping[Round, float]) -> Pair:
        """Take in rounds that were not there the last time."""
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
        """As `betting_tests.log_evidence`.

        Parameters
        ----------
        best : float
            The best figure that the first of the two cells ever had.
        """
        return betting_tests.log_evidence(
            self.differences, best - np.array(self._theirs), centre, np.array(self._scales)
        )


class Race:
    """The cells of one workload, on their way to the best one.

    Parameters
    ----------
    entrants : Mapping[str, Entrant]
        All cells that may ever take part, by their ids. Whoever could win shares in the risk of a wrong decision, whether
        it is ever measured or not.
    objective : Raced
        What the best one is best in.
    """

    def __init__(self, entrants: Mapping[str, Entrant], objective: Raced) -> None:
        self.racing: list[str] = []
        """Cells that have started and are still in the race."""
        self.barred: set[str] = set()
        """Cells that cannot be the answer as things stand, whatever their figure: nothing leaves because of them."""
        self._entrants = dict(entrants)
        self._objective = objective
        self._figures: dict[str, dict[Round, float]] = {cell: {} for cell in entrants}
        self._best = dict.fromkeys(entrants, -math.inf)
        """The figure of the fastest repetition of each cell, timed or not."""
        self._fresh: set[str] = set()
        """Those that started last."""
        self._pairs: dict[tuple[str, str], Pair] = {}

    @property
    def batch_sizes(self) -> list[int]:
        """In the order in which they start.

        The smallest one first: it costs least to learn there who is hopeless. Then, if more samples at once mean more
        samples a second, from the largest one on.
        """
        smallest, *others = sorted({entrant.batch for entrant in self._entrants.values()})
        return [smallest, *(reversed(others) if self._objective == "throughput" else others)]

    def start(self, cells: Iterable[str]) -> None:
        """Let cells take part from now on."""
        self._fresh = set(cells)
        self.racing.extend(cell for cell in self._entrants if cell in self._fresh and cell not in self.racing)

    def withdraw(self, cell: str) -> None:
        """Take a cell out."""
        if cell in self.racing:
            self.racing.remove(cell)

    def warmed_up(self, cell: str, timed: Timed) -> None:
        """Take in what a cell did before its rounds: what disturbs it then only makes it slower."""
        self._best[cell] = max(self._best[cell], self._figure(timed.fastest_s, timed))

    def measured(self, round_: Round, cell: str, timed: Timed) -> None:
        """Take in what a cell did in a round."""
        self._figures[cell][round_] = self._figure(timed.median_s, timed)
        self._best[cell] = max(self._best[cell], self._figure(timed.fastest_s, timed))

    def rounds(self, cell: str) -> int:
        """In how many rounds a cell was measured."""
        return len(self._figures[cell])

    def ratio(self, cell: str, other: str) -> Estimate:
        """The figure of a cell over that of another: by the rounds that both share, else by all rounds of each."""
        differences = self._pair(cell, other).differences
        if differences.size:
            return statistics.paired_ratio(np.exp(differences), np.ones_like(differences))
        alone = (np.exp(np.array(list(self._figures[name].values()))) for name in (cell, other))
        top, bottom = (statistics.typical(figures) for figures in alone)
        return top.over(bottom)

    def leader(self) -> str | None:
        """The cell that is ahead of those in the race which may be the answer; None where there is none."""
        ahead: str | None = None
        for cell in self.racing:
            if cell in self.barred or not self._figures[cell]:
                continue
            if ahead is None or float(self.ratio(cell, ahead).log) > 0:
                ahead = cell
        return ahead

    def departures(self) -> list[Departure]:
        """The cells that cannot be the best any more, by all rounds so far. They leave the race."""
        leader = self.leader()
        asked = (cell for cell in self.racing if cell != leader and self._figures[cell])
        departures = [self._departure(cell) for cell in asked if self._beaten(cell, _SLOWER, LEAVING)]
        for departure in departures:
            self.withdraw(departure.cell)
        return departures

    def exclusion(self, cell: str) -> Exclusion | None:
        """Whether a cell need not start, because an inference at a larger batch size takes no less than at a smaller one."""
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
        """How the race is decided, for those who are in it; None while it is not."""
        leader = self.leader()
        if leader is None or self.rounds(leader) < FEWEST_ROUNDS:
            return None
        others = [cell for cell in self.racing if cell != leader]
        if not others:
            return "won"
        return "alike" if all(self._no_better(cell, leader) for cell in others) else None

    def beside_leader(self, cell: str) -> Estimate | None:
        """The figure of a cell over that of the leader; None for the leader itself, and where one of them has none."""
        leader = self.leader()
        if leader is None or cell == leader or not self._figures[cell]:
            return None
        return self.ratio(cell, leader)

    def heat_over(self) -> bool:
        """Whether the next batch size may join: those that started last have had their rounds, or have left."""
        return all(self.rounds(cell) >= HEAT_ROUNDS for cell in self.racing if cell in self._fresh)

    def is_fresh(self, cell: str) -> bool:
        """Whether a cell is among those that started last."""
        return cell in self._fresh

    def _figure(self, seconds: float, timed: Timed) -> float:
        """The logarithm of the objective, of which more is better."""
        return (math.log(timed.samples) if self._objective == "throughput" else 0.0) - math.log(seconds)

    def _departure(self, cell: str) -> Departure:
        stakes = {rival: self._evidence(cell, rival, _SLOWER) for rival in self._rivals(cell)}
        clear = [rival for rival, stake in stakes.items() if stake >= max(stakes.values()) - math.log(10)]
        rival = min(clear, key=lambda name: float(self.ratio(cell, name).log))
        ratio, shared = float(self.ratio(cell, rival).value), self._pair(cell, rival).differences.size
        return Departure(cell, rival, shared, ratio, math.exp(self._bound(cell, _SLOWER, LEAVING)))

    def _rivals(self, cell: str) -> list[str]:
        """Those that it shares rounds with, whether they are still in the race or not."""
        return [
            other
            for other, figures in self._figures.items()
            if other != cell and other not in self.barred and not figures.keys().isdisjoint(self._figures[cell])
        ]

    def _beaten(self, cell: str, centre: float, share: float) -> bool:
        """Whether it is certain that the figure of a cell over that of the best other one is below ``exp(centre)``."""
        weights = self._weights(cell)
        stakes = [math.log(weights[rival]) + self._evidence(cell, rival, centre) for rival in self._rivals(cell)]
        return bool(stakes) and betting_tests.log_sum(np.array(stakes)) >= -math.log(share * ALPHA)

    def _no_better(self, cell: str, leader: str) -> bool:
        """Whether it is certain that a cell is not noticeably better than the leader, and its interval says so as well.

        Whoever is asked for the best cell later has the interval alone.
        """
        if not self._pair(cell, leader).differences.size:
            return False
        weight, ratio = self._weights(cell)[leader], self.ratio(cell, leader)
        if not ratio.known or float(ratio.ends[1]) > 1 + AS_GOOD:
            return False
        return self._evidence(cell, leader, math.log1p(AS_GOOD)) >= -math.log(weight * DECIDING * ALPHA)

    def _bound(self, cell: str, known: float, share: float) -> float:
        """The smallest logarithm that the figure of a cell over that of the best other one is certainly below.

        Parameters
        ----------
        known : float
            One that it is certainly below.
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
        """How what is staked against a cell is spread over its rivals: most of it on those of its own batch size."""
        batch = self._entrants[cell].batch
        same = [other for other, rival in self._entrants.items() if other != cell and rival.batch == batch]
        others = [other for other, rival in self._entrants.items() if rival.batch != batch]
        share = OWN_BATCH if same and others else 1.0
        weights = dict.fromkeys(same, share / max(1, len(same)))
        return {**weights, **dict.fromkeys(others, (1 - share if same else 1.0) / max(1, len(others)))}
