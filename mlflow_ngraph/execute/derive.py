"""From slices to metrics. Pure: the same journal gives the same figures, bit for bit."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph import metrics
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.study import BASELINE

SliceRecord = Mapping[str, Any]
NS = 1e9
MB = 1e6


def derive(
    record: StudyRecord,
    companions: Mapping[str, Sequence[SliceRecord]] | None = None,
    workload: str | None = None,
) -> None:
    """Fill `CellRecord.metrics` of every cell.

    Parameters
    ----------
    companions: slices by cell id that the baseline took beside cells measured in a later session.
    workload: only the lanes of this workload; they need no others.
    """
    processors = int(record.fingerprint["hardware"]["cpu"]["threads"])
    lanes = [lane for lane in record.lanes.values() if workload in (None, lane.lane.workload)]
    for lane in lanes:
        for cell in lane.cells.values():
            cell.metrics = _own_metrics(lane, cell, processors)
    for lane in lanes:
        baseline = _baseline_of(record, lane)
        _compare(lane, baseline, companions or {})


def _own_metrics(lane: LaneRecord, cell: CellRecord, processors: int) -> dict[str, float]:
    """What a cell's own samples and its engine say."""
    found: dict[str, float] = {}
    engine = next((engine for engine in lane.engines if engine.id == cell.engine), None)
    if engine is not None:
        found.update({f"{stage}_s": seconds for stage, seconds in engine.stages.items()})
        found["compile_total_s"] = sum(engine.stages.values())
        found["engine_size_mb"] = engine.size_bytes / MB
    found.update({name: value for name, value in cell.ready.items() if name.endswith("_s")})
    if cell.parity is not None:
        found["parity_max_abs"] = cell.parity.max_abs
        found["parity_max_rel"] = cell.parity.max_rel
        found["parity_cosine"] = cell.parity.cosine
        found["parity_top1"] = cell.parity.top1
    if cell.warm_up:
        found["warmup_repetitions"] = float(cell.warm_up["repetitions"])
    if cell.samples:
        found.update(_timings(cell, _samples_per_call(cell)))
        found.update(_resources(cell.samples, processors, lane.lane.threads or processors))
    return found


def _timings(cell: CellRecord, samples_per_call: float) -> dict[str, float]:
    slices = _durations(cell.samples)
    durations = np.concatenate(slices)
    per_second = samples_per_call * NS
    replicates = per_second / statistics.mean_duration_replicates(slices, _rng(cell.id, "mean"))
    low, high = statistics.interval(replicates)
    found = {
        "repetitions": float(durations.size),
        "throughput": per_second / float(durations.mean()),
        "throughput_std": float((per_second / durations).std(ddof=1)) if durations.size > 1 else 0.0,
        "throughput_ci_low": low,
        "throughput_ci_high": high,
        "throughput_p50": per_second / float(np.median(durations)),
    }
    if cell.ready.get("requests", 1) == 1:
        # With several requests in flight a repetition is not the latency of any of them.
        p50, p90, p99 = np.percentile(durations, [50, 90, 99]) / 1e6
        found.update(
            latency_mean_ms=float(durations.mean()) / 1e6,
            latency_std_ms=float(durations.std(ddof=1)) / 1e6 if durations.size > 1 else 0.0,
            latency_p50_ms=float(p50),
            latency_p90_ms=float(p90),
            latency_p99_ms=float(p99),
        )
    return found


def _resources(slices: Sequence[SliceRecord], processors: int, threads: int) -> dict[str, float]:
    wall = sum(part["wall_s"] for part in slices)
    cpu = sum(part["cpu_s"] for part in slices)
    busy = sum(part["machine_busy_s"] for part in slices)
    return {
        "cpu_percent": 100 * cpu / wall / processors,
        "cpu_percent_of_threads": 100 * cpu / wall / threads,
        "foreign_cpu_percent": 100 * max(0.0, busy - cpu) / wall / processors,
        "peak_memory_mb": max(part["peak_bytes"] for part in slices) / MB,
    }


def _baseline_of(record: StudyRecord, lane: LaneRecord) -> LaneRecord | None:
    """The identity lane of the same workload and precision (there is one: the study adds it)."""
    for other in record.lanes.values():
        one, two = other.lane, lane.lane
        if one.compiler == BASELINE and (one.workload, one.precision) == (two.workload, two.precision):
            return other
    return None


def _compare(lane: LaneRecord, baseline: LaneRecord | None, companions: Mapping[str, Sequence[SliceRecord]]) -> None:
    """Add what needs other cells: the baseline's, or the lane's own at batch size 1."""
    scaling = _scaling(lane)
    baseline_scaling = _scaling(baseline) if baseline is not None else {}
    for batch, cell in lane.cells.items():
        if batch in scaling:
            rtr, ase = scaling[batch]
            _put(cell, "rtr", rtr)
            _put(cell, "ase", ase)
            if batch in baseline_scaling:
                _put(cell, "bsr", _ratio(ase, baseline_scaling[batch][1]))
        other = baseline.cells.get(batch) if baseline is not None else None
        if other is not None and cell.samples:
            _speedup(cell, other, companions.get(other.id, ()))


def _speedup(cell: CellRecord, baseline: CellRecord, companions: Sequence[SliceRecord]) -> None:
    """Pair the rounds of both cells. A second identity lane, with other flags, is compared with the first."""
    theirs = {_round(part): part for part in [*companions, *baseline.samples]}
    ours = {_round(part): part for part in cell.samples}
    common = sorted(set(ours) & set(theirs))
    if not common:
        return
    work = _samples_per_call(cell) / _samples_per_call(baseline)
    top, bottom = _durations([theirs[key] for key in common]), _durations([ours[key] for key in common])
    if cell.id == baseline.id:
        estimate = statistics.Estimate(1.0, 1.0, 1.0)
    else:
        estimate = statistics.paired_ratio(top, bottom, _rng(cell.id, "speedup"))
    cell.metrics["speedup"] = estimate.value * work
    cell.metrics["speedup_ci_low"] = estimate.low * work
    cell.metrics["speedup_ci_high"] = estimate.high * work
    reference = baseline.metrics.get("cpu_percent", 0.0)
    if reference > 0:
        cell.metrics["cpu_reduction"] = metrics.cpu_reduction(cell.metrics["cpu_percent"], reference)


Scaled = tuple[float, NDArray[np.float64]]
"""A figure and its bootstrap replicates."""


def _scaling(lane: LaneRecord) -> dict[int, tuple[Scaled, Scaled]]:
    """RTR and ASE by batch size, from median throughputs; empty without a measured batch size 1."""
    measured = {batch: _median_throughput(cell) for batch, cell in sorted(lane.cells.items()) if cell.samples}
    if 1 not in measured:
        return {}
    one, ones = measured[1]
    found = {}
    for batch, (value, values) in measured.items():
        rtr = (metrics.relative_throughput_rate(value, one), metrics.relative_throughput_rate(values, ones))
        ase = (
            metrics.absolute_scaling_efficiency(value, one, batch),
            metrics.absolute_scaling_efficiency(values, ones, batch),
        )
        found[batch] = (rtr, ase)
    return found


def _median_throughput(cell: CellRecord) -> Scaled:
    slices, per_second = _durations(cell.samples), _samples_per_call(cell) * NS
    replicates = per_second / statistics.median_duration_replicates(slices, _rng(cell.id, "median"))
    return per_second / float(np.median(np.concatenate(slices))), replicates


def _ratio(ase: Scaled, baseline: Scaled) -> Scaled:
    return (
        metrics.batch_scaling_resilience(ase[0], baseline[0]),
        metrics.batch_scaling_resilience(ase[1], baseline[1]),
    )


def _put(cell: CellRecord, name: str, scaled: Scaled) -> None:
    value, replicates = scaled
    low, high = statistics.interval(replicates)
    cell.metrics[name] = value
    # A median of resampled medians need not straddle the median of all samples; an interval does.
    cell.metrics[f"{name}_ci_low"], cell.metrics[f"{name}_ci_high"] = min(low, value), max(high, value)


def _samples_per_call(cell: CellRecord) -> float:
    return cell.batch * cell.ready.get("requests", 1)


def _durations(slices: Sequence[SliceRecord]) -> list[NDArray[np.float64]]:
    return [np.asarray(part["durations_ns"], dtype=np.float64) for part in slices]


def _round(part: SliceRecord) -> tuple[int, int]:
    return part["session"], part["round"]


def _rng(cell: str, purpose: str) -> np.random.Generator:
    """The same cell gives the same interval on every machine and in every process."""
    return np.random.default_rng(zlib.crc32(f"{cell}/{purpose}".encode()))
