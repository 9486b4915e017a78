"""The parent: takes a plan through its workloads, and sleeps while a child works."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mlflow_ngraph.execute.allotment import Allotment, share
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.child import ChildFailure, OutOfTime, Warden
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.preparation import Materials, Preparation
from mlflow_ngraph.execute.provision import Provision, while_preparing
from mlflow_ngraph.execute.raced_before import Before, rounds_before
from mlflow_ngraph.execute.raced_rounds import RacedRounds
from mlflow_ngraph.execute.record import CellRecord, Lane, LaneRecord, StudyRecord
from mlflow_ngraph.execute.rounds import Rounds, wanted
from mlflow_ngraph.execute.time_budget import TIME_UP, TimeBudget
from mlflow_ngraph.verdicts import Verdict

_ANOTHER_MODEL = (
    "the model has changed since this study began, and would be compared with what it was: start anew with --fresh"
)


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
        Called after each workload, outside any timed region: while the next one is prepared, if there is one.
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
        time: TimeBudget | None = None,
    ) -> None:
        self._plan = plan
        self._places = places
        self._journal = journal
        self._session = session
        self._cache = cache
        self._before = before
        self._retry = retry
        self._on_workload = on_workload
        self._time = time or TimeBudget()
        self._order = random.Random(plan.study.seed)
        self._warden = Warden()
        self._settled: set[tuple[str, int]] = set()
        """Cells of which this session has said what became of them, by lane and batch size."""
        self._ended: WorkloadPlan | None = None
        """The workload that ``on_workload`` has not been told of."""

    def run(self) -> None:
        """Measure every missing cell, workload by workload."""
        try:
            unfinished = {str(workload.ref): self._missing(workload) for workload in self._plan.workloads}
            for workload in self._plan.workloads:
                missing = unfinished[str(workload.ref)]
                if missing:
                    waiting = [one for one in self._plan.workloads if unfinished.get(str(one.ref))]
                    self._run_in_time(workload, missing, waiting)
                del unfinished[str(workload.ref)]
                self._tell()
                self._ended = workload
        finally:
            self._warden.close()
            self._tell()

    def _tell(self) -> None:
        """Say that a workload has come to its end, once."""
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._on_workload(ended)

    def _run_in_time(
        self, workload: WorkloadPlan, missing: dict[str, list[int]], waiting: Sequence[WorkloadPlan]
    ) -> None:
        """Measure a workload in its share of the time, and say what of it there was no time for.

        Parameters
        ----------
        waiting : Sequence[WorkloadPlan]
            Those that have to share the time: this one first.
        """
        left = self._time.left()
        with self._time.share(share(self._plan, waiting, left)[str(workload.ref)] if self._time.limited else left):
            allotment = Allotment(self._plan, workload, self._time, waiting)
            late = allotment.too_late()
            if not late:
                self._run_workload(workload, missing, allotment)
        for lane in workload.lanes:
            for batch in missing.get(lane.id, []):
                if (lane.id, batch) not in self._settled:
                    self._leave_out(lane, batch, late or TIME_UP, final=False)

    def _run_workload(self, workload: WorkloadPlan, missing: dict[str, list[int]], allotment: Allotment) -> None:
        ref = str(workload.ref)
        self._journal.append("workload_started", workload=ref, label=workload.label)
        runners = [self._runner(lane) for lane in workload.lanes if wanted(lane, missing)]
        try:
            runners = [runner for runner in runners if self._admit(runner, workload, missing)]
            if not any(missing.get(runner.lane.id) for runner in runners):
                return
            for runner in runners:
                self._journal.append("lane_started", lane=runner.lane.id)
            if not self._provide(workload, runners, missing, allotment):
                return
            self._measure(workload, runners, missing)
        finally:
            for runner in runners:
                runner.close()
                self._journal.append("lane_finished", lane=runner.lane.id, overhead_s=runner.overhead_s)
            # Engines stand on their own; inputs, references and exports of wide models take gigabytes. A resumed study
            # makes them again, alike to the last bit.
            for left_over in (self._places.materials(ref), self._places.root / "scratch"):
                shutil.rmtree(left_over, ignore_errors=True)

    def _measure(self, workload: WorkloadPlan, runners: list[LaneRunner], missing: dict[str, list[int]]) -> None:
        """Take rounds: a batch size after the other, or all of them in one race."""
        study, raced = self._plan.study, self._plan.study.raced
        if raced is None:
            rounds = Rounds(study, self._journal, self._order, missing, self._verdict, self._leave_out, self._time)
            for place, batch in enumerate(study.batch_sizes):
                with self._time.share(self._time.left() / (len(study.batch_sizes) - place)):
                    rounds.measure(runners, batch)
            return
        race = RacedRounds(
            study,
            self._journal,
            self._order,
            missing,
            self._verdict,
            self._leave_out,
            self._time,
            objective=raced,
            lanes=workload.lanes,
            before=rounds_before(self._places.root, workload.lanes) if self._session > 1 else Before(),
        )
        race.race(runners)

    def _missing(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane; with those that they have to race against."""
        found = self._unsettled(workload)
        if self._plan.study.raced is None or self._before is None:
            return found
        race = self._before.races.get(str(workload.ref))
        if race is None or not (found or (self._retry and race["ending"] == "time")):
            return found
        for contender in race["contenders"]:
            batches = found.setdefault(contender["lane"], [])
            if contender["batch"] not in batches:
                found[contender["lane"]] = sorted([*batches, contender["batch"]])
        return found

    def _unsettled(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane."""
        found = {}
        excluded = self._before.left_out if self._before is not None else {}
        for lane in workload.lanes:
            done = self._lane_before(lane.id)
            cells = done.cells if done is not None else {}
            batches = [
                batch
                for batch in lane.batch_sizes
                if (batch not in cells and not excluded.get(lane.cell(batch), {}).get("final"))
                or (batch in cells and self._retry and cells[batch].verdict.retryable)
                or (batch in cells and self._unserved(cells[batch]))
            ]
            if batches:
                found[lane.id] = batches
        return found

    def _unserved(self, cell: CellRecord) -> bool:
        """Whether the study was killed while requests arrived at the cell: they come to a loaded engine after its rounds."""
        return self._plan.study.arrivals is not None and cell.verdict is Verdict.OK and cell.arrivals_note is None

    def _runner(self, lane: Lane) -> LaneRunner:
        plan, time = self._plan, self._time
        return LaneRunner(plan, lane, self._places, self._journal, self._warden, self._session, self._cache, time)

    def _admit(self, runner: LaneRunner, workload: WorkloadPlan, missing: dict[str, list[int]]) -> bool:
        """Settle the cells that are known to be unsupported before anything is built."""
        reason = runner.unsupported()
        batches = missing.get(runner.lane.id, [])
        if reason is not None:
            self._fail(runner, batches, ChildFailure(Verdict.UNSUPPORTED, reason))
            missing.pop(runner.lane.id, None)
            return False
        if workload.fixed_batch is not None:
            other = [batch for batch in batches if batch != workload.fixed_batch]
            reason = f"the model accepts batch size {workload.fixed_batch} only"
            self._fail(runner, other, ChildFailure(Verdict.UNSUPPORTED, reason))
            missing[runner.lane.id] = [batch for batch in batches if batch == workload.fixed_batch]
        return True

    def _provide(
        self,
        workload: WorkloadPlan,
        runners: list[LaneRunner],
        missing: dict[str, list[int]],
        allotment: Allotment,
    ) -> bool:
        """Build the model once, run the baseline, and have an engine for every missing cell; False without a model."""

        def fail(runner: LaneRunner, batches: Iterable[int], failure: ChildFailure) -> None:
            self._fail(runner, [batch for batch in batches if batch in missing.get(runner.lane.id, [])], failure)

        before = self._before.lanes if self._before is not None else {}
        provided = {runner.lane.id: wanted(runner.lane, missing) for runner in runners}
        provision = Provision(workload, runners, provided, before, self._journal, fail, allotment)
        preparation = Preparation(
            self._plan, workload, self._places, self._journal, self._warden, self._session, self._time
        )
        if self._cache is not None and all(self._cache.expects(runner.lane) for runner in runners):
            # Probably nothing is compiled, and runtimes may be imported while the model is built.
            for runner in runners:
                runner.start()
        try:
            with allotment.preparing():
                preparation.begin(sorted({batch for batches in missing.values() for batch in batches}))
                self._tell()
                materials = preparation.built()
            if self._changed(workload, materials):
                provision.refuse(ChildFailure(Verdict.FAILED, _ANOTHER_MODEL))
                return False
            allotment.prepared()
            provision.find(materials)
            self._economise(provision, missing)
            with allotment.building():
                provision.export(preparation)
        except ChildFailure as failure:
            provision.refuse(while_preparing(failure))
            return False
        finally:
            preparation.close()
        provision.compile()
        return True

    def _economise(self, provision: Provision, missing: dict[str, list[int]]) -> None:
        """Do without the cells for which there is no time."""
        for left_out in provision.economise():
            batches = missing.get(left_out.lane.id, [])
            if left_out.batch in batches:
                batches.remove(left_out.batch)
                self._leave_out(left_out.lane, left_out.batch, left_out.reason, final=False)

    def _changed(self, workload: WorkloadPlan, materials: Materials) -> bool:
        """Whether the study has numbers of another model under the same name."""
        before = self._before
        if before is None or str(workload.ref) not in before.workloads:
            return False
        lanes = [before.lanes[lane.id] for lane in workload.lanes if lane.id in before.lanes]
        measured = any(cell.samples for lane in lanes for cell in lane.cells.values())
        return measured and before.workloads[str(workload.ref)]["digest"] != materials["digest"]

    def _fail(self, runner: LaneRunner, batches: Iterable[int], failure: ChildFailure) -> None:
        for batch in batches:
            if isinstance(failure, OutOfTime):
                self._leave_out(runner.lane, batch, failure.reason, final=False)
            else:
                self._verdict(runner, batch, failure.verdict, failure.reason, failure.tail, {})

    def _leave_out(self, lane: Lane, batch: int, reason: str, *, final: bool) -> None:
        """Say that a cell is not measured: there is no time for it, or nothing to be gained by it."""
        self._settled.add((lane.id, batch))
        self._journal.append("left_out", cell=lane.cell(batch), lane=lane.id, batch=batch, reason=reason, final=final)

    def _verdict(
        self, runner: LaneRunner, batch: int, verdict: Verdict, reason: str, tail: str, warm_up: dict[str, Any]
    ) -> None:
        self._settled.add((runner.lane.id, batch))
        self._journal.append(
            "cell_finished",
            cell=runner.lane.cell(batch),
            lane=runner.lane.id,
            batch=batch,
            verdict=verdict.value,
            reason=reason,
            stderr_tail=tail,
            warm_up=warm_up,
        )

    def _lane_before(self, lane_id: str) -> LaneRecord | None:
        return self._before.lanes.get(lane_id) if self._before is not None else None
