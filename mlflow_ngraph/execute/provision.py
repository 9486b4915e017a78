"""Where the engines of a workload come from: an earlier session, the cache, or a compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlflow_ngraph.execute.allotment import Allotment, LeftOut
from mlflow_ngraph.execute.child import ChildFailure, OutOfTime
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.execute.preparation import Materials, Preparation
from mlflow_ngraph.execute.record import LaneRecord

Fail = Callable[[LaneRunner, Iterable[int], ChildFailure], None]
"""Gives cells of a lane, by batch size, the verdict of a failure."""


class Provision:
    """Sees to it that the lanes of one workload have their engines.

    Parameters
    ----------
    wanted : Mapping[str, set[int]]
        Batch sizes that need an engine, by lane.
    before : Mapping[str, LaneRecord]
        What earlier sessions left, by lane.
    fail : Fail
        Told of batch sizes that will have none.
    allotment : Allotment
        What there is time for.
    """

    def __init__(
        self,
        workload: WorkloadPlan,
        runners: Sequence[LaneRunner],
        wanted: Mapping[str, set[int]],
        before: Mapping[str, LaneRecord],
        journal: Journal,
        fail: Fail,
        allotment: Allotment,
    ) -> None:
        self._fixed_batch = workload.fixed_batch
        self._runners = runners
        self._wanted = wanted
        self._before = before
        self._journal = journal
        self._fail = fail
        self._allotment = allotment
        self._impure = ""
        """Why no engine can be verified; empty where they can."""
        self._lacking: dict[str, dict[tuple[int, ...], str]] = {runner.lane.id: {} for runner in runners}
        """Engines that have to be compiled, by lane: their batch sizes and keys."""

    def refuse(self, failure: ChildFailure) -> None:
        """There are no engines, for this reason."""
        for runner in self._runners:
            self._fail(runner, self._wanted[runner.lane.id], failure)

    def find(self, materials: Materials) -> None:
        """Look for every engine that is wanted: what is found need not be compiled."""
        self._impure = materials["behaviour"]["impure"]
        for runner in self._runners:
            lane, runner.impure = runner.lane, self._impure
            possible = [self._fixed_batch] if self._fixed_batch is not None else list(lane.batch_sizes)
            for group in runner.groups(possible):
                if self._wanted[lane.id].intersection(group):
                    key = runner.key(group, materials)
                    if not self._of_before(runner, key) and not runner.take(group, key):
                        self._lacking[lane.id][group] = key

    def economise(self) -> list[LeftOut]:
        """Do without what there is no time for, and say what that is."""
        left_out = self._allotment.choose(self._wanted, self._lacking)
        for cell in left_out:
            self._wanted[cell.lane.id].discard(cell.batch)
        for lane, lacking in self._lacking.items():
            self._lacking[lane] = {
                group: key for group, key in lacking.items() if self._wanted[lane].intersection(group)
            }
        return left_out

    def export(self, preparation: Preparation) -> None:
        """Export the model for the compilers that have something to compile; a failure costs their cells only."""
        needing = [
            runner
            for runner in self._runners
            if self._lacking[runner.lane.id] and set(runner.compiler.formats) - {"module"}
        ]
        if not needing:
            return
        self._settle()  # an export is timed: nobody else imports meanwhile
        try:
            preparation.export(sorted({kind for runner in needing for kind in runner.compiler.formats}))
        except ChildFailure as failure:
            for runner in needing:
                groups, self._lacking[runner.lane.id] = self._lacking[runner.lane.id], {}
                self._fail(runner, [batch for group in groups for batch in group], while_preparing(failure))

    def compile(self) -> None:
        """Compile what is lacking, lane by lane, verify all engines, and have every lane's measuring process ready."""
        lacking = [runner for runner in self._runners if self._lacking[runner.lane.id]]
        for runner in lacking:
            runner.close()  # what was started in vain
        if lacking:
            # No compilation is timed while others import.
            self._settle()
        for runner in lacking:
            self._compile(runner)
        self._verify()
        self._ready()

    def _verify(self) -> None:
        """Compare every engine with the baseline, in processes of their own: nothing of it is in those that are timed."""
        if self._impure:
            return
        self._ready()
        for runner in self._runners:
            for batch in sorted(self._wanted[runner.lane.id] & set(runner.engines)):
                if self._allotment.spent:
                    del runner.engines[batch]  # what nobody has verified is not measured
                    continue
                try:
                    runner.verify(batch)
                except ChildFailure as failure:
                    runner.close()
                    runner.disown(batch, failure.reason)
                    del runner.engines[batch]
                    self._fail(runner, [batch], failure)
            runner.share()
            runner.close()

    def _ready(self) -> None:
        """Have a process for every lane that has engines."""
        for runner in self._runners:
            if runner.engines:
                runner.start()
        self._settle()

    def _of_before(self, runner: LaneRunner, key: str) -> bool:
        """Take over the engine that an earlier session of this study has, if it is still what it was."""
        before = self._before.get(runner.lane.id)
        engines = [engine for engine in before.engines if engine.key == key] if before is not None else []
        return any(runner.reuse(engine) for engine in engines)

    def _compile(self, runner: LaneRunner) -> None:
        """Compile the engines of a lane. One that fails costs its own cells only."""
        for group, key in self._lacking[runner.lane.id].items():
            late = self._allotment.refusal(runner.lane, group)
            if late:
                self._fail(runner, group, OutOfTime(late))
                continue
            self._journal.tell("stage", lane=runner.lane.id, stage="compile", batch=group[0])
            with self._allotment.building():
                try:
                    runner.build(group, key)
                except ChildFailure as failure:
                    runner.close()
                    self._fail(runner, group, failure)
        runner.close()

    def _settle(self) -> None:
        for runner in self._runners:
            runner.settle()


def while_preparing(failure: ChildFailure) -> ChildFailure:
    """The failure, with what it happened in."""
    reason = f"preparing the model: {failure.reason}"
    return OutOfTime(reason) if isinstance(failure, OutOfTime) else ChildFailure(failure.verdict, reason, failure.tail)
