"""EngineJobs: pool jobs that prepare and export one workload, and reuse, compile and verify its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.plan import PREPARE_SECONDS, WorkloadPlan
from mlflow_ngraph.execute.preparation import Materials, Preparation
from mlflow_ngraph.execute.process_pool import Job, ProcessPool, Steps, expected_bytes
from mlflow_ngraph.execute.record import Lane, StudyRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes.child import ChildFailure, OutOfTime
from mlflow_ngraph.processes.time_budget import TIME_UP
from mlflow_ngraph.verdicts import Verdict

Fail = Callable[[Lane, Iterable[int], ChildFailure], None]
"""Callback that records a failure as the verdict of cells, by batch size."""

_ANOTHER_MODEL = (
    "the model has changed since this study began, and would be compared with what it was: start anew with --fresh"
)


class EngineJobs:
    """Adds jobs to a process pool that give every lane of a workload its verified engines.

    The workload is prepared once. Lanes then compile missing engines and verify all of them, in processes of their own:
    none of these is timed.

    ``wanted`` are batch sizes that need an engine, by lane, and ``before`` are results of earlier sessions. ``fail`` is
    called with batch sizes that get no engine.
    """

    def __init__(
        self,
        session: Session,
        workload: WorkloadPlan,
        lanes: Sequence[LaneEngines],
        wanted: Mapping[str, set[int]],
        before: StudyRecord | None,
        pool: ProcessPool,
        fail: Fail,
    ) -> None:
        self._session = session
        self._workload = workload
        self._lanes = lanes
        self._wanted = wanted
        self._before = before
        self._pool = pool
        self._fail = fail
        self._lacking: dict[str, dict[tuple[int, ...], str]] = {engines.lane.id: {} for engines in lanes}
        """Missing engines by lane: batch sizes and key."""
        self._parameters = workload.parameters
        self._export_beside = 0
        """Largest number of jobs that ran concurrently with preparation and export."""

    def begin(self) -> None:
        """Add the first job, which adds the others."""
        # Every other job waits for this one.
        longest = sum(self._compile_s(engines, len(self._wanted[engines.lane.id])) for engines in self._lanes)
        self._pool.add(Job(self._prepare, "processors", PREPARE_SECONDS + longest, expected_bytes(self._parameters)))

    def _prepare(self, job: Job) -> Steps:
        preparation = Preparation(self._session, self._workload)
        try:
            preparation.begin(sorted(self._references()))
            yield preparation.child
            materials = preparation.finish()
            if self._is_another(materials):
                self._refuse(ChildFailure(Verdict.FAILED, _ANOTHER_MODEL))
                return
            self._find(materials)
            yield from self._export(preparation, job)
        except ChildFailure as failure:
            if self._pool.suspects_others(job, failure):
                self._again(job, failure, workload=str(self._workload.ref))
            else:
                self._refuse(_while_preparing(failure))
            return
        finally:
            preparation.close(job.beside)
        for engines in self._lanes:
            if self._lacking[engines.lane.id]:
                self._add_build(engines)
            else:
                self._add_verification(engines)

    def _references(self) -> set[int]:
        """Batch sizes whose outputs are needed: those wanted, and the smallest of each engine, which its probe has."""
        probed = {min(group) for engines in self._lanes for group in self._groups(engines)}
        return probed.union(*self._wanted.values())

    def _groups(self, engines: LaneEngines) -> list[tuple[int, ...]]:
        """Batch sizes of each engine of a lane that is wanted."""
        fixed, lane = self._workload.fixed_batch, engines.lane
        groups = engines.compiler.engines([fixed] if fixed is not None else list(lane.batch_sizes))
        return [group for group in groups if self._wanted[lane.id].intersection(group)]

    def _find(self, materials: Materials) -> None:
        """Reuse all engines that are found; list the others as lacking."""
        self._parameters = materials["info"]["parameters"] or self._parameters
        for engines in self._lanes:
            lane, engines.impure = engines.lane, materials["behaviour"]["impure"]
            for group in self._groups(engines):
                if not set(group) <= engines.made.keys():
                    key = engines.key(group, materials)
                    if not self._of_before(engines, key) and not engines.take(group, key):
                        self._lacking[lane.id][group] = key

    def _export(self, preparation: Preparation, job: Job) -> Steps:
        """Export the model for the compilers with missing engines; a failure costs only their cells."""
        needing = [
            engines
            for engines in self._lanes
            if self._lacking[engines.lane.id] and set(engines.compiler.formats) - {"module"}
        ]
        if not needing:
            return
        preparation.begin_export(sorted({kind for engines in needing for kind in engines.compiler.formats}))
        yield preparation.child
        try:
            preparation.finish()
        except ChildFailure as failure:
            if self._pool.suspects_others(job, failure):
                raise
            for engines in needing:
                groups, self._lacking[engines.lane.id] = self._lacking[engines.lane.id], {}
                self._fail(engines.lane, _batches(groups), _while_preparing(failure))
        self._export_beside = job.beside

    def _add_build(self, engines: LaneEngines) -> None:
        seconds = self._compile_s(engines, len(self._lacking[engines.lane.id]))
        memory = expected_bytes(self._parameters)
        self._pool.add(Job(partial(self._build, engines), engines.compiler.occupies, seconds, memory))

    def _build(self, engines: LaneEngines, job: Job) -> Steps:
        """Compile the engines of a lane; a failure costs only its own cells."""
        lacking, exported = self._lacking[engines.lane.id], set(engines.compiler.formats) - {"module"}
        try:
            for group, key in list(lacking.items()):
                self._pool.recount(job)
                try:
                    self._ask_time()
                    yield from engines.build(
                        group, key, lambda: max(job.beside, self._export_beside if exported else 0)
                    )
                except ChildFailure as failure:
                    engines.close()
                    if self._pool.suspects_others(job, failure):
                        self._say_again(failure, lane=engines.lane.id, batch=group[0])
                        continue
                    self._fail(engines.lane, group, failure)
                del lacking[group]
        finally:
            engines.close()
        if lacking:
            self._pool.add(_alone(job))
        else:
            self._add_verification(engines)

    def _add_verification(self, engines: LaneEngines) -> None:
        if self._session.plan.study.build_for:
            engines.share()  # nothing here can run what was built for another device
        elif engines.made and not engines.impure:
            seconds, memory = self._session.plan.study.limits.verify_seconds, expected_bytes(self._parameters)
            self._pool.add(Job(partial(self._verify, engines), "processors", seconds, memory))

    def _verify(self, engines: LaneEngines, job: Job) -> Steps:
        """Verify the engines of a lane; a failure costs only its own cells."""
        waiting = sorted(self._wanted[engines.lane.id] & engines.made.keys() - engines.verified.keys())
        try:
            for batch in list(waiting):
                self._pool.recount(job)
                try:
                    self._ask_time()
                    yield from engines.verify(batch)
                except ChildFailure as failure:
                    engines.close()
                    if self._pool.suspects_others(job, failure):
                        self._say_again(failure, lane=engines.lane.id, batch=batch)
                        continue
                    if not isinstance(failure, OutOfTime):
                        engines.evict(batch, failure.reason)
                    del engines.made[batch]
                    self._fail(engines.lane, [batch], failure)
                waiting.remove(batch)
        finally:
            engines.close()
        if waiting:
            self._pool.add(_alone(job))
        else:
            engines.share()

    def _ask_time(self) -> None:
        if self._session.time.over:
            raise OutOfTime(TIME_UP)

    def _refuse(self, failure: ChildFailure) -> None:
        for engines in self._lanes:
            engines.made.clear()
            self._fail(engines.lane, self._wanted[engines.lane.id], failure)

    def _again(self, job: Job, failure: ChildFailure, **what: object) -> None:
        """Repeat a job alone, as concurrent jobs may have made it fail."""
        self._say_again(failure, **what)
        self._pool.add(_alone(job))

    def _say_again(self, failure: ChildFailure, **what: object) -> None:
        self._session.journal.append("repeated_alone", reason=failure.reason, **what)

    def _of_before(self, engines: LaneEngines, key: str) -> bool:
        """Reuse the engine of an earlier session of this study if its files are unchanged."""
        before = self._before.lanes.get(engines.lane.id) if self._before is not None else None
        kept = [engine for engine in before.engines if engine.key == key] if before is not None else []
        return any(engines.reuse(engine) for engine in kept)

    def _is_another(self, materials: Materials) -> bool:
        """Return True when the study has results of a different model under this name."""
        before, ref = self._before, str(self._workload.ref)
        if before is None or ref not in before.workloads:
            return False
        lanes = [before.lanes[lane.id] for lane in self._workload.lanes if lane.id in before.lanes]
        measured = any(cell.samples for lane in lanes for cell in lane.cells.values())
        return measured and before.workloads[ref]["digest"] != materials["digest"]

    @staticmethod
    def _compile_s(engines: LaneEngines, count: int) -> float:
        return count * engines.compiler.expected_compile_s


def _alone(job: Job) -> Job:
    return Job(job.steps, "machine", job.expected_s, job.expected_bytes)


def _batches(groups: Iterable[tuple[int, ...]]) -> list[int]:
    return [batch for group in groups for batch in group]


def _while_preparing(failure: ChildFailure) -> ChildFailure:
    if isinstance(failure, OutOfTime):
        return failure
    return ChildFailure(failure.verdict, f"preparing the model: {failure.reason}", failure.tail)
