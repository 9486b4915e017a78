"""About how long a study takes, part by part, by what earlier studies on this machine took."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.execute.experience import Duration, Source, total
from mlflow_ngraph.execute.lane_memory import RELOAD_CALLS
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.record import Lane

TYPICAL_MACS = 2e9
"""Stands for a model about which nothing is known before it is built."""
MACS_PER_SECOND_AND_THREAD = 5e10
"""A round figure for fp32 on one core of a server processor; estimates need no more."""
TYPICAL_ROUNDS = 10
"""What a cell needs until its interval is short enough, on a machine that is quiet most of the time."""
RACED_ROUNDS, HOPELESS_ROUNDS, HOPELESS = 8, 2, 4.0
"""What a cell of a race needs until it leaves; the same for one that is more than so many times slower than another."""
LANE_SECONDS = 3.0
LOAD_SECONDS = 1.0
VERIFY_SECONDS = 1.0
TAKE_SECONDS = 0.5
"""To take an engine from the cache."""
RELOAD_SECONDS = 2.0
"""A round figure for a process that starts, imports a runtime and loads an engine, beside others that do the same."""
PREPARE_SECONDS = 10.0


def of_study(plan: StudyPlan) -> Duration:
    """Everything."""
    return total(of_workload(plan, workload) for workload in plan.workloads)


def of_workload(plan: StudyPlan, workload: WorkloadPlan) -> Duration:
    """All lanes of a workload and its preparation."""
    return preparing(plan, workload) + total(of_lane(plan, workload, lane) for lane in workload.lanes)


def preparing(plan: StudyPlan, workload: WorkloadPlan) -> Duration:
    """Building the model, running the baseline, exporting."""
    return plan.experience.preparing(str(workload.ref), PREPARE_SECONDS)


def of_lane(plan: StudyPlan, workload: WorkloadPlan, lane: Lane) -> Duration:
    """One lane: its engines and its cells."""
    engines = create(lane.compiler, lane.flags).engines(lane.batch_sizes)
    parts = [building(plan, lane, group) for group in engines]
    parts += [measuring(plan, workload, lane, batch) for batch in lane.batch_sizes]
    return total([Duration.of(LANE_SECONDS), *parts])


def building(plan: StudyPlan, lane: Lane, batch_sizes: Sequence[int]) -> Duration:
    """Having one engine: compiling it, or taking it from the cache."""
    if plan.study.cache != "off" and plan.experience.keeps(lane.workload, lane.compiler, lane.precision):
        return Duration.of(TAKE_SECONDS, "similar")
    otherwise = create(lane.compiler, lane.flags).expected_compile_s
    return plan.experience.building(lane.id, lane.compiler, batch_sizes, otherwise)


def measuring(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> Duration:
    """One cell: verifying and loading its engine, its warm-up, its rounds, and requests that arrive."""
    study, known, cell = plan.study, plan.experience, lane.cell(batch)
    call, source = call_s(plan, workload, lane, batch)
    timed = max(call, min(_repetitions(plan, workload, lane, batch) * call, study.limits.cell_seconds))
    seconds = timed
    if call < study.warmup.max_seconds:
        seconds += min(4 * study.warmup.window * call, study.warmup.max_seconds)
    if (1 + RELOAD_CALLS) * call < study.limits.reload_seconds:
        seconds += RELOAD_SECONDS * timed / min(study.slice_repetitions * call, study.limits.slice_seconds)
    if study.arrivals is not None:
        seconds += study.arrivals.estimate_s(call)
    return total(
        [
            known.verifying(cell, lane.compiler, VERIFY_SECONDS),
            known.loading(cell, lane.compiler, LOAD_SECONDS + call),
            Duration.of(seconds, source),
        ]
    )


def call_s(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> tuple[float, Source]:
    """Seconds of one inference, and where they are known from."""
    known = plan.experience.call_s(lane.id, batch)
    if known is not None:
        return known, "measured" if plan.experience.call_known(lane.id, batch) else "similar"
    macs = TYPICAL_MACS
    if workload.known is not None:
        macs = float(workload.known.true_macs or workload.known.paper_macs or TYPICAL_MACS)
    slowdown = create(lane.compiler, lane.flags).expected_slowdown
    return batch * slowdown * macs / (MACS_PER_SECOND_AND_THREAD * (lane.threads or 1)), "assumed"


def _repetitions(plan: StudyPlan, workload: WorkloadPlan, lane: Lane, batch: int) -> int:
    study = plan.study
    if study.raced is None:
        return TYPICAL_ROUNDS * study.slice_repetitions if study.repetitions == "auto" else study.repetitions
    # Of batch sizes the samples of an inference tell, between lanes its time: that is known before the race.
    mine = call_s(plan, workload, lane, batch)[0]
    fastest = min(call_s(plan, workload, other, batch)[0] for other in workload.lanes)
    rounds = HOPELESS_ROUNDS if mine > HOPELESS * fastest else RACED_ROUNDS
    return rounds * study.slice_repetitions
