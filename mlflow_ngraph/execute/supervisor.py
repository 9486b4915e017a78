"""The parent: takes a plan through its workloads, and sleeps while a child works."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from mlflow_ngraph.devices import processors
from mlflow_ngraph.execute import expected_time, time_allocation
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.process_pool import Crew
from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import Places
from mlflow_ngraph.execute.workload_run import WorkloadRun
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict

TOGETHER = 2
"""Workloads that are prepared and compiled beside each other before both are measured. One alone leaves processors idle while
it is prepared and while its last engine is compiled; more would need more room, and tell their first number later."""
BUILDING_SHARE = 0.7
"""Of the time of some workloads, where it is limited: engines that are not there by then have come too late."""


class Supervisor:
    """Runs what a study has not measured yet.

    Parameters
    ----------
    cache : EngineCache | None
        Where engines are looked for and kept; None compiles them all.
    before : StudyRecord | None
        What earlier sessions of the same study left; None for the first.
    retry : bool
        Measure cells again whose verdict may have come from outside, such as a crash.
    on_workload : Callable[[WorkloadPlan], None]
        Called after each workload, while nothing is timed: beside the preparation of others, or while processes start.
    undisturbed : Callable[[], AbstractContextManager[None]]
        Entered while anything is timed.
    standstill : Callable[[], AbstractContextManager[None]]
        Entered around each slice.
    time : TimeBudget | None
        What all of it may take; None for as long as it takes.
    """

    def __init__(
        self,
        plan: StudyPlan,
        places: Places,
        journal: Journal,
        *,
        session: int,
        cache: EngineCache | None = None,
        before: StudyRecord | None = None,
        retry: bool = False,
        on_workload: Callable[[WorkloadPlan], None] = lambda workload: None,
        undisturbed: Callable[[], AbstractContextManager[None]] = nullcontext,
        standstill: Callable[[], AbstractContextManager[None]] = nullcontext,
        time: TimeBudget | None = None,
    ) -> None:
        self._plan = plan
        self._cache = cache
        self._before = before
        self._retry = retry
        self._on_workload = on_workload
        self._order = random.Random(plan.study.seed)
        self._warden = Warden()
        self._session = Session(
            plan, places, journal, self._warden, session, time or TimeBudget(), undisturbed, standstill
        )
        # Of a GPU's memory nobody knows beforehand how much a compiler takes.
        on_cpu = plan.accelerator == "cpu" or bool(plan.study.build_for)
        self._together = plan.study.builds == "together" and on_cpu
        self._ended: list[WorkloadPlan] = []
        """The workloads that ``on_workload`` has not been told of."""

    def run(self) -> None:
        """Measure every missing cell, workload by workload."""
        missing = {str(workload.ref): self._missing(workload) for workload in self._plan.workloads}
        self._economise(missing)
        self._ended = [workload for workload in self._plan.workloads if not missing[str(workload.ref)]]
        left = [workload for workload in self._plan.workloads if missing[str(workload.ref)]]
        count = TOGETHER if self._together else 1
        try:
            for first in range(0, len(left), count):
                chosen = left[first : first + count]
                with self._session.time.part(self._expected_s(chosen) / self._expected_s(left[first:])):
                    self._run(chosen, [missing[str(workload.ref)] for workload in chosen])
        finally:
            self._warden.close()
            self._tell()

    def _run(self, workloads: Sequence[WorkloadPlan], missing: Sequence[dict[str, list[int]]]) -> None:
        """Provide the engines of some workloads, then measure one after the other: nothing computes beside a slice."""
        crew = Crew(together=self._together, processors=processors.available(), hurried=self._session.time.limited)
        with ExitStack() as stack:
            runs = []
            for workload, batches in zip(workloads, missing, strict=True):
                run = WorkloadRun(self._session, workload, batches, self._before, self._cache)
                stack.callback(run.end)
                run.begin(crew)
                runs.append(run)
            with self._session.time.ending(BUILDING_SHARE):
                crew.work(self._tell)
            for place, (workload, run) in enumerate(zip(workloads, runs, strict=True)):
                run.measure(self._order, self._tell, 1 / (len(runs) - place))
                run.end()
                self._ended.append(workload)

    def _economise(self, missing: Mapping[str, dict[str, list[int]]]) -> None:
        """Do without the cells for which there is no time."""
        if not self._session.time.limited:
            return
        cells = {lane: batches for lanes in missing.values() for lane, batches in lanes.items()}
        for omission in time_allocation.left_out(self._plan, self._session.time.left(), cells):
            lanes = missing[omission.lane.workload]
            lanes[omission.lane.id] = [batch for batch in lanes[omission.lane.id] if batch != omission.batch]
            if not lanes[omission.lane.id]:
                del lanes[omission.lane.id]
            self._session.leave_out(omission.lane, omission.batch, omission.reason)

    def _expected_s(self, workloads: Sequence[WorkloadPlan]) -> float:
        return sum(expected_time.of_workload(self._plan, workload).seconds for workload in workloads)

    def _tell(self) -> None:
        """Say which workloads have come to their end, each once."""
        while self._ended:
            self._on_workload(self._ended.pop(0))

    def _missing(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane; with those that they have to race against."""
        missing = self._unsettled(workload)
        race = self._before.races.get(str(workload.ref)) if self._before is not None else None
        if race is None or not (missing or (self._retry and race["ending"] == "time")):
            return missing
        for contender in race["contenders"]:
            batches = {*missing.get(contender["lane"], ()), contender["batch"]}
            missing[contender["lane"]] = sorted(batches)
        return missing

    def _unsettled(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane."""
        unsettled = {}
        left_out = self._before.left_out if self._before is not None else {}
        for lane in workload.lanes:
            done = self._before.lanes.get(lane.id) if self._before is not None else None
            cells = done.cells if done is not None else {}
            batches = [
                batch
                for batch in lane.batch_sizes
                if (batch not in cells and not left_out.get(lane.cell(batch), {}).get("final"))
                or (batch in cells and self._retry and cells[batch].retryable)
                or (batch in cells and self._unserved(cells[batch]))
            ]
            if batches:
                unsettled[lane.id] = batches
        return unsettled

    def _unserved(self, cell: CellRecord) -> bool:
        """Whether the study was killed while requests arrived at the cell: they come to a loaded engine after its rounds."""
        return self._plan.study.arrivals is not None and cell.verdict is Verdict.OK and cell.arrivals_note is None
