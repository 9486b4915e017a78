"""Supervisor: runs the missing cells of a study, workload by workload, and sleeps while children work."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from mlflow_ngraph.devices import processors
from mlflow_ngraph.execute import expected_time, time_allocation
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.process_pool import ProcessPool
from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.execute.workload_run import WorkloadRun
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict

TOGETHER = 2
"""Workloads that are prepared and compiled concurrently before both are measured. One leaves processors idle while it
is prepared and during its last compilation; more need more memory and delay the first result."""
BUILDING_SHARE = 0.7
"""Share of limited time for building. Engines that come later come too late."""


class Supervisor:
    """Measures the missing cells of a study.

    Without a cache all engines are compiled. ``retry`` repeats cells whose verdict may have an outside cause, such as a
    crash. ``on_workload`` is called after each workload, while nothing is timed. `Session` says what the others are.
    """

    def __init__(
        self,
        plan: StudyPlan,
        paths: StudyPaths,
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
            plan, paths, journal, self._warden, session, time or TimeBudget(), undisturbed, standstill
        )
        # The memory that a compiler takes of a GPU is not known beforehand.
        on_cpu = plan.accelerator == "cpu" or bool(plan.study.build_for)
        self._together = plan.study.builds == "together" and on_cpu
        self._ended: list[WorkloadPlan] = []
        """Workloads not yet passed to ``on_workload``."""

    def remaining(self) -> int:
        """Number of cells to measure in this session, before any is left out for lack of time."""
        return sum(len(batches) for workload in self._plan.workloads for batches in self._missing(workload).values())

    def run(self) -> None:
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
        """Provide the engines of some workloads, then measure one after the other: nothing computes during a slice."""
        pool = ProcessPool(
            together=self._together, processors=processors.available(), hurried=self._session.time.limited
        )
        with ExitStack() as stack:
            runs = []
            for workload, batches in zip(workloads, missing, strict=True):
                run = WorkloadRun(self._session, workload, batches, self._before, self._cache)
                stack.callback(run.end)
                run.begin(pool)
                runs.append(run)
            with self._session.time.ending(BUILDING_SHARE):
                pool.work(self._tell)
            for place, (workload, run) in enumerate(zip(workloads, runs, strict=True)):
                run.measure(self._order, self._tell, 1 / (len(runs) - place))
                run.end()
                self._ended.append(workload)

    def _economise(self, missing: Mapping[str, dict[str, list[int]]]) -> None:
        """Leave out the cells that do not fit into the time."""
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
        """Pass each finished workload to ``on_workload`` once."""
        while self._ended:
            self._on_workload(self._ended.pop(0))

    def _missing(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane, with their rivals in a race."""
        missing = self._unsettled(workload)
        race = self._before.races.get(str(workload.ref)) if self._before is not None else None
        if race is None or not (missing or (self._retry and race["ending"] == "time")):
            return missing
        for contender in race["contenders"]:
            batches = {*missing.get(contender["lane"], ()), contender["batch"]}
            missing[contender["lane"]] = sorted(batches)
        return missing

    def _unsettled(self, workload: WorkloadPlan) -> dict[str, list[int]]:
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
        """Return True when the study was killed between the rounds of a cell and the end of its requests."""
        return self._plan.study.arrivals is not None and cell.verdict is Verdict.OK and cell.arrivals_note is None
