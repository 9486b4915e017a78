"""What of a study fits into the time that it may take: what is tried first, and what is left out.

Every workload gets its part of the time. Within it cells are taken in an order in which an early end costs least: the
batch size that tells most before the others, the lanes that are probably fast before those that are not. Of a cell counts
what it takes at least: its engine, verifying and loading it, and a few rounds. What is left goes to further rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.execute import expected_time
from mlflow_ngraph.execute.experience import Duration, total
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.time_budget import TimeBudget
from mlflow_ngraph.measure.racing import Entrant, Race
from mlflow_ngraph.study import BASELINE
from mlflow_ngraph.text import duration

FEWEST_ROUNDS = 3
"""Of a cell that is begun at all."""
FEWEST_LANES = 2
"""With fewer a workload has nothing to compare, and its time is better spent on another one."""
MEASURED_SHARE = 0.3
"""Of the time of a workload: engines that are not compiled before it have come too late."""
RECORDING_LANE_SECONDS, RECORDING_SECONDS = 0.7, 3.0
"""To write a lane, and the study, to a tracking server when everything is measured."""

Engines = Mapping[str, Iterable[tuple[int, ...]]]
"""Engines that have to be compiled, by lane: the batch sizes of each."""


@dataclass(frozen=True)
class LeftOut:
    """A cell for which there is no time."""

    lane: Lane
    batch: int
    reason: str


@dataclass(frozen=True)
class Part:
    """What one workload gets."""

    workload: WorkloadPlan
    seconds: float
    chosen: tuple[tuple[Lane, int], ...]
    """Cells, in the order in which they are tried."""
    left_out: tuple[LeftOut, ...]


class Allotment:
    """What of one workload fits into the time that is left for it.

    Parameters
    ----------
    time : TimeBudget
        Counts down the share of the workload.
    waiting : Sequence[WorkloadPlan]
        Those that share the time: this one first.
    """

    def __init__(
        self, plan: StudyPlan, workload: WorkloadPlan, time: TimeBudget, waiting: Sequence[WorkloadPlan]
    ) -> None:
        self._plan = plan
        self._workload = workload
        self._time = time
        self._waiting = waiting
        self._began = time.left_outside()
        self._reserve = MEASURED_SHARE * time.left() if time.limited else 0.0
        """Seconds that compiling leaves for measuring."""

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._time.over

    def preparing(self) -> AbstractContextManager[None]:
        """Within the block children are ended when the time of all workloads is nearly up.

        A model that takes longer than its share is worth more than another one that nobody has begun.
        """
        return self._time.deadline((1 - MEASURED_SHARE) * self._time.left_outside())

    def prepared(self) -> None:
        """The model is built: what is left is shared anew, by what that took."""
        if not self._time.limited:
            return
        ref, left = str(self._workload.ref), self._time.left_outside()
        self._plan.experience.prepared(ref, self._began - left)
        seconds = share(self._plan, self._waiting, left, begun=ref)[ref]
        self._time.share_anew(seconds)
        self._reserve = MEASURED_SHARE * seconds

    def building(self) -> AbstractContextManager[None]:
        """Within the block children are ended when only the time for measuring is left."""
        return self._time.deadline(self._time.left() - self._reserve)

    def choose(self, wanted: Mapping[str, set[int]], lacking: Engines) -> list[LeftOut]:
        """The cells that do not fit any more.

        Parameters
        ----------
        wanted : Mapping[str, set[int]]
            Batch sizes that are to be measured, by lane.
        lacking : Engines
            What has to be compiled for them.
        """
        if not self._time.limited:
            return []
        left = self._time.left()
        return _choose(self._plan, self._workload, wanted, lacking, left)[1]

    def refusal(self, lane: Lane, batch_sizes: Sequence[int]) -> str:
        """Why an engine is not compiled any more; empty where it is."""
        if not self._time.limited:
            return ""
        building, left = expected_time.building(self._plan, lane, batch_sizes), self._time.left() - self._reserve
        if building.low < left:
            return ""
        return f"compiling it takes about {duration(building.seconds)}; {duration(max(0.0, left))} were left"

    def too_late(self) -> str:
        """Why the workload is not begun any more; empty where it is."""
        if not self._time.limited:
            return ""
        least, left = expected_time.preparing(self._plan, self._workload), self._time.left()
        if least.low < left:
            return ""
        return f"preparing it takes about {duration(least.seconds)}; {duration(max(0.0, left))} were left"


def share(
    plan: StudyPlan, workloads: Sequence[WorkloadPlan], seconds: float, *, begun: str = ""
) -> dict[str, float]:
    """The seconds of each workload, the first ones first; those for which nothing is left are missing.

    A workload gets what it needs at least, and of the rest a part in proportion to what it takes as a whole.

    Parameters
    ----------
    begun : str
        One of which the model is built.
    """
    least: dict[str, float] = {}
    more: dict[str, float] = {}
    rest = seconds
    for workload in workloads:
        ref = str(workload.ref)
        done = expected_time.preparing(plan, workload).seconds if ref == begun else 0.0
        needed = _least(plan, workload) - done
        if least and needed > rest:
            continue
        least[ref] = min(needed, max(0.0, rest))
        rest -= least[ref]
        more[ref] = max(0.0, expected_time.of_workload(plan, workload).seconds - done - least[ref])
    whole = sum(more.values())
    return {
        ref: needed + (max(0.0, rest) * (more[ref] / whole if whole else 1 / len(least)) if rest > 0 else 0.0)
        for ref, needed in least.items()
    }


def forecast(plan: StudyPlan, seconds: float) -> list[Part]:
    """What would be done in so many seconds, as far as it can be told before it begins."""
    shares = share(plan, plan.workloads, seconds)
    parts = []
    for workload in plan.workloads:
        own = shares.get(str(workload.ref), 0.0)
        everything = {lane.id: set(lane.batch_sizes) for lane in workload.lanes}
        if own <= 0:
            needed = f"preparing it and measuring {FEWEST_LANES} cells take about {duration(_least(plan, workload))}"
            reason = f"{needed}; the workloads before it take the time"
            none = tuple(LeftOut(lane, batch, reason) for lane in workload.lanes for batch in lane.batch_sizes)
            parts.append(Part(workload, 0.0, (), none))
            continue
        lacking = {lane.id: create(lane.compiler, lane.flags).engines(lane.batch_sizes) for lane in workload.lanes}
        left = own - expected_time.preparing(plan, workload).seconds
        chosen, left_out = _choose(plan, workload, everything, lacking, left)
        parts.append(Part(workload, own, tuple(chosen), tuple(left_out)))
    return parts


def told(parts: Sequence[Part]) -> Iterator[str]:
    """A forecast in words, a line a workload and one for each reason to leave something out."""
    for part in parts:
        if part.chosen:
            lanes = ", ".join(dict.fromkeys(lane.compiler_label for lane, _ in part.chosen))
            batches = ", ".join(str(batch) for batch in dict.fromkeys(batch for _, batch in part.chosen))
            yield f"{part.workload.label}: {duration(part.seconds)} for {lanes}, at batch {batches}, in this order"
        reasons: dict[str, dict[str, list[int]]] = {}
        for left_out in part.left_out:
            reasons.setdefault(left_out.reason, {}).setdefault(left_out.lane.compiler_label, []).append(left_out.batch)
        for reason, lanes_of in reasons.items():
            named = ", ".join(f"{label} at batch {', '.join(map(str, sizes))}" for label, sizes in lanes_of.items())
            what = "all of it" if not part.chosen else named
            yield f"{part.workload.label}: left out unless time remains: {what}: {reason}"


def recording_s(plan: StudyPlan) -> float:
    """What is left for writing the results to a tracking server."""
    return RECORDING_SECONDS + RECORDING_LANE_SECONDS * len(plan.workloads[-1].lanes)


def batch_order(plan: StudyPlan, workload: WorkloadPlan) -> list[int]:
    """Batch sizes in the order in which they are measured."""
    if plan.study.raced is None:
        return list(plan.study.batch_sizes)
    entrants = {lane.cell(batch): Entrant(lane.id, batch) for lane in workload.lanes for batch in lane.batch_sizes}
    return Race(entrants, plan.study.raced).batch_sizes


def _choose(
    plan: StudyPlan, workload: WorkloadPlan, wanted: Mapping[str, set[int]], lacking: Engines, seconds: float
) -> tuple[list[tuple[Lane, int]], list[LeftOut]]:
    """The cells that fit into so many seconds, in order, and the others."""
    unbuilt = {lane: [tuple(group) for group in groups] for lane, groups in lacking.items()}
    chosen: list[tuple[Lane, int]] = []
    left_out = []
    for lane, batch in _in_order(plan, workload, wanted):
        group = next((group for group in unbuilt.get(lane.id, []) if batch in group), None)
        building = Duration() if group is None else expected_time.building(plan, lane, group)
        measuring = _fewest_rounds(plan, workload, lane, batch)
        if building.seconds + measuring.seconds > seconds:
            takes = f"compiling and measuring it take about {duration(building.seconds + measuring.seconds)}"
            if group is None:
                takes = f"measuring it takes about {duration(measuring.seconds)}"
            left_out.append(LeftOut(lane, batch, f"{takes}; about {duration(max(0.0, seconds))} would be left"))
            continue
        seconds -= building.seconds + measuring.seconds
        chosen.append((lane, batch))
        if group is not None:
            unbuilt[lane.id].remove(group)
    return chosen, left_out


def _in_order(plan: StudyPlan, workload: WorkloadPlan, wanted: Mapping[str, set[int]]) -> Iterator[tuple[Lane, int]]:
    """Cells in the order in which they are tried."""

    def rank(lane: Lane) -> tuple[bool, float, float]:
        first = lane.batch_sizes[0]
        call = expected_time.call_s(plan, workload, lane, first)[0]
        return lane.compiler != BASELINE, call, expected_time.building(plan, lane, (first,)).seconds

    lanes = sorted(workload.lanes, key=rank)
    for batch in batch_order(plan, workload):
        yield from ((lane, batch) for lane in lanes if batch in wanted.get(lane.id, ()))


def _fewest_rounds(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> Duration:
    """What one cell takes at least, when its engine is there."""
    call, source = expected_time.call_s(plan, workload, lane, batch)
    study, known, cell = plan.study, plan.experience, lane.cell(batch)
    timed = max(call, min(FEWEST_ROUNDS * study.slice_repetitions * call, FEWEST_ROUNDS * study.limits.slice_seconds))
    return total(
        [
            known.verifying(cell, lane.compiler, expected_time.VERIFY_SECONDS),
            known.loading(cell, lane.compiler, expected_time.LOAD_SECONDS + call),
            Duration.of(timed, source),
        ]
    )


def _least(plan: StudyPlan, workload: WorkloadPlan) -> float:
    """Preparing a workload and measuring the cheapest cells that can be compared."""
    first = batch_order(plan, workload)[0]
    costs = []
    for lane in workload.lanes:
        group = next(group for group in create(lane.compiler, lane.flags).engines(lane.batch_sizes) if first in group)
        building, measuring = expected_time.building(plan, lane, group), _fewest_rounds(plan, workload, lane, first)
        costs.append(building.seconds + measuring.seconds)
    return expected_time.preparing(plan, workload).seconds + sum(sorted(costs)[:FEWEST_LANES])
