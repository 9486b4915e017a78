"""WorkloadRun: one workload in a session, from its engines to its verdicts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.earlier_rounds import EarlierRounds, read_earlier_rounds
from mlflow_ngraph.execute.engine_sources import EngineJobs
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.open_cells import CellResult, OpenCells
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.execute.process_pool import ProcessPool
from mlflow_ngraph.execute.raced_rounds import RacedRounds
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.execute.rounds import Rounds
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes.time_budget import TIME_UP
from mlflow_ngraph.verdicts import Verdict


class WorkloadRun:
    """Runs the lanes of a workload through their stages.

    ``missing`` are batch sizes without a final verdict, by lane, and ``before`` are results of earlier sessions.
    """

    def __init__(
        self,
        session: Session,
        workload: WorkloadPlan,
        missing: dict[str, list[int]],
        before: StudyRecord | None,
        cache: EngineCache | None,
    ) -> None:
        self._session = session
        self._workload = workload
        self._cells = OpenCells(session, missing)
        self._before = before
        lanes = [lane for lane in workload.lanes if self._cells.wanted(lane)]
        self._lanes = [LaneEngines(session, lane, cache) for lane in lanes]
        self._runners: list[LaneRunner] = []
        self._ended = False

    def begin(self, pool: ProcessPool) -> None:
        """Write the verdicts of unsupported cells, and add the jobs that provide all other engines."""
        journal = self._session.journal
        journal.append("workload_started", workload=str(self._workload.ref), label=self._workload.label)
        self._lanes = [engines for engines in self._lanes if self._admit(engines)]
        if not any(self._cells.of(engines.lane) for engines in self._lanes):
            return
        for engines in self._lanes:
            journal.append("lane_started", lane=engines.lane.id)
        needed = {engines.lane.id: self._cells.wanted(engines.lane) for engines in self._lanes}
        EngineJobs(self._session, self._workload, self._lanes, needed, self._before, pool, self._cells.fail).begin()

    def measure(self, order: random.Random, meanwhile: Callable[[], None], share: float) -> None:
        """Measure every missing cell with an engine, and record the cells that time did not allow. Nothing else may
        compute meanwhile.

        ``order`` shuffles the lanes of each round. ``meanwhile`` is called before anything is timed, while processes
        start. ``share`` is that of the remaining time for the rounds, from 0 to 1.
        """
        if self._session.plan.study.build_for:
            self._leave_built()
        else:
            self._measure(order, meanwhile, share)
        for engines in self._lanes:
            for batch in engines.lane.batch_sizes:
                if self._cells.is_open(engines.lane, batch):
                    self._cells.leave_out(engines.lane, batch, TIME_UP)

    def _measure(self, order: random.Random, meanwhile: Callable[[], None], share: float) -> None:
        before = self._before.lanes if self._before is not None else {}
        self._runners = [
            LaneRunner(self._session, engines, before.get(engines.lane.id)) for engines in self._lanes if engines.made
        ]
        for runner in self._runners:
            runner.start()
        meanwhile()
        for runner in self._runners:
            runner.settle()
        if self._session.time.until_end() > 0:
            with self._session.undisturbed(), self._session.time.part(share):
                self._take_rounds(order)

    def _take_rounds(self, order: random.Random) -> None:
        session, study = self._session, self._session.plan.study
        if study.raced is None:
            rounds = Rounds(session, self._cells, order)
            for place, batch in enumerate(study.batch_sizes):
                with session.time.part(1 / (len(study.batch_sizes) - place)):
                    rounds.measure(self._runners, batch)
            return
        lanes = self._workload.lanes
        before = read_earlier_rounds(session.paths.root, lanes) if session.number > 1 else EarlierRounds()
        race = RacedRounds(session, self._cells, order, objective=study.raced, lanes=lanes, before=before)
        race.race(self._runners)

    def end(self) -> None:
        """End all processes and delete materials. Ending again does nothing."""
        if self._ended:
            return
        self._ended = True
        paths, runners = self._session.paths, {runner.lane.id: runner for runner in self._runners}
        for runner in [twin for base in self._runners for twin in (base, *base.twins)]:
            runner.close()
        for engines in self._lanes:
            engines.close()
            lane = engines.lane.id
            overhead_s = engines.overhead_s + (runners[lane].overhead_s if lane in runners else 0.0)
            self._session.journal.append("lane_finished", lane=lane, overhead_s=overhead_s)
        # Engines are complete; inputs, references and exports of wide models take gigabytes. A resumed study makes them
        # again, bit for bit.
        for left_over in (paths.materials(str(self._workload.ref)), paths.root / "scratch"):
            shutil.rmtree(left_over, ignore_errors=True)

    def _leave_built(self) -> None:
        """Write the verdicts of engines compiled for another device, which are not measured here."""
        device = self._session.plan.study.build_for
        for engines in self._lanes:
            for batch in self._cells.of(engines.lane):
                if batch in engines.made:
                    result = CellResult(Verdict.BUILT, f"compiled for {device}, and neither verified nor measured")
                    self._cells.close(engines.lane, batch, result, engine=engines.made[batch].id)

    def _admit(self, engines: LaneEngines) -> bool:
        """Write the verdicts of cells that cannot work before anything is built."""
        lane, fixed, reason = engines.lane, self._workload.fixed_batch, engines.unsupported()
        batches = self._cells.of(lane)
        if self._workload.refused:
            self._cells.refuse(lane, batches, Verdict.FAILED, self._workload.refused)
            return False
        if reason is not None:
            self._cells.refuse(lane, batches, Verdict.UNSUPPORTED, reason)
            return False
        if fixed is not None:
            why = self._workload.batch_question or f"the model accepts batch size {fixed} only"
            self._cells.refuse(lane, [batch for batch in batches if batch != fixed], Verdict.UNSUPPORTED, why)
        return True
