"""Compute the metrics that a study declares, with intervals: formulas over metrics of a cell and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from mlflow_ngraph.estimates import quantile
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.expressions import Expression
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, METRICS
from mlflow_ngraph.study import WorkloadChoice
from mlflow_ngraph.study_metrics import FACTS, CustomMetric


def add(record: StudyRecord, lanes: Iterable[LaneRecord]) -> None:
    """Add the declared metrics to each cell of these lanes."""
    declared = {name: CustomMetric(**said) for name, said in (record.study.get("metrics") or {}).items()}
    if not declared:
        return
    names = _names(record)
    for lane in lanes:
        called = names.get(lane.lane.workload, ())
        for cell in lane.cells.values():
            facts = _facts(record, lane, cell)
            for name, metric in declared.items():
                cell.metrics.update(_figures(name, metric, {**facts, **metric.constants_for(called)}, cell.metrics))
                if name in cell.metrics and set(Expression(metric.expression).names).intersection(cell.unsteady):
                    cell.unsteady += (name,)


def declared_metrics(study: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Formula, unit and direction of the metrics that a study declares."""
    keys = ("expression", "unit", "better")
    return {name: {key: str(said[key]) for key in keys} for name, said in (study.get("metrics") or {}).items()}


def _figures(
    name: str, metric: CustomMetric, constants: Mapping[str, float], measured: Mapping[str, float]
) -> dict[str, float]:
    """The metric with its interval, if it has one; empty when a number is missing."""
    formula = Expression(metric.expression)
    value = formula.value({**measured, **constants})
    if math.isnan(value):
        return {}
    uncertain = [operand for operand in formula.names if operand not in constants and operand in METRICS]
    if len(uncertain) != 1:
        return {name: value}
    # A monotone formula of one figure maps the ends of its interval to the ends of the result.
    source = uncertain[0]
    ends = [
        formula.value({**measured, **constants, source: measured.get(end, math.nan)}) for end in METRICS[source].ends
    ]
    low, high = sorted(ends) if not any(map(math.isnan, ends)) else (math.nan, math.nan)
    if not low <= value <= high:
        return {name: value}
    figures = {name: value, name + LOW: low, name + HIGH: high}
    freedom = measured.get(source + FREEDOM, math.nan)
    if low > 0 and freedom > 0:
        figures[name + LOG_ERROR] = (math.log(high) - math.log(low)) / 2 / float(quantile(freedom))
        figures[name + FREEDOM] = freedom
    return figures


def _facts(record: StudyRecord, lane: LaneRecord, cell: CellRecord) -> dict[str, float]:
    """Constants known about a cell without measuring it."""
    info = record.workloads.get(lane.lane.workload, {}).get("info", {})
    known = {**{name: info.get(name) for name in FACTS}, "batch": cell.batch, "threads": lane.lane.threads}
    return {name: float(value) for name, value in known.items() if value is not None}


def _names(record: StudyRecord) -> dict[str, tuple[str, ...]]:
    """Names of each workload in the study; a plan keeps the study's order."""
    called = [WorkloadChoice(**choice).names for choice in record.study["workloads"]]
    workloads = list(dict.fromkeys(lane.lane.workload for lane in record.lanes.values()))
    return dict(zip(workloads, called, strict=True)) if len(workloads) == len(called) else {}
