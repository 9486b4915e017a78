"""RacedRounds: measures all batch sizes of a workload as one race for the best cell, and writes verdicts.

Each batch size joins in a heat. Its lanes are measured in rounds together with the cells still in the race, each in its
own process, so that all comparisons are paired. `mlflow_ngraph.measure.racing` decides from the rounds, including those
of earlier sessions, which cells leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlflow_ngraph.execute.earlier_rounds import EarlierRounds, slice_timed
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_progress import Loaded
from mlflow_ngraph.execute.open_cells import CellResult, OpenCells
from mlflow_ngraph.execute.race_limits import RaceLimits
from mlflow_ngraph.execute.race_words import RaceWords
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.rounds import Rounds, lack_of_memory
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.measure import racing
from mlflow_ngraph.measure.racing import Departure, Entrant, Race, Timed
from mlflow_ngraph.objectives import AS_GOOD, Raced
from mlflow_ngraph.text import duration
from mlflow_ngraph.verdicts import Verdict

_NO_EVIDENCE: Mapping[str, Any] = dict.fromkeys(("rival", "shared", "ratio", "bound", "limit"))
"""Fields of a departure: the rival with shared rounds, ratio and bound, or the limit."""


@dataclass(frozen=True)
class Starter:
    """A cell in the race with its runner."""

    runner: LaneRunner
    batch: int

    @property
    def cell(self) -> str:
        return self.runner.lane.cell(self.batch)


class RacedRounds(Rounds):
    """Measures all batch sizes of a workload until the best cell is known."""

    def __init__(
        self,
        session: Session,
        cells: OpenCells,
        order: random.Random,
        *,
        objective: Raced,
        lanes: Sequence[Lane],
        before: EarlierRounds,
    ) -> None:
        super().__init__(session, cells, order)
        self._lanes = {lane.cell(batch): (lane, batch) for lane in lanes for batch in lane.batch_sizes}
        base = self._study.baseline_label
        entrants = {
            cell: Entrant(lane.id, batch, lane.compiler_label == base) for cell, (lane, batch) in self._lanes.items()
        }
        self._race = Race(entrants, objective)
        for round_, seen in sorted(before.rounds.items()):
            for cell, timed in seen.items():
                self._race.measured(round_, cell, timed)
        self._race.barred.update(before.barred)
        self._words = RaceWords(self._race, self._lanes)
        self._limits = RaceLimits(self._study, self._race, self._lanes)
        self._own: Sequence[LaneRunner] = ()
        """Runners of the lanes. Their processes outlive a cell; those of twins do not."""
        self._on_track: dict[str, Starter] = {}
        """Loaded cells."""
        self._parked: dict[str, tuple[Starter, Loaded]] = {}
        """Cells in the race that were unloaded for lack of memory or time."""
        self._spared: list[tuple[int, float]] = []
        """Unused repetitions and seconds of each cell that has left."""

    def race(self, runners: Sequence[LaneRunner]) -> None:
        """Measure the cells and write their verdicts."""
        self._own = runners
        batch_sizes = self._race.batch_sizes
        for place, batch in enumerate(batch_sizes):
            if self._left() > 0:
                with self._time.part(1 / (len(batch_sizes) - place + 1)):
                    self._heat(runners, batch)
        self._take_rounds(final=True)
        self._bring_back()
        self._conclude()

    def _heat(self, runners: Sequence[LaneRunner], batch: int) -> None:
        """Add the lanes of a batch size to the race and measure rounds."""
        waiting = [
            runner
            for runner in runners
            if batch in runner.engines
            and self._cells.is_open(runner.lane, batch)
            and self._is_affordable(runner, batch)
            and not self._excluded(runner, batch)
        ]
        while waiting and self._left() > 0:
            waiting = self._join(waiting, batch)
            self._take_rounds(final=False)
            if waiting and self._left() > 0:
                self._park()

    def _join(self, waiting: Sequence[LaneRunner], batch: int) -> list[LaneRunner]:
        """Load as many engines as fit into memory; return the others."""
        joined = []
        rest = [_idle(runner) for runner in waiting]
        for runner in rest:
            runner.start()
        while rest and self._left() > 0:
            if lack := self._lacks(rest[0], batch):
                lanes = [starter.runner.lane.id for starter in self._on_track.values()]
                self._journal.append("group_closed", batch=batch, lanes=lanes, reason=lack)
                for runner in rest:
                    runner.close()
                break
            starter = self._enter(rest.pop(0), batch)
            if starter is not None:
                joined.append(starter.cell)
        self._race.start(joined)
        return rest

    def _enter(self, runner: LaneRunner, batch: int) -> Starter | None:
        """Load the engine of a cell, which keeps its earlier rounds; None when it fails."""
        starter = Starter(runner, batch)
        continued = self._race.rounds(starter.cell) > 0
        step = partial(self._load, starter.runner, batch, continued=continued)
        if not self._attempt(starter.runner, batch, step):
            self._race.withdraw(starter.cell)
            return None
        self._on_track[starter.cell] = starter
        self._race.barred.discard(starter.cell)
        loaded = _loaded(starter.runner)
        fastest = min(float(loaded.warm_up["fastest_s"]), loaded.first_call_s)
        self._race.warmed_up(starter.cell, Timed(fastest, fastest, float(batch * loaded.requests)))
        return starter

    def _excluded(self, runner: LaneRunner, batch: int) -> bool:
        """Leave out a cell that need not be measured; return True when it is left out."""
        reason = self._limits.too_large(runner.engines[batch])
        if not reason and (exclusion := self._race.exclusion(runner.lane.cell(batch))) is not None:
            reason = self._words.excluded(exclusion)
        if not reason:
            return False
        self._cells.leave_out(runner.lane, batch, reason, final=True)
        return True

    def _take_rounds(self, *, final: bool) -> None:
        """Measure rounds until the heat or, in the final, the race is decided, or time is up."""
        left = self._left()
        while self._goes_on(final=final) and not self._late(left):
            left = self._left()
            self._take_round()
            self._dismiss()

    def _goes_on(self, *, final: bool) -> bool:
        """Return True when another round may change the result."""
        runners = [starter.runner for starter in self._on_track.values()]
        if any(not _loaded(runner).durations for runner in runners):
            return True
        if not runners or self._race.decided() or (not final and self._race.heat_over()):
            return False
        fresh = [starter.runner for cell, starter in self._on_track.items() if self._race.is_fresh(cell)]
        in_time = [runner for runner in (runners if final else fresh) if not self._has_no_time(runner)]
        if any(runner.wants_more(accompanying=True) for runner in in_time):
            return True
        return final and bool(in_time) and self._has_spare(map(_loaded, runners))

    def _has_spare(self, racing_on: Iterable[Loaded]) -> bool:
        """Return True when departed cells left more repetitions and seconds than the others have used beyond their own."""
        if self._study.repetitions != "auto":
            return False
        own = [(loaded.remaining(self._study), loaded.remaining_s(self._study)) for loaded in racing_on]
        every = [*self._spared, *own]
        return sum(repetitions for repetitions, _ in every) > 0 and sum(seconds for _, seconds in every) > 0

    def _take_round(self) -> None:
        """Time one slice of every loaded cell."""
        number, self._taken = self._taken, self._taken + 1
        for starter in [entrant for entrant in self._on_track.values() if entrant.runner.renew()]:
            self._step(starter, starter.runner.renewed)
        turn = list(self._on_track.values())
        self._order.shuffle(turn)
        batches = ", ".join(map(str, sorted({starter.batch for starter in turn})))
        self._journal.tell("round", batch=batches, round=number, lanes=[starter.runner.lane.id for starter in turn])
        for position, starter in enumerate(turn):
            if not self._has_no_time(starter.runner):
                self._step(starter, partial(self._slice, starter, number, position))
            elif not _loaded(starter.runner).durations:
                self._give_up(starter)

    def _give_up(self, starter: Starter) -> None:
        """Leave out a cell whose single inference does not fit into the remaining time."""
        takes = f"one inference takes about {duration(_loaded(starter.runner).call_s)}"
        reason = f"{takes}; {duration(max(0.0, self._left()))} were left"
        self._race.withdraw(starter.cell)
        self._free(starter)
        self._cells.leave_out(starter.runner.lane, starter.batch, reason)

    def _slice(self, starter: Starter, number: int, position: int) -> None:
        runner, cell = starter.runner, starter.cell
        taken = runner.slice(number, position, companion=False)
        loaded = _loaded(runner)
        timed = slice_timed(loaded.durations[-1], starter.batch, loaded.requests)
        self._race.measured((runner.session, number), cell, timed)
        self._limits.add_slice(cell, {"session": runner.session, "round": number, **taken})

    def _step(self, starter: Starter, step: Callable[[], object]) -> None:
        """Run a step of a cell; a failure removes it from the race."""
        failed = not self._attempt(starter.runner, starter.batch, step)
        if failed and self._on_track.pop(starter.cell, None) is not None:
            self._bar(starter.cell)

    def _run_out(self, runner: LaneRunner, batch: int, loaded: Loaded | None, reason: str) -> None:
        cell = runner.lane.cell(batch)
        if cell in self._on_track and loaded is not None and loaded.durations:
            # It stays in the race until the end, which is near.
            self._parked[cell] = self._on_track.pop(cell), loaded
        elif not self._race.rounds(cell):
            super()._run_out(runner, batch, loaded, reason)

    def _bar(self, cell: str) -> None:
        """Withdraw a cell and exclude it as the winner."""
        self._race.withdraw(cell)
        self._race.barred.add(cell)

    def _dismiss(self) -> None:
        """Remove the cells that cannot win any more."""
        for starter in list(self._on_track.values()):
            loaded = _loaded(starter.runner)
            if loaded.problem:
                self._bar(starter.cell)
                self._settle_cell(starter, loaded, "")
                continue
            engine = starter.runner.engines[starter.batch]
            limit = self._limits.judge(starter.cell, engine, loaded.requests)
            if limit is not None:
                self._bar(starter.cell)
                self._say_left(starter, limit=str(limit))
                self._settle_cell(starter, loaded, self._words.too_much(starter.cell, str(limit)))
        for departure in self._race.departures():
            self._part_with(departure)

    def _part_with(self, departure: Departure) -> None:
        starter, loaded = self._take_off(departure.cell)
        self._say_left(
            starter, rival=departure.rival, shared=departure.rounds, ratio=departure.ratio, bound=departure.bound
        )
        self._settle_cell(starter, loaded, self._words.left(departure))

    def _say_left(self, starter: Starter, **evidence: Any) -> None:
        self._journal.append(
            "lane_left",
            cell=starter.cell,
            lane=starter.runner.lane.id,
            batch=starter.batch,
            round=self._taken - 1,
            rounds=self._race.rounds(starter.cell),
            **{**_NO_EVIDENCE, **evidence},
        )

    def _take_off(self, cell: str) -> tuple[Starter, Loaded]:
        """Return a cell of the race that is loaded or parked."""
        if cell in self._parked:
            return self._parked.pop(cell)
        starter = self._on_track[cell]
        return starter, _loaded(starter.runner)

    def _settle_cell(self, starter: Starter, loaded: Loaded, reason: str, *, serve: bool = False) -> None:
        """Write the verdict of a cell and free its engine.

        ``reason`` is a remark for a cell that is ok. ``serve``: offer requests to it, if the study has any.
        """
        runner, batch = starter.runner, starter.batch
        result = self._judge(loaded) if loaded.durations else _without_rounds(loaded)
        if result.verdict is Verdict.OK:
            result = replace(result, reason="; ".join(filter(None, (reason, loaded.remarks))))
        if result.verdict is Verdict.PARITY_FAILED:
            runner.evict(batch, result.reason)
        self._cells.close(runner.lane, batch, result, loaded.warm_up)
        self._spared.append((loaded.remaining(self._study), loaded.remaining_s(self._study)))
        if self._study.arrivals is not None and result.verdict is Verdict.OK:
            if serve and starter.cell in self._on_track and self._left() > 0:
                self._serve(runner, batch)
            else:
                lane = runner.lane
                why = "the cell was out of the race"
                self._journal.append("arrivals_ended", cell=starter.cell, lane=lane.id, batch=batch, reason=why)
        self._free(starter)

    def _free(self, starter: Starter) -> None:
        """Free the engine of a cell; the lane's own process stays for the next batch size."""
        if self._on_track.pop(starter.cell, None) is None:
            return
        if starter.runner in self._own:
            self._release(starter.runner)
        else:
            starter.runner.close()

    def _park(self) -> None:
        """Unload all cells but the leader, to make room for the others."""
        leader = self._race.leader()
        for cell, starter in list(self._on_track.items()):
            if cell != leader:
                self._parked[cell] = starter, _loaded(starter.runner)
                self._free(starter)
                # A process keeps the memory that it once had, and the others need it.
                starter.runner.close()

    def _bring_back(self) -> None:
        """Measure parked cells again beside the current leader."""
        waiting = [cell for cell in self._race.racing if cell in self._parked]
        while waiting and self._left() > 0 and not self._race.decided():
            joined: list[str] = []
            while waiting and self._left() > 0:
                starter, _ = self._parked[waiting[0]]
                if self._lacks(starter.runner, starter.batch):
                    if joined:
                        break
                    self._park()
                starter, known = self._parked.pop(waiting.pop(0))
                entered = self._enter(_idle(starter.runner), starter.batch)
                if entered is None and self._cells.is_open(starter.runner.lane, starter.batch):
                    # No time was left to load it again: its earlier rounds count.
                    self._parked[starter.cell] = starter, known
                if entered is not None or starter.cell in self._parked:
                    joined.append(starter.cell)
            self._race.start(joined)
            self._take_rounds(final=True)
            waiting = [cell for cell in waiting if cell in self._parked]

    def _lacks(self, runner: LaneRunner, batch: int) -> str:
        # A race needs two cells, even when memory looks too small.
        return "" if len(self._on_track) < 2 else lack_of_memory(runner, batch)

    def _conclude(self) -> None:
        """Write the end of the race to the journal, and the verdicts of its remaining cells."""
        race = self._race
        leader, ending = race.leader(), race.decided()
        others = [cell for cell in race.racing if cell != leader and race.rounds(cell)]
        contenders = [*(cell for cell in (leader,) if cell is not None), *others]
        if not contenders:
            return
        self._journal.append(
            "race_ended",
            workload=self._lanes[contenders[0]][0].workload,
            objective=self._study.objective,
            ending=ending or self._stopped_by(),
            leader=leader,
            alpha=racing.ALPHA,
            indifferent=AS_GOOD,
            contenders=[self._words.placed(cell) for cell in contenders],
        )
        for cell in contenders:
            starter, loaded = self._take_off(cell)
            words = self._words.ended(cell, leader, ending, self._limits.broken(cell))
            self._settle_cell(starter, loaded, words, serve=True)

    def _stopped_by(self) -> str:
        loaded = [
            *(_loaded(starter.runner) for starter in self._on_track.values()),
            *(part for _, part in self._parked.values()),
        ]
        if not any(part.wants_more(self._study, accompanying=True) for part in loaded) and not self._has_spare(loaded):
            return "repetitions"
        return "time" if self._time.limited else "memory"


def _idle(runner: LaneRunner) -> LaneRunner:
    """Return the runner, or a twin when it has an engine loaded."""
    return runner if runner.loaded is None else runner.twin()


def _loaded(runner: LaneRunner) -> Loaded:
    if runner.loaded is None:
        raise RuntimeError(f"lane {runner.lane.id} is in a race without an engine")
    return runner.loaded


def _without_rounds(loaded: Loaded) -> CellResult:
    """The verdict of a cell whose rounds all come from earlier sessions."""
    if loaded.unverified:
        return CellResult(Verdict.UNVERIFIED, loaded.unverified)
    return CellResult(Verdict.PARITY_FAILED, loaded.problem) if loaded.problem else CellResult(Verdict.OK)
