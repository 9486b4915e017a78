"""Estimate the duration of a study by parts, from earlier studies on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.devices import processors
from mlflow_ngraph.errors import FlagError
from mlflow_ngraph.execute.lane_progress import RELOAD_CALLS
from mlflow_ngraph.execute.plan import PREPARE_SECONDS, StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.timing_history import Duration, Source, total

TYPICAL_MACS = 2e9
"""Assumed multiply-adds of an unknown model."""
MACS_PER_SECOND_AND_THREAD = 5e10
"""Approximate fp32 rate of one server core; estimates need no more."""
TYPICAL_ROUNDS = 10
"""Rounds until a cell's interval is short enough, on a mostly quiet machine."""
RACED_ROUNDS, HOPELESS_ROUNDS, HOPELESS = 8, 2, 4.0
"""Rounds until a cell leaves a race; the same for a cell slower than another by more than the factor."""
LEAST_USEFUL_ROUNDS = 3
"""Rounds of a cell that is measured at all."""
LOAD_SECONDS = 3.0
"""Starting a process, importing a runtime and loading an engine."""
REFERENCE_CALLS = 40
"""Calls of the baseline that its outputs for the trials of a batch size take as long as: most are in slower arithmetic."""
VERIFY_SECONDS = 3.0
VERIFY_CALLS = 6
"""Calls of an engine that is verified."""
TAKE_SECONDS = 0.5
"""Taking an engine from the cache."""
RELOAD_SECONDS = 2.0
"""The same as `LOAD_SECONDS`, concurrently with other lanes."""


def of_study(plan: StudyPlan) -> Duration:
    """Duration of a study."""
    return total(of_workload(plan, workload) for workload in plan.workloads)


def of_workload(plan: StudyPlan, workload: WorkloadPlan) -> Duration:
    """Duration of a workload: its preparation and all lanes."""
    return preparing(plan, workload) + total(of_lane(plan, workload, lane) for lane in workload.lanes)


def of_lane(plan: StudyPlan, workload: WorkloadPlan, lane: Lane) -> Duration:
    """Duration of a lane: its engines and cells."""
    parts = [engines(plan, workload, lane)]
    if not plan.study.build_for:
        parts += [measuring(plan, workload, lane, batch) for batch in lane.batch_sizes]
    return total(parts)


def engines(plan: StudyPlan, workload: WorkloadPlan, lane: Lane) -> Duration:
    """Duration of all engines of a lane."""
    groups = create(lane.compiler, lane.flags).engines(lane.batch_sizes)
    return total(building(plan, workload, lane, group) for group in groups)


def preparing(plan: StudyPlan, workload: WorkloadPlan) -> Duration:
    """Duration of building the model, running the baseline and exporting."""
    lanes = workload.lanes
    lane = next((lane for lane in lanes if lane.compiler_label == plan.study.baseline_label), lanes[0])
    calls = [call_s(plan, workload, lane, batch) for batch in lane.batch_sizes]
    references = total(Duration.of(REFERENCE_CALLS * seconds, source) for seconds, source in calls)
    otherwise = Duration.of(PREPARE_SECONDS) + references
    return plan.history.preparing(str(workload.ref), lane.batch_sizes, otherwise).times(1 / _beside(plan))


def building(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch_sizes: Sequence[int]) -> Duration:
    """Duration of providing a verified engine, compiled or from the cache."""
    known = plan.history
    verifying = total(
        known.verifying(
            lane.cell(batch), lane.compiler, VERIFY_SECONDS + VERIFY_CALLS * call_s(plan, workload, lane, batch)[0]
        )
        for batch in batch_sizes
    )
    if plan.study.cache != "off" and known.keeps(lane.workload, lane.compiler, lane.precision):
        making = Duration.of(TAKE_SECONDS, "similar")
    else:

        def expected(flags: Mapping[str, Any] | None) -> float:
            # A study of another version may have flags that are none today.
            with suppress(FlagError):
                return create(lane.compiler, lane.flags if flags is None else flags).expected_compile_s
            return 0.0

        making = known.building(lane.id, lane.compiler, batch_sizes, expected)
    return (making + verifying).times(1 / _beside(plan))


def measuring(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> Duration:
    """Duration of a cell: loading, warm-up, rounds and open-loop requests."""
    study = plan.study
    call, source = call_s(plan, workload, lane, batch)
    slice_s = min(study.slice_length * call, study.limits.slice_seconds)
    timed = max(call, min(_repetitions(plan, workload, lane, batch) * call, study.limits.cell_seconds))
    seconds = timed
    if call < study.warmup.max_seconds:
        seconds += min(4 * study.warmup.window * call, study.warmup.max_seconds)
    if (1 + RELOAD_CALLS) * call < study.limits.reload_seconds:
        seconds += RELOAD_SECONDS * timed / slice_s
    if study.arrivals is not None:
        seconds += study.arrivals.estimate_s(call)
    return _loading(plan, lane, batch, call) + Duration.of(seconds, source)


def measuring_at_least(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> Duration:
    """Duration of a cell with the fewest useful rounds."""
    call, source = call_s(plan, workload, lane, batch)
    slices = min(
        LEAST_USEFUL_ROUNDS * plan.study.slice_length * call, LEAST_USEFUL_ROUNDS * plan.study.limits.slice_seconds
    )
    return _loading(plan, lane, batch, call) + Duration.of(max(call, slices), source)


def call_s(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> tuple[float, Source]:
    """Seconds of one inference, with their source."""
    known = plan.history.call_s(lane.id, batch)
    if known is not None:
        return known
    macs = TYPICAL_MACS
    if workload.known is not None:
        macs = float(workload.known.true_macs or workload.known.paper_macs or TYPICAL_MACS)
    slowdown = create(lane.compiler, lane.flags).expected_slowdown
    return batch * slowdown * macs / (MACS_PER_SECOND_AND_THREAD * (lane.threads or 1)), "assumed"


def _loading(plan: StudyPlan, lane: Lane, batch: int, call: float) -> Duration:
    return plan.history.loading(lane.cell(batch), lane.compiler, LOAD_SECONDS + call)


def _repetitions(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> int:
    study = plan.study
    if study.raced is None:
        return TYPICAL_ROUNDS * study.slice_length if study.repetitions == "auto" else study.repetitions
    # Batch sizes race by their rate and lanes by their time, which is known in advance.
    mine = call_s(plan, workload, lane, batch)[0]
    fastest = min(call_s(plan, workload, other, batch)[0] for other in workload.lanes)
    return (HOPELESS_ROUNDS if mine > HOPELESS * fastest else RACED_ROUNDS) * study.slice_length


def _beside(plan: StudyPlan) -> int:
    """Approximate number of concurrent jobs."""
    together = plan.study.builds == "together" and plan.accelerator == "cpu"
    return min(2, processors.available()) if together else 1
