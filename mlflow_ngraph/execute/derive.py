"""Derive all metrics of cells from their slices, requests and engines, with intervals and ratios to the baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.estimates import Array, Estimate, exactly
from mlflow_ngraph.execute import formulas
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.execute.resources import own_processors, resources
from mlflow_ngraph.measure import open_loop_figures, statistics
from mlflow_ngraph.metrics import FOREIGN, FREEDOM, HIGH, LOG_ERROR, LOW, METRICS, uneven_load
from mlflow_ngraph.objectives import Raced

SliceRecord = Mapping[str, Any]
NS = 1e9
MB = 1e6
_AGAINST_ONE = {"rtr", "ase"}
"""Metrics relative to batch size 1, which was measured at another time; they are 1 there."""
_PAIRED = {"speedup", "cpu_reduction"}
"""Metrics paired with the baseline by rounds."""


def derive(
    record: StudyRecord,
    companions: Mapping[str, Sequence[SliceRecord]] | None = None,
    workloads: Collection[str] | None = None,
) -> None:
    """Fill `CellRecord.metrics` of every cell.

    ``companions`` are slices of the baseline beside cells of other sessions, by cell id. ``workloads`` restricts the
    lanes: those of a workload depend on no others.
    """
    raced = record.study.get("objective") in get_args(Raced)
    processors = int(record.fingerprint["hardware"]["cpu"]["threads"])
    lanes = [lane for lane in record.lanes.values() if workloads is None or lane.lane.workload in workloads]
    for lane in lanes:
        for cell in lane.cells.values():
            cell.metrics = own_metrics(lane, cell, processors)
            _serve(cell, record.study, processors)
    baselines = _baselines(record)
    for lane in lanes:
        for cell in lane.cells.values():
            taken = [*cell.samples, *(companions or {}).get(cell.id, ())]
            names = (f"{part['session']}.{part['round']}{'' if raced else f'@{cell.batch}'}" for part in taken)
            medians = statistics.slice_medians(_durations(taken)) / _samples_per_call(cell)
            cell.log_medians = dict(zip(names, np.log(medians).tolist(), strict=True))
        baseline = baselines.get((lane.lane.workload, lane.lane.precision))
        _compare(lane, baseline, companions or {}, processors)
        for cell in lane.cells.values():
            cell.unsteady = _unsteady(lane, cell, baseline)
    formulas.add(record, lanes)


def own_metrics(lane: LaneRecord, cell: CellRecord, processors: int) -> dict[str, float]:
    """Metrics of a cell from its own slices and engine. ``processors`` are those of the whole machine."""
    metrics: dict[str, float] = {}
    engine = lane.engine_of(cell)
    if engine is not None:
        metrics.update({f"{stage}_s": seconds for stage, seconds in engine.stages.items()})
        if engine.seconds is not None:
            metrics["compile_total_s"] = engine.seconds
        metrics["built_beside"] = float(engine.built_beside)
        metrics["engine_size_mb"] = engine.size_bytes / MB
    metrics.update({name: value for name, value in cell.ready.items() if name.endswith("_s")})
    if cell.parity is not None:
        metrics["parity_max_abs"] = cell.parity.max_abs
        metrics["parity_max_rel"] = cell.parity.max_rel
        metrics["parity_cosine"] = cell.parity.cosine
        metrics["parity_top1"] = cell.parity.top1
    if cell.verified:
        metrics["parity_inputs"] = float(cell.verified["inputs"])
        metrics["verify_s"] = float(cell.verified["seconds"])
    if cell.warm_up:
        metrics["warmup_repetitions"] = float(cell.warm_up["repetitions"])
    if cell.samples:
        metrics.update(_timings(cell, _samples_per_call(cell)))
        threads = lane.lane.threads or processors
        metrics.update(resources(cell.samples, processors, threads, _samples_per_call(cell)))
    return metrics


def _timings(cell: CellRecord, samples_per_call: float) -> dict[str, float]:
    slices = _durations(cell.samples)
    durations = np.concatenate(slices)
    per_second = samples_per_call * NS
    metrics = {
        "repetitions": float(durations.size),
        "rounds": float(len(slices)),
        "throughput_std": float((per_second / durations).std(ddof=1)) if durations.size > 1 else 0.0,
    }
    medians, typical = statistics.slice_medians(slices), _typical(cell)
    _put(metrics, "throughput", exactly(per_second).over(typical))
    mean = _disturbed(cell, statistics.mean_duration(slices), medians)
    _put(metrics, "throughput_mean", exactly(per_second).over(mean))
    if cell.ready.get("requests", 1) == 1:
        # With several requests in flight a repetition is no latency.
        p50, p90, p99 = np.percentile(durations, [50, 90, 99]) / 1e6
        # The median of all repetitions, with the error of a round's typical duration.
        _put(metrics, "latency_p50_ms", replace(typical, log=np.log(p50)))
        metrics.update(
            latency_mean_ms=float(durations.mean()) / 1e6,
            latency_std_ms=float(durations.std(ddof=1)) / 1e6 if durations.size > 1 else 0.0,
            latency_p90_ms=float(p90),
            latency_p99_ms=float(p99),
        )
    return metrics


def _baselines(record: StudyRecord) -> dict[tuple[str, str], LaneRecord]:
    """Baseline lanes by workload and precision."""
    label = record.baseline
    found: dict[tuple[str, str], LaneRecord] = {}
    for other in record.lanes.values():
        if other.lane.compiler_label == label:
            found.setdefault((other.lane.workload, other.lane.precision), other)
    return found


def _serve(cell: CellRecord, study: Mapping[str, Any], processors: int) -> None:
    """Figures of requests that arrived in an open loop."""
    cell.serving = [open_loop_figures.row(event, processors, study["stability"]) for event in cell.arrivals]
    if cell.serving:
        cell.metrics.update(open_loop_figures.headlines(cell.serving, study["arrivals"]["max_p99_ms"]))


def _compare(
    lane: LaneRecord, baseline: LaneRecord | None, companions: Mapping[str, Sequence[SliceRecord]], processors: int
) -> None:
    """Add metrics relative to the baseline, or to batch size 1 of the same lane."""
    speedups: dict[int, Estimate] = {}
    for batch, cell in lane.cells.items():
        other = baseline.cells.get(batch) if baseline is not None else None
        if baseline is not None and other is not None and cell.samples:
            estimate = _speedup(cell, other, companions.get(other.id, ()), processors)
            if estimate is not None:
                if lane is not baseline:
                    estimate = estimate.beside(_load(lane, baseline, batch))
                speedups[batch] = estimate
                _put(cell.metrics, "speedup", estimate)
    throughputs = _throughputs(lane)
    single = throughputs.get(1)
    if single is None:
        return
    for batch, throughput in throughputs.items():
        metric = lane.cells[batch].metrics
        # At batch size 1 both are 1 by definition and not by measurement.
        rtr = throughput.over(single) if batch > 1 else exactly(1.0)
        _put(metric, "rtr", rtr)
        _put(metric, "ase", rtr.times(1 / batch))
        if batch in speedups and 1 in speedups:
            # ASE / ASE of the baseline equals the speed-up over the speed-up at batch size 1, and those are paired.
            _put(metric, "bsr", speedups[batch].over(speedups[1]) if batch > 1 else exactly(1.0))


def _speedup(
    cell: CellRecord, baseline: CellRecord, companions: Sequence[SliceRecord], processors: int
) -> Estimate | None:
    """Pair the rounds of a cell with those of the baseline."""
    theirs = {_round(part): part for part in [*companions, *baseline.samples]}
    ours = {_round(part): part for part in cell.samples}
    common = sorted(set(ours) & set(theirs))
    if not common:
        return None
    if cell.id == baseline.id:
        cell.metrics["cpu_reduction"] = 0.0
        return exactly(1.0)
    top, bottom = [theirs[key] for key in common], [ours[key] for key in common]
    _cpu_reduction(cell, _cpu_use(bottom, processors), _cpu_use(top, processors))
    estimate = statistics.paired_ratio(
        statistics.slice_medians(_durations(top)), statistics.slice_medians(_durations(bottom))
    )
    return estimate.times(_samples_per_call(cell) / _samples_per_call(baseline))


def _cpu_reduction(cell: CellRecord, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    """1 - CPU use / CPU use of the baseline in the same rounds; empty when one is unknown."""
    if not (np.all(ours > 0) and np.all(theirs > 0)):
        return
    share = statistics.paired_ratio(ours, theirs)
    low, high = share.interval()
    _put(cell.metrics, "cpu_reduction", share, 1.0 - share.value, (1.0 - high, 1.0 - low))


def _cpu_use(slices: Sequence[SliceRecord], processors: int) -> NDArray[np.float64]:
    """Busy processors around each slice; NaN where unknown."""
    return np.array([own_processors(part, processors) for part in slices], np.float64)


def _throughputs(lane: LaneRecord) -> dict[int, Estimate]:
    return {
        batch: exactly(_samples_per_call(cell) * NS).over(_typical(cell))
        for batch, cell in sorted(lane.cells.items())
        if cell.samples
    }


def _typical(cell: CellRecord) -> Estimate:
    """Typical duration of a repetition, from slice medians as ratios are."""
    medians = statistics.slice_medians(_durations(cell.samples))
    return _disturbed(cell, statistics.typical(medians), medians)


def _disturbed(cell: CellRecord, duration: Estimate, medians: Array) -> Estimate:
    """Widen the error of a duration measured on a noisy machine."""
    return statistics.persistent(duration, np.log(medians)) if cell.noise else duration


def _unsteady(lane: LaneRecord, cell: CellRecord, baseline: LaneRecord | None) -> tuple[str, ...]:
    """Metrics of a cell that noise affects, its own or that of cells in its ratios."""
    single = lane.cells.get(1)
    touched: set[str] = set()
    if cell.noise:
        touched = {name for name, metric in METRICS.items() if metric.absolute}
        touched -= _AGAINST_ONE if cell.batch == 1 else set()
    elif single is not None and single.noise:
        touched = set(_AGAINST_ONE)
    if baseline is not None and lane is not baseline:
        if _load(lane, baseline, cell.batch):
            touched |= _PAIRED
        if cell.batch > 1 and (_load(lane, baseline, cell.batch) or _load(lane, baseline, 1)):
            touched |= {"bsr"}
    return tuple(sorted(touched.intersection(cell.metrics)))


def _load(lane: LaneRecord, baseline: LaneRecord, batch: int) -> float:
    """Share of the machine that others took, where it may have slowed a lane and its baseline unequally; else 0."""
    cells = [own for own in (lane.cells.get(batch), baseline.cells.get(batch)) if own is not None]
    return uneven_load(max((own.metrics.get(FOREIGN, 0.0) for own in cells), default=0.0))


def _put(
    metrics: dict[str, float],
    name: str,
    estimate: Estimate,
    value: Array | None = None,
    interval: tuple[Array, Array] | None = None,
) -> None:
    """Set a metric with its interval and error, where they exist; ``value`` and ``interval`` replace the estimate's."""
    metrics[name] = float(estimate.value if value is None else value)
    low, high = estimate.interval() if interval is None else interval
    if np.isfinite(low) and np.isfinite(high):
        metrics[name + LOW], metrics[name + HIGH] = float(low), float(high)
    if estimate.known:
        metrics[name + LOG_ERROR] = float(estimate.error)
        if np.isfinite(estimate.freedom):  # what is known exactly has none, and no file of JSON an infinite number
            metrics[name + FREEDOM] = float(estimate.freedom)


def _samples_per_call(cell: CellRecord) -> float:
    return cell.batch * cell.ready.get("requests", 1)


def _durations(slices: Sequence[SliceRecord]) -> list[NDArray[np.float64]]:
    return [np.asarray(part["durations_ns"], dtype=np.float64) for part in slices]


def _round(part: SliceRecord) -> tuple[int, int]:
    return part["session"], part["round"]
