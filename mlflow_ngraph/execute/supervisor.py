"""The parent: takes a plan through its workloads, and sleeps while a child works."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import psutil

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.execute.child import Child, ChildFailure, Warden, environment
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner, Loaded
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.plan import Plan, WorkloadPlan
from mlflow_ngraph.execute.record import Lane, LaneRecord, StudyRecord
from mlflow_ngraph.measure import stability
from mlflow_ngraph.study import BASELINE
from mlflow_ngraph.verdicts import Verdict


class Supervisor:
    """Runs what a study has not measured yet.

    Parameters
    ----------
    before: what earlier sessions of the same study left; None for the first.
    retry: measure cells again whose verdict may have come from outside, such as a crash.
    on_workload: called after each workload, outside any timed region.
    """

    def __init__(
        self,
        plan: Plan,
        places: Places,
        journal: Journal,
        *,
        session: int,
        before: StudyRecord | None = None,
        retry: bool = False,
        on_workload: Callable[[WorkloadPlan], None] = lambda workload: None,
    ) -> None:
        self._plan = plan
        self._places = places
        self._journal = journal
        self._session = session
        self._before = before
        self._retry = retry
        self._on_workload = on_workload
        self._order = random.Random(plan.study.seed)
        self._warden = Warden()

    def run(self) -> None:
        """Measure every missing cell, workload by workload."""
        try:
            for workload in self._plan.workloads:
                missing = self._missing(workload)
                if missing:
                    self._run_workload(workload, missing)
                self._on_workload(workload)
        finally:
            self._warden.close()

    def _run_workload(self, workload: WorkloadPlan, missing: dict[str, list[int]]) -> None:
        ref = str(workload.ref)
        self._journal.append("workload_started", workload=ref, label=workload.label)
        runners = [self._runner(lane) for lane in workload.lanes if self._wanted(lane, missing)]
        try:
            runners = [runner for runner in runners if self._admit(runner, workload, missing)]
            if not any(missing.get(runner.lane.id) for runner in runners):
                return
            if not self._prepare(workload, runners, missing):
                return
            for runner in runners:
                self._journal.append("lane_started", lane=runner.lane.id)
                self._build(runner, workload, missing)
            for batch in self._plan.study.batch_sizes:
                self._measure(runners, batch, missing)
        finally:
            for runner in runners:
                runner.close()
                self._journal.append("lane_finished", lane=runner.lane.id, overhead_s=runner.overhead_s)
            # Engines stand on their own; inputs, references and exports of wide models take gigabytes. A resumed study
            # makes them again, alike to the last bit.
            for left_over in (self._places.materials(ref), self._places.root / "scratch"):
                shutil.rmtree(left_over, ignore_errors=True)

    def _missing(self, workload: WorkloadPlan) -> dict[str, list[int]]:
        """Batch sizes without a final verdict, by lane."""
        found = {}
        for lane in workload.lanes:
            done = self._lane_before(lane.id)
            cells = done.cells if done is not None else {}
            batches = [
                batch
                for batch in lane.batch_sizes
                if batch not in cells or (self._retry and cells[batch].verdict.retryable)
            ]
            if batches:
                found[lane.id] = batches
        return found

    def _runner(self, lane: Lane) -> LaneRunner:
        return LaneRunner(self._plan, lane, self._places, self._journal, self._warden, self._session)

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

    def _prepare(self, workload: WorkloadPlan, runners: list[LaneRunner], missing: dict[str, list[int]]) -> bool:
        """Build the model once, export it, and run the baseline; False when that failed."""
        ref, study = str(workload.ref), self._plan.study
        directory = self._places.materials(ref)
        batches = sorted({batch for wanted in missing.values() for batch in wanted})
        formats = sorted({fmt for runner in runners for fmt in COMPILERS.get(runner.lane.compiler).formats})
        name = f"prepare-{directory.name}-{self._session}"
        child = Child(
            name, environment(self._plan.threads, self._places.scratch(name)), self._places.log(name), self._warden
        )
        try:
            result = child.request(
                "prepare",
                study.limits.prepare_seconds,
                on_stage=lambda stage: self._journal.tell("stage", workload=ref, stage=stage),
                workload=asdict(workload.ref),
                init=asdict(study.init),
                directory=str(directory),
                batch_sizes=batches,
                formats=formats,
                seed=study.seed,
            )
        except ChildFailure as failure:
            failure = ChildFailure(failure.verdict, f"preparing the model: {failure.reason}", failure.tail)
            for runner in runners:
                self._fail(runner, missing.get(runner.lane.id, []), failure)
            return False
        finally:
            child.close()
        materials = json.loads((directory / "materials.json").read_text(encoding="utf-8"))
        self._journal.append("workload_prepared", workload=ref, seconds=result["seconds"], materials=materials)
        return True

    def _build(self, runner: LaneRunner, workload: WorkloadPlan, missing: dict[str, list[int]]) -> None:
        """Compile what the lane's missing cells need. A failed engine costs its own cells only."""
        lane_id = runner.lane.id
        wanted = self._wanted(runner.lane, missing)
        possible = [workload.fixed_batch] if workload.fixed_batch is not None else list(runner.lane.batch_sizes)
        before = self._lane_before(lane_id)
        for engine in before.engines if before is not None else []:
            if wanted.intersection(engine.batch_sizes):
                runner.reuse(engine)
        for group in runner.groups(possible):
            needed = [batch for batch in group if batch in wanted]
            if not needed or all(batch in runner.engines for batch in needed):
                continue
            self._journal.tell("stage", lane=lane_id, stage="compile", batch=group[0])
            try:
                runner.build(group)
            except ChildFailure as failure:
                runner.close()
                self._fail(runner, [batch for batch in group if batch in missing.get(lane_id, [])], failure)
        runner.close()

    def _wanted(self, lane: Lane, missing: dict[str, list[int]]) -> set[int]:
        """The lane's own missing batch sizes, and for the baseline those of all others too."""
        own = set(missing.get(lane.id, []))
        if lane.compiler == BASELINE:
            own |= {batch for batches in missing.values() for batch in batches}
        return own

    def _measure(self, runners: list[LaneRunner], batch: int, missing: dict[str, list[int]]) -> None:
        """Measure one batch size of all lanes in interleaved rounds."""
        ready = [
            runner
            for runner in runners
            if batch in self._wanted(runner.lane, missing)
            and batch in runner.engines
            and self._attempt(runner, batch, missing, partial(self._load, runner, batch))
        ]
        active, round_ = list(ready), 0
        while active:
            turn = list(active)
            self._order.shuffle(turn)
            self._journal.tell("round", batch=batch, round=round_, lanes=[runner.lane.id for runner in turn])
            for position, runner in enumerate(turn):
                companion = batch not in missing.get(runner.lane.id, [])
                step = partial(runner.slice, round_, position, companion=companion)
                if not self._attempt(runner, batch, missing, step):
                    active.remove(runner)
                    ready.remove(runner)
                elif not runner.wants_more():
                    active.remove(runner)
            round_ += 1
        for runner in ready:
            self._finish(runner, batch, missing)

    def _load(self, runner: LaneRunner, batch: int) -> None:
        self._journal.tell("stage", lane=runner.lane.id, stage="load", batch=batch)
        runner.load(batch)
        runner.warm_up()

    def _finish(self, runner: LaneRunner, batch: int, missing: dict[str, list[int]]) -> None:
        """The verdict of a cell that was measured to the end."""
        loaded = runner.loaded
        if loaded is None:
            raise RuntimeError(f"lane {runner.lane.id} finished a cell without an engine")
        if batch in missing.get(runner.lane.id, []):
            verdict, reason = self._judge(loaded)
            self._verdict(runner, batch, verdict, reason, "", loaded.warm_up)
        try:
            runner.unload()
        except ChildFailure:
            # The numbers are complete; a runtime that dies while it frees memory only costs its process.
            runner.close()

    def _judge(self, loaded: Loaded) -> tuple[Verdict, str]:
        """The verdict on a cell that has all its samples, and the reason or what a reader should know."""
        study = self._plan.study
        if loaded.problem:
            return Verdict.PARITY_FAILED, loaded.problem
        unstable = stability.problem(loaded.slices, psutil.cpu_count() or 1, **study.stability.model_dump())
        if unstable:
            return Verdict.UNSTABLE, unstable
        if loaded.repetitions < study.repetitions:
            reached = f"{loaded.repetitions} of {study.repetitions} repetitions"
            return Verdict.OK, f"{reached} within the {study.limits.cell_seconds:g} s that a cell may take"
        return Verdict.OK, ""

    def _attempt(
        self, runner: LaneRunner, batch: int, missing: dict[str, list[int]], step: Callable[[], object]
    ) -> bool:
        """Do a step of a cell; a failure becomes the cell's verdict, and a fresh process serves the next cell."""
        try:
            step()
        except ChildFailure as failure:
            runner.close()
            if batch in missing.get(runner.lane.id, []):
                self._fail(runner, [batch], failure)
            return False
        return True

    def _fail(self, runner: LaneRunner, batches: Iterable[int], failure: ChildFailure) -> None:
        for batch in batches:
            self._verdict(runner, batch, failure.verdict, failure.reason, failure.tail, {})

    def _verdict(
        self, runner: LaneRunner, batch: int, verdict: Verdict, reason: str, tail: str, warm_up: dict[str, Any]
    ) -> None:
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
