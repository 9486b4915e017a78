"""What racing saves and what it costs: recorded rounds of finished studies, raced again many times.

``python benchmarks/racing.py DIRECTORY... [--reference DIRECTORY...] [--replays 200] [--objective throughput]``

``DIRECTORY`` is that of a study with ``purpose: characterise``. For every workload of it each replay draws its rounds
anew, in blocks of neighbouring ones so that what lasts longer than a round stays together, and races the cells as a study
with ``purpose: decide`` does, by the same code. A study that characterises measures its batch sizes one after the other, a
race measures them in the same rounds: so what a recorded round has in common (the median over its lanes) is taken out of
it. A lane that has no slice in a round that was drawn gets one of its others.

Printed is the share of the timed seconds that the race takes of those of the study, and how often its winner is wrong: more
than 3 % behind the best by the reference, which is all rounds of the studies named by ``--reference`` or, without it, those
of the study itself. Exit code 1: more than 40 % of the seconds over all workloads, or more than 5 % wrong.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.measure.racing import Entrant, Race, Timed
from mlflow_ngraph.objectives import Raced

MOST_SECONDS, MOST_WRONG, TOLERATED = 0.4, 0.05, 1.03
BLOCK = 4
"""Neighbouring rounds that stay together."""


@dataclass(frozen=True)
class Slice:
    """What one slice took."""

    timed: Timed
    wall_s: float


@dataclass
class Recorded:
    """The rounds of one workload in one study."""

    name: str
    entrants: dict[str, Entrant]
    rounds: dict[int, list[dict[str, Slice]]]
    """By batch size."""

    @property
    def seconds(self) -> float:
        """That were timed."""
        return sum(part.wall_s for rounds in self.rounds.values() for taken in rounds for part in taken.values())

    def figures(self, objective: Raced) -> dict[str, float]:
        """The figure of each cell over all rounds; higher is better."""
        logs: dict[str, list[float]] = defaultdict(list)
        for rounds in self.rounds.values():
            for taken in rounds:
                for cell, part in taken.items():
                    gained = math.log(part.timed.samples) if objective == "throughput" else 0.0
                    logs[cell].append(gained - math.log(part.timed.median_s))
        return {cell: math.exp(float(np.median(found))) for cell, found in logs.items()}


@dataclass(frozen=True)
class Replay:
    """How one race went."""

    seconds: float
    winner: str
    decided: bool


class Rounds:
    """Rounds of one workload and batch size, drawn in blocks, without an end."""

    def __init__(self, recorded: Recorded, batch: int, rng: np.random.Generator) -> None:
        self._rounds = _alone(recorded.rounds[batch])
        self._rng = rng
        self._next: list[int] = []
        self._with: dict[str, list[Slice]] = {}
        for taken in self._rounds:
            for cell, part in taken.items():
                self._with.setdefault(cell, []).append(part)

    def draw(self) -> dict[str, Slice]:
        """A slice of every cell that has any."""
        if not self._next:
            first = int(self._rng.integers(len(self._rounds)))
            self._next = [(first + place) % len(self._rounds) for place in range(BLOCK)]
        drawn = self._rounds[self._next.pop(0)]
        return {
            cell: drawn[cell] if cell in drawn else own[int(self._rng.integers(len(own)))]
            for cell, own in self._with.items()
        }


def _alone(rounds: Sequence[dict[str, Slice]]) -> list[dict[str, Slice]]:
    """The rounds without what each of them has in common."""
    typical = {
        cell: float(np.median([taken[cell].timed.median_s for taken in rounds if cell in taken]))
        for cell in {cell for taken in rounds for cell in taken}
    }
    found = []
    for taken in rounds:
        common = float(np.median([part.timed.median_s / typical[cell] for cell, part in taken.items()]))
        found.append({cell: _scaled(part, 1 / common) for cell, part in taken.items()})
    return found


def _scaled(part: Slice, factor: float) -> Slice:
    timed = part.timed
    return Slice(Timed(timed.median_s * factor, timed.fastest_s * factor, timed.samples), part.wall_s)


def main() -> int:
    """Replay, print, and hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--reference", nargs="*", type=Path, default=[])
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--objective", choices=("throughput", "latency"), default="throughput")
    options = parser.parse_args()
    objective: Raced = options.objective
    truth = _truth([replay.load(directory) for directory in options.reference], objective)
    raced = timed = 0.0
    wrong = replays = 0
    for directory in options.directories:
        for recorded in read(replay.load(directory)):
            reference = truth.get(recorded.name) or recorded.figures(objective)
            found = [race(recorded, objective, np.random.default_rng(seed)) for seed in range(options.replays)]
            missed = sum(_behind(one.winner, reference) > TOLERATED for one in found)
            spent = float(np.mean([one.seconds for one in found]))
            raced, timed = raced + spent, timed + recorded.seconds
            wrong, replays = wrong + missed, replays + len(found)
            _print(recorded, found, reference, missed, spent)
    print(f"all: {100 * raced / timed:.0f} % of the timed seconds, {100 * wrong / replays:.1f} % wrong winners")
    return int(raced > MOST_SECONDS * timed or wrong > MOST_WRONG * replays)


def read(record: StudyRecord) -> list[Recorded]:
    """The workloads of a study with their rounds."""
    found: dict[str, Recorded] = {}
    for lane in record.lanes.values():
        recorded = found.setdefault(lane.lane.workload, Recorded(lane.lane.workload, {}, {}))
        for batch, cell in lane.cells.items():
            if cell.verdict.measured and cell.samples:
                base = lane.lane.compiler_label == record.baseline
                recorded.entrants[cell.id] = Entrant(lane.lane.id, batch, base)
    for workload, recorded in found.items():
        for batch in sorted({entrant.batch for entrant in recorded.entrants.values()}):
            recorded.rounds[batch] = _rounds(record, workload, batch, recorded.entrants)
    return [recorded for recorded in found.values() if recorded.entrants]


def _rounds(record: StudyRecord, workload: str, batch: int, cells: Mapping[str, Entrant]) -> list[dict[str, Slice]]:
    by_round: dict[tuple[int, int], dict[str, Slice]] = defaultdict(dict)
    for lane in record.lanes.values():
        cell: CellRecord | None = lane.cells.get(batch) if lane.lane.workload == workload else None
        if cell is not None and cell.id in cells:
            for part in cell.samples:
                seconds = np.asarray(part["durations_ns"], float) / 1e9
                samples = float(batch * cell.ready.get("requests", 1))
                timed = Timed(float(np.median(seconds)), float(seconds.min()), samples)
                by_round[part["session"], part["round"]][cell.id] = Slice(timed, part["wall_s"])
    return [taken for _, taken in sorted(by_round.items())]


def race(recorded: Recorded, objective: Raced, rng: np.random.Generator) -> Replay:
    """One race over rounds that are drawn anew."""
    contest = Race(recorded.entrants, objective)
    drawn = {batch: Rounds(recorded, batch, rng) for batch in recorded.rounds}
    seconds, number, most = 0.0, 0, max(map(len, recorded.rounds.values()))
    for batch in [*contest.batch_sizes, None]:
        if batch is not None:
            here = [cell for cell, entrant in recorded.entrants.items() if entrant.batch == batch]
            contest.start([cell for cell in here if contest.exclusion(cell) is None])
        while not contest.decided() and not (batch is not None and contest.heat_over()):
            if all(contest.rounds(cell) >= most for cell in contest.racing):
                break  # as many as the study took of a cell
            taken = {size: rounds.draw() for size, rounds in drawn.items()}
            for cell in list(contest.racing):
                part = taken[recorded.entrants[cell].batch][cell]
                contest.measured((1, number), cell, part.timed)
                seconds += part.wall_s
            number += 1
            contest.departures()
    return Replay(seconds, str(contest.leader()), contest.decided() is not None)


def _truth(records: Sequence[StudyRecord], objective: Raced) -> dict[str, dict[str, float]]:
    """The figures of each workload by the references; those of cells that several have are their geometric mean."""
    logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for recorded in read(record):
            for cell, figure in recorded.figures(objective).items():
                logs[recorded.name][cell].append(math.log(figure))
    return {
        name: {cell: math.exp(float(np.mean(found))) for cell, found in cells.items()} for name, cells in logs.items()
    }


def _behind(winner: str, reference: Mapping[str, float]) -> float:
    """How many times better the best is."""
    return max(reference.values()) / reference[winner] if winner in reference else math.inf


def _print(
    recorded: Recorded, found: Sequence[Replay], reference: Mapping[str, float], missed: int, spent: float
) -> None:
    winners = Counter(one.winner for one in found).most_common(3)
    named = ", ".join(f"{cell} ({count}, {_behind(cell, reference):.3f})" for cell, count in winners)
    undecided = sum(not one.decided for one in found)
    print(
        f"{recorded.name}: {recorded.seconds:.1f} s timed, raced {spent:.1f} s ({100 * spent / recorded.seconds:.0f} %), "
        f"{missed} of {len(found)} wrong, {undecided} undecided; winners with how far the best is ahead: {named}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
