"""All batch sizes of a workload as one race: what certainly cannot be the best leaves, and time goes to those that can.

A race has a heat for each batch size. In each the lanes at that batch size are measured in rounds beside those that are left
of the heats before, a process each, so that whatever is compared is compared by rounds that it shares. Who leaves when is
decided by `mlflow_ngraph.measure.racing`, by the rounds alone: those of earlier sessions count again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlflow_ngraph.execute.earlier_rounds import Before, slice_timed
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_memory import Loaded
from mlflow_ngraph.execute.race_limits import Standing
from mlflow_ngraph.execute.race_words import RaceWords
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.rounds import Assignment, Judgement, Rounds, lack_of_memory
from mlflow_ngraph.measure import racing
from mlflow_ngraph.measure.racing import Departure, Entrant, Race, Timed
from mlflow_ngraph.objectives import AS_GOOD, Raced
from mlflow_ngraph.text import duration
from mlflow_ngraph.verdicts import Verdict

_NO_EVIDENCE: Mapping[str, Any] = dict.fromkeys(("rival", "shared", "ratio", "bound", "limit"))
"""What a cell may have left by: a rival with the rounds that both share, their ratio and its bound; or a limit."""


@dataclass(frozen=True)
class Starter:
    """A cell in the race, and what measures it."""

    runner: LaneRunner
    batch: int

    @property
    def cell(self) -> str:
        return self.runner.lane.cell(self.batch)


class RacedRounds(Rounds):
    """Measures the lanes of a workload at all batch sizes, until it is clear which cell is the best one.

    Parameters
    ----------
    assignment : Assignment
        Those that take part are the missing ones.
    objective : Raced
        What the best one is best in.
    lanes : Sequence[Lane]
        All of the workload.
    before : Before
        What earlier sessions measured of them.
    """

    def __init__(self, assignment: Assignment, *, objective: Raced, lanes: Sequence[Lane], before: Before) -> None:
        super().__init__(assignment)
        self._lanes = {lane.cell(batch): (lane, batch) for lane in lanes for batch in lane.batch_sizes}
        self._race = Race({cell: Entrant(lane.id, batch) for cell, (lane, batch) in self._lanes.items()}, objective)
        for round_, seen in sorted(before.rounds.items()):
            for cell, timed in seen.items():
                self._race.measured(round_, cell, timed)
        self._race.barred.update(before.barred)
        self._words = RaceWords(self._race, self._lanes)
        self._standing = Standing(self._study, self._race, self._lanes)
        self._own: Sequence[LaneRunner] = ()
        """The runners of lanes, whose processes live on when a cell leaves; those of their twins do not."""
        self._on_track: dict[str, Starter] = {}
        """Cells that are loaded."""
        self._parked: dict[str, tuple[Starter, Loaded]] = {}
        """Cells in the race that are not loaded any more, for lack of memory or of time."""
        self._spared: list[tuple[int, float]] = []
        """Of each cell that has left, the repetitions and the seconds that it might still have taken."""

    def race(self, runners: Sequence[LaneRunner]) -> None:
        """Measure, and settle the cells."""
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
        """Let the lanes at a batch size join those that are left, and take rounds of all of them."""
        waiting = [
            runner
            for runner in runners
            if batch in runner.engines
            and self._open(runner, batch)
            and self._is_affordable(runner, batch)
            and not self._excluded(runner, batch)
        ]
        while waiting and self._left() > 0:
            waiting = self._join(waiting, batch)
            self._take_rounds(final=False)
            if waiting and self._left() > 0:
                self._park()

    def _join(self, waiting: Sequence[LaneRunner], batch: int) -> list[LaneRunner]:
        """Load as many of the engines as fit into memory beside those that are loaded; returns the others."""
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
        """Load the engine of a cell, which goes on where it was if it has been measured before; None where it fails."""
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
        """Whether a cell need not be measured at all."""
        reason = self._standing.too_large(runner.engines[batch])
        if not reason and (exclusion := self._race.exclusion(runner.lane.cell(batch))) is not None:
            reason = self._words.excluded(exclusion)
        if not reason:
            return False
        self._omit(runner, batch, reason, final=True)
        return True

    def _take_rounds(self, *, final: bool) -> None:
        """Take rounds until the heat or, if it is the final, the race is over, or no further one fits into the time."""
        left = self._left()
        while self._goes_on(final=final) and not self._late(left):
            left = self._left()
            self._take_round()
            self._dismiss()

    def _goes_on(self, *, final: bool) -> bool:
        """Whether another round may change anything."""
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
        """Whether those that have left would have taken more repetitions and seconds than others have taken beyond their own."""
        if self._study.repetitions != "auto":
            return False
        own = [(loaded.left(self._study), loaded.left_s(self._study)) for loaded in racing_on]
        every = [*self._spared, *own]
        return sum(repetitions for repetitions, _ in every) > 0 and sum(seconds for _, seconds in every) > 0

    def _take_round(self) -> None:
        """Time a slice of every cell on the track."""
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
        """Leave out a cell that cannot be measured once in the time that is left."""
        takes = f"one inference takes about {duration(_loaded(starter.runner).call_s)}"
        reason = f"{takes}; {duration(max(0.0, self._left()))} were left"
        self._race.withdraw(starter.cell)
        self._free(starter)
        self._omit(starter.runner, starter.batch, reason, final=False)

    def _slice(self, starter: Starter, number: int, position: int) -> None:
        runner, cell = starter.runner, starter.cell
        taken = runner.slice(number, position, companion=False)
        loaded = _loaded(runner)
        timed = slice_timed(loaded.durations[-1], starter.batch, loaded.requests)
        self._race.measured((runner.session, number), cell, timed)
        self._standing.took(cell, {"session": runner.session, "round": number, **taken})

    def _step(self, starter: Starter, step: Callable[[], object]) -> bool:
        """Do a step of a cell; one that fails is out of the race."""
        if self._attempt(starter.runner, starter.batch, step):
            return True
        if self._on_track.pop(starter.cell, None) is not None:
            self._bar(starter.cell)
        return False

    def _run_out(self, runner: LaneRunner, batch: int, loaded: Loaded | None, reason: str) -> None:
        cell = runner.lane.cell(batch)
        if cell in self._on_track and loaded is not None and loaded.durations:
            # It is in the race to its end, which is near.
            self._parked[cell] = self._on_track.pop(cell), loaded
        elif not self._race.rounds(cell):
            super()._run_out(runner, batch, loaded, reason)

    def _bar(self, cell: str) -> None:
        """A cell is out, and nothing leaves because of it."""
        self._race.withdraw(cell)
        self._race.barred.add(cell)

    def _dismiss(self) -> None:
        """Let those leave that cannot be the answer any more."""
        for starter in list(self._on_track.values()):
            loaded = _loaded(starter.runner)
            if loaded.problem:
                self._bar(starter.cell)
                self._settle_cell(starter, loaded, "")
                continue
            engine = starter.runner.engines[starter.batch]
            limit = self._standing.judge(starter.cell, engine, loaded.requests)
            if limit is not None:
                self._bar(starter.cell)
                self._say_left(starter, limit=str(limit))
                self._settle_cell(starter, loaded, self._words.too_much(starter.cell, str(limit)))
        for departure in self._race.departures():
            self._part_with(departure)

    def _part_with(self, departure: Departure) -> None:
        """A cell cannot be the best any more: that goes into the journal, with what says so."""
        starter, loaded = self._take_off(departure.cell)
        self._say_left(
            starter, rival=departure.rival, shared=departure.rounds, ratio=departure.ratio, bound=departure.bound
        )
        self._settle_cell(starter, loaded, self._words.left(departure))

    def _say_left(self, starter: Starter, **evidence: Any) -> None:
        """Put into the journal that a cell has left, and why."""
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
        """A cell that is on the track, or was."""
        if cell in self._parked:
            return self._parked.pop(cell)
        starter = self._on_track[cell]
        return starter, _loaded(starter.runner)

    def _settle_cell(self, starter: Starter, loaded: Loaded, reason: str, *, serve: bool = False) -> None:
        """Give a cell its verdict, and free its engine.

        Parameters
        ----------
        reason : str
            What a reader should know of a cell that is ok.
        serve : bool
            Requests arrive at it, if they do at any.
        """
        runner, batch = starter.runner, starter.batch
        judgement = self._judge(loaded) if loaded.durations else _without_rounds(loaded)
        if judgement.verdict is Verdict.OK:
            judgement = replace(judgement, reason="; ".join(filter(None, (reason, loaded.note))))
        if judgement.verdict is Verdict.PARITY_FAILED:
            runner.disown(batch, judgement.reason)
        self._close(runner, batch, judgement, loaded.warm_up)
        self._spared.append((loaded.left(self._study), loaded.left_s(self._study)))
        if self._study.arrivals is not None and judgement.verdict is Verdict.OK:
            if serve and starter.cell in self._on_track and self._left() > 0:
                self._serve(runner, batch)
            else:
                lane = runner.lane
                why = "the cell was out of the race"
                self._journal.append("arrivals_ended", cell=starter.cell, lane=lane.id, batch=batch, reason=why)
        self._free(starter)

    def _free(self, starter: Starter) -> None:
        """Free the engine of a cell; the lane's own process lives on, for the next batch size."""
        if self._on_track.pop(starter.cell, None) is None:
            return
        if starter.runner in self._own:
            self._release(starter.runner)
        else:
            starter.runner.close()

    def _park(self) -> None:
        """Make room: all but the leader have to wait until the others have been measured beside it."""
        leader = self._race.leader()
        for cell, starter in list(self._on_track.items()):
            if cell != leader:
                self._parked[cell] = starter, _loaded(starter.runner)
                self._free(starter)
                # What a process once had it keeps, and others need it.
                starter.runner.close()

    def _bring_back(self) -> None:
        """Measure those that had to make room once more, beside whoever leads now."""
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
                if entered is None and self._open(starter.runner, starter.batch):
                    # There was no time for it: it is told with what it has.
                    self._parked[starter.cell] = starter, known
                if entered is not None or starter.cell in self._parked:
                    joined.append(starter.cell)
            self._race.start(joined)
            self._take_rounds(final=True)
            waiting = [cell for cell in waiting if cell in self._parked]

    def _lacks(self, runner: LaneRunner, batch: int) -> str:
        """Why an engine has to wait for memory; empty where it need not."""
        # A race needs two, whether they seem to fit or not.
        return "" if len(self._on_track) < 2 else lack_of_memory(runner, batch)

    def _conclude(self) -> None:
        """Say how the race has ended, and settle those that were in it to the end."""
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
            words = self._words.ended(cell, leader, ending, self._standing.broken(cell))
            self._settle_cell(starter, loaded, words, serve=True)

    def _stopped_by(self) -> str:
        """What an undecided race ended by."""
        loaded = [
            *(_loaded(starter.runner) for starter in self._on_track.values()),
            *(part for _, part in self._parked.values()),
        ]
        if not any(part.wants_more(self._study, accompanying=True) for part in loaded) and not self._has_spare(loaded):
            return "repetitions"
        return "time" if self._time.limited else "memory"


def _idle(runner: LaneRunner) -> LaneRunner:
    """The runner, or a twin of it where it has an engine of another batch size loaded."""
    return runner if runner.loaded is None else runner.twin()


def _loaded(runner: LaneRunner) -> Loaded:
    if runner.loaded is None:
        raise RuntimeError(f"lane {runner.lane.id} is in a race without an engine")
    return runner.loaded


def _without_rounds(loaded: Loaded) -> Judgement:
    """What became of a cell whose rounds are all of earlier sessions."""
    if loaded.unverified:
        return Judgement(Verdict.UNVERIFIED, loaded.unverified)
    return Judgement(Verdict.PARITY_FAILED, loaded.problem) if loaded.problem else Judgement(Verdict.OK)
