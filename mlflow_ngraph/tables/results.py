"""The tidy table of a study: one row per cell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from mlflow_ngraph.devices.fingerprint import processor
from mlflow_ngraph.execute.formulas import declared_metrics
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.metrics import COLUMNS, MODEL_COLUMNS
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph.verdicts import Verdict


def from_record(
    record: StudyRecord,
    run_id: str | None = None,
    lane_runs: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Build the table: cells with a verdict, and those skipped for lack of time. ``lane_runs`` are by lane, ``models``
    by engine.
    """
    declared, baseline = declared_metrics(record.study), record.baseline
    rows = [
        {
            **dict.fromkeys(declared, math.nan),  # a metric that no cell has is known all the same
            **_row(record, lane, cell, baseline),
            "custom_metrics": json.dumps(declared, sort_keys=True) if declared else None,
            "run_id": run_id,
            "lane_run_id": (lane_runs or {}).get(lane.lane.id),
            "model_id": (models or {}).get(cell.engine or ""),
        }
        for lane in record.lanes.values()
        for _, cell in sorted({**dict(_left_out(record, lane)), **lane.cells}.items())
    ]
    return typed(pd.DataFrame(rows), COLUMNS)


def _left_out(record: StudyRecord, lane: LaneRecord) -> Iterator[tuple[int, CellRecord]]:
    """Cells that were skipped for lack of time. Other missing cells cannot be the best."""
    for name, cell in record.left_out.items():
        if cell["lane"] == lane.lane.id and not cell["final"]:
            yield cell["batch"], CellRecord(name, lane.lane.id, cell["batch"], Verdict.LEFT_OUT, cell["reason"])


def _row(record: StudyRecord, lane: LaneRecord, cell: CellRecord, baseline: str) -> dict[str, Any]:
    info = record.workloads.get(lane.lane.workload, {}).get("info", {})
    engine = lane.engine_of(cell)
    return {
        "study_id": record.id,
        "study": record.name,
        "device": lane.lane.device,
        "fingerprint": record.fingerprint.get("digest"),
        "processor": processor(record.fingerprint) or None,
        "workload": lane.lane.workload,
        "content": record.content(lane.lane.workload),
        "label": lane.lane.label,
        "family": lane.lane.family,
        "compiler": lane.lane.compiler,
        "compiler_label": lane.lane.compiler_label,
        "flags": json.dumps(lane.flags_in_force(cell.batch), sort_keys=True),
        "precision": lane.lane.precision,
        "precision_in_force": cell.precision_in_force,
        "mode": lane.lane.mode,
        "baseline": baseline,
        "reference_by": record.reference_by(lane.lane.workload),
        "threads": lane.lane.threads,
        "batch": cell.batch,
        "verdict": str(cell.verdict),
        "reason": cell.reason,
        "noise": cell.noise or None,
        "variables": cell.environment or None,
        "unsteady": ",".join(cell.unsteady) or None,
        "beaten_by": _beaten_by(record, cell),
        "engine": cell.engine,
        "engine_reused": engine.reused.study_id if engine is not None and engine.reused is not None else None,
        "lane": lane.lane.id,
        "cell": cell.id,
        "started_at": record.started_at,
        "finished_at": cell.finished_at,
        "log_medians": json.dumps(cell.log_medians) if cell.log_medians else None,
        **{name: info.get(name) for name in MODEL_COLUMNS},
        **cell.metrics,
    }


def _beaten_by(record: StudyRecord, cell: CellRecord) -> str | None:
    """The cell that eliminated a cell from a race. Latencies of different batch sizes say nothing about throughput."""
    rival: str | None = cell.left.get("rival")
    beside = {lane.lane.cell(cell.batch) for lane in record.lanes.values()}
    return rival if rival in beside or record.study.get("objective") == "throughput" else None
