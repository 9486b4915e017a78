"""Choose the cells to leave out when the time of a study is too short.

Every workload first gets the two cells that a comparison needs. The others follow in the order of their worth:
informative batch sizes first, then lanes that are probably fast. A cell counts with its least time: its engine, loading
and a few rounds. The rest of the time goes to further rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.execute import expected_time
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.timing_history import Duration
from mlflow_ngraph.measure.racing import Entrant, Race
from mlflow_ngraph.text import duration

FEWEST_CELLS = 2
"""Cells that a comparison needs."""
Cells = Mapping[str, Collection[int]]
"""Batch sizes by lane."""


@dataclass(frozen=True)
class LeftOut:
    """A cell without time."""

    lane: Lane
    batch: int
    reason: str


def left_out(plan: StudyPlan, seconds: float, cells: Cells | None = None) -> list[LeftOut]:
    """Choose the cells that do not fit, by the lower bounds of their durations, of those given or of all."""
    omissions: list[LeftOut] = []
    begun: set[str] = set()
    made: set[tuple[str, tuple[int, ...]]] = set()
    for workload, lane, batch in _in_order(plan, cells):
        ref = str(workload.ref)
        group = next(sizes for sizes in create(lane.compiler, lane.flags).engines(lane.batch_sizes) if batch in sizes)
        takes = expected_time.measuring_at_least(plan, workload, lane, batch)
        if (lane.id, group) not in made:
            takes = takes + expected_time.building(plan, workload, lane, group)
        if ref not in begun:
            takes = takes + expected_time.preparing(plan, workload)
        if takes.low > seconds:
            omissions.append(LeftOut(lane, batch, _reason(takes, seconds)))
            continue
        seconds -= takes.low
        begun.add(ref)
        made.add((lane.id, group))
    return omissions


def describe(plan: StudyPlan, missing: Sequence[LeftOut]) -> Iterator[str]:
    """Format the omissions: a line per workload and reason."""
    for workload in plan.workloads:
        own = [cell for cell in missing if cell.lane.workload == str(workload.ref)]
        if len(own) == sum(len(lane.batch_sizes) for lane in workload.lanes):
            yield f"{workload.label}: left out: all of it: {own[0].reason}"
            continue
        for cell in own:
            yield f"{workload.label}: left out: {cell.lane.compiler_label} at batch {cell.batch}: {cell.reason}"


def _reason(takes: Duration, left: float) -> str:
    return f"having and measuring it takes about {duration(takes.seconds)}, and about {duration(left)} would be left"


def _in_order(plan: StudyPlan, cells: Cells | None) -> Iterator[tuple[WorkloadPlan, Lane, int]]:
    """Cells in the order of their worth."""
    ranked = [
        (max(0, place + 1 - FEWEST_CELLS), number, workload, lane, batch)
        for number, workload in enumerate(plan.workloads)
        for place, (lane, batch) in enumerate(_of_workload(plan, workload, cells))
    ]
    for _, _, workload, lane, batch in sorted(ranked, key=lambda entry: entry[:2]):
        yield workload, lane, batch


def _of_workload(plan: StudyPlan, workload: WorkloadPlan, cells: Cells | None) -> Iterator[tuple[Lane, int]]:
    def rank(lane: Lane) -> tuple[bool, float]:
        return lane.compiler_label != plan.study.baseline_label, expected_time.call_s(
            plan, workload, lane, lane.batch_sizes[0]
        )[0]

    batches: Sequence[int] = plan.study.batch_sizes
    if plan.study.raced is not None:
        entrants = {lane.cell(batch): Entrant(lane.id, batch) for lane in workload.lanes for batch in batches}
        batches = Race(entrants, plan.study.raced).batch_sizes
    for batch in batches:
        for lane in sorted(workload.lanes, key=rank):
            if cells is None or batch in cells.get(lane.id, ()):
                yield lane, batch
