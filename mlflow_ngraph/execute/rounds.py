"""Rounds: measures one batch size of a workload in interleaved rounds of all lanes, and judges the cells.

Lanes that do not fit into memory at once are measured in groups. Each group contains the baseline, so that every lane
keeps its paired rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import psutil

from mlflow_ngraph.devices import memory
from mlflow_ngraph.execute.lane import SETTLE_BELOW_S, LaneRunner
from mlflow_ngraph.execute.lane_progress import Loaded
from mlflow_ngraph.execute.open_cells import CellResult, OpenCells
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.measure import stability
from mlflow_ngraph.processes.child import ChildFailure, OutOfTime
from mlflow_ngraph.processes.time_budget import TIME_UP
from mlflow_ngraph.study_settings import Adaptive
from mlflow_ngraph.verdicts import Verdict

RESERVE_BYTES = 512 * 2**20
"""Memory left to the rest of the machine."""


ROUNDS_BEYOND_SHARE = 3
"""Rounds of a workload that may exceed its share of the study's time."""
_CONDEMNING = (Verdict.FAILED, Verdict.CRASHED, Verdict.UNSUPPORTED)
"""Verdicts caused by the engine and not by the machine."""


class Rounds:
    """Measures the lanes of a workload, one batch size at a time."""

    def __init__(self, session: Session, cells: OpenCells, order: random.Random) -> None:
        self._study = session.plan.study
        self._journal = session.journal
        self._time = session.time
        self._cells = cells
        self._order = order
        self._taken = 0
        """Rounds so far."""

    def measure(self, runners: Iterable[LaneRunner], batch: int) -> None:
        """Load, check and measure the engines of a batch size, and write their verdicts."""
        waiting = [
            runner
            for runner in runners
            if batch in self._cells.wanted(runner.lane)
            and batch in runner.engines
            and self._is_affordable(runner, batch)
        ]
        round_ = 0
        while waiting and self._left() > 0:
            group, waiting = self._gather(waiting, batch)
            round_ = self._take(group, batch, round_)
            fine = [runner for runner in group if self._finish(runner, batch) is Verdict.OK]
            if self._study.arrivals is not None:
                for runner in fine:
                    self._serve(runner, batch)
            for runner in group:
                self._release(runner)
                if waiting:
                    # A process keeps the memory that it once had, and the next group needs it.
                    runner.close()

    def _is_affordable(self, runner: LaneRunner, batch: int) -> bool:
        """Return True when the cell fits into the time; write the verdict of one that does not."""
        reason = runner.too_slow(batch)
        if reason and self._cells.is_open(runner.lane, batch):
            self._cells.close(runner.lane, batch, CellResult(Verdict.TIMEOUT, reason))
        return not reason

    def _gather(self, waiting: Sequence[LaneRunner], batch: int) -> tuple[list[LaneRunner], list[LaneRunner]]:
        """Load as many engines as fit into memory; return them and the waiting rest, preceded by its baselines."""
        group: list[LaneRunner] = []
        rest: list[LaneRunner] = []
        for runner in waiting:
            if rest:
                rest.append(runner)
                continue
            # A group needs one lane beside its baseline, even when memory looks too small.
            useful = any(other.lane.compiler_label != self._study.baseline_label for other in group)
            if useful and (lack := lack_of_memory(runner, batch)):
                rest.append(runner)
                lanes = [member.lane.id for member in group]
                self._journal.append("group_closed", batch=batch, lanes=lanes, reason=lack)
            elif self._attempt(runner, batch, partial(self._load, runner, batch)):
                group.append(runner)
        baselines = {
            id(base): base for runner in rest if (base := self._baseline(runner, waiting)) not in (None, *rest)
        }
        return group, [*(base for base in baselines.values() if base is not None), *rest]

    def _load(self, runner: LaneRunner, batch: int, *, continued: bool = False) -> None:
        self._journal.tell("stage", lane=runner.lane.id, stage="load", batch=batch)
        runner.load(batch, continued=continued)
        runner.warm_up()

    def _take(self, group: list[LaneRunner], batch: int, round_: int) -> int:
        """Measure rounds until every lane has enough or time is up; return the number of the next round.

        A failed lane leaves the group. The baseline continues as long as another lane needs it for comparison.
        """
        active, left = list(group), self._left()
        while active and not self._late(left):
            left, self._taken = self._left(), self._taken + 1
            failed = self._renew(active, batch)
            turn = [runner for runner in active if runner not in failed]
            self._order.shuffle(turn)
            self._journal.tell("round", batch=batch, round=round_, lanes=[runner.lane.id for runner in turn])
            for position, runner in enumerate(turn):
                if self._has_no_time(runner):
                    continue
                step = partial(runner.slice, round_, position, companion=not self._cells.is_open(runner.lane, batch))
                if not self._attempt(runner, batch, step):
                    failed.append(runner)
            active = [runner for runner in active if runner not in failed]
            group[:] = [runner for runner in group if runner not in failed]
            unsettled = [runner for runner in active if runner.wants_more() and not self._has_no_time(runner)]
            needed = {id(self._baseline(runner, active)) for runner in unsettled}
            active = [
                runner
                for runner in active
                if runner in unsettled or (id(runner) in needed and runner.wants_more(accompanying=True))
            ]
            round_ += 1
        return round_

    def _left(self) -> float:
        """Seconds in which another step may begin.

        The first rounds may use all remaining time: a workload with loaded engines is worth more than an unprepared
        one.
        """
        return self._time.left() if self._taken >= ROUNDS_BEYOND_SHARE else self._time.until_end()

    def _late(self, before: float) -> bool:
        """Return True when a round as long as the last one, ``before`` which some seconds were left, ends too late."""
        left = self._left()
        return self._time.limited and left <= before - left

    def _has_no_time(self, runner: LaneRunner) -> bool:
        return runner.loaded is not None and runner.loaded.call_s > self._left()

    def _renew(self, active: Sequence[LaneRunner], batch: int) -> list[LaneRunner]:
        """Load the engines in fresh processes, concurrently; return the lanes that failed."""
        fresh = [runner for runner in active if runner.renew()]
        return [runner for runner in fresh if not self._attempt(runner, batch, runner.renewed)]

    def _finish(self, runner: LaneRunner, batch: int) -> Verdict | None:
        """Write the verdict of a measured cell; None when it already has one."""
        loaded = runner.loaded
        if loaded is None:
            raise RuntimeError(f"lane {runner.lane.id} finished a cell without an engine")
        if not self._cells.is_open(runner.lane, batch):
            return None
        if not loaded.durations:
            self._run_out(runner, batch, loaded, TIME_UP)
            return None
        result = self._judge(loaded)
        if result.verdict is Verdict.PARITY_FAILED:
            runner.evict(batch, result.reason)
        self._cells.close(runner.lane, batch, result, loaded.warm_up)
        return result.verdict

    def _serve(self, runner: LaneRunner, batch: int) -> None:
        """Offer requests to a cell with a verdict; a failure costs only these figures."""
        try:
            note = runner.serve()
        except ChildFailure as failure:
            runner.close()
            note = f"{failure.verdict}: {failure.reason}"
        lane = runner.lane
        self._journal.append("arrivals_ended", cell=lane.cell(batch), lane=lane.id, batch=batch, reason=note)

    def _release(self, runner: LaneRunner) -> None:
        if runner.loaded is None:
            return
        try:
            runner.unload()
        except ChildFailure:
            # The figures are complete: a runtime that crashes on unloading costs only its process.
            runner.close()

    def _judge(self, loaded: Loaded) -> CellResult:
        study = self._study
        noise = stability.problem(loaded.slices, psutil.cpu_count() or 1, **study.stability.model_dump()) or ""
        if loaded.unverified:
            return CellResult(Verdict.UNVERIFIED, loaded.unverified, noise)
        if loaded.problem:
            return CellResult(Verdict.PARITY_FAILED, loaded.problem, noise)
        reached = ""
        if study.repetitions == "auto":
            reached = _shortfall(loaded, study.adaptive)
        elif loaded.repetitions < study.repetitions:
            late = self._time.limited and loaded.timed_s < study.limits.cell_seconds
            limit = "time of the study" if late else f"{study.limits.cell_seconds:g} s that a cell may take"
            reached = f"{loaded.repetitions} of {study.repetitions} repetitions within the {limit}"
        return CellResult(Verdict.OK, "; ".join(filter(None, (reached, loaded.remarks))), noise)

    def _attempt(self, runner: LaneRunner, batch: int, step: Callable[[], object]) -> bool:
        """Run a step of a cell; return False after a failure, which becomes the cell's verdict."""
        try:
            step()
        except ChildFailure as failure:
            loaded = runner.loaded
            runner.close()
            if failure.verdict in _CONDEMNING:
                runner.evict(batch, failure.reason)
            if self._cells.is_open(runner.lane, batch) and isinstance(failure, OutOfTime):
                self._run_out(runner, batch, loaded, failure.reason)
            else:
                self._cells.fail(runner.lane, [batch], failure)
            return False
        return True

    def _run_out(self, runner: LaneRunner, batch: int, loaded: Loaded | None, reason: str) -> None:
        """Write the verdict of a cell that ran out of time from its slices so far."""
        if loaded is not None and loaded.durations:
            self._cells.close(runner.lane, batch, self._judge(loaded), loaded.warm_up)
        else:
            self._cells.leave_out(runner.lane, batch, reason)

    def _baseline(self, runner: LaneRunner, among: Iterable[LaneRunner]) -> LaneRunner | None:
        wanted_one = (self._study.baseline_label, runner.lane.precision)
        return next((peer for peer in among if (peer.lane.compiler_label, peer.lane.precision) == wanted_one), None)


def lack_of_memory(runner: LaneRunner, batch: int) -> str:
    """Explain why an engine does not fit into the available memory; empty when it does."""
    expected, available = runner.expected_bytes(batch), memory.available_bytes()
    if expected <= available - RESERVE_BYTES:
        return ""
    needed = f"{runner.lane.compiler_label} may need {expected / 1e9:.1f} GB"
    return f"{available / 1e9:.1f} GB of memory are left, and {needed}"


def _shortfall(loaded: Loaded, adaptive: Adaptive) -> str:
    """Explain why a cell has fewer rounds than requested.

    Wide intervals are reported once per study: `mlflow_ngraph.tables.summary.wide_intervals`.
    """
    if loaded.call_s < SETTLE_BELOW_S or len(loaded.durations) >= adaptive.min_rounds:
        return ""
    times = {1: "once", 2: "twice"}.get(loaded.repetitions, f"{loaded.repetitions} times")
    return f"timed {times}, because an inference takes {loaded.call_s:.3g} s"
