"""Data frame of the raw samples of a study record: one row per timed iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.execute.record import CellRecord, StudyRecord

SLICE_COLUMNS = {
    "session": "Int64",
    "round": "Int64",
    "position": "Int64",
    "loading": "Int64",
    "started_ns": "Int64",
    "wall_s": "float64",
    "requests": "Int64",
    "peak_bytes": "Int64",
    "page_faults": "Int64",
}
"""Columns shared by the iterations of a slice."""
WINDOW_COLUMNS = {"watched_s": "seconds", "cpu_s": "cpu_s"}
"""Interval of the machine's sensors, and the CPU time of the lane's process in it; named as in the journal."""
MACHINE_COLUMNS = (
    *WINDOW_COLUMNS,
    "machine_busy_s",
    "clock_mhz",
    "temperature_c",
    "gpu_clock_mhz",
    "gpu_temperature_c",
    "stolen_s",
    "throttled",
    "swapped_mb",
)
"""Readings of the machine's sensors during the slice; missing without such a sensor."""
COLUMNS = ("study_id", "lane", "cell", "batch", *SLICE_COLUMNS, *MACHINE_COLUMNS, "repetition", "duration_ns")


def from_record(record: StudyRecord) -> pd.DataFrame:
    """Every timed iteration of every cell, in the order of measurement."""
    frames = [
        _slice(record.id, cell, taken)
        for lane in record.lanes.values()
        for _, cell in sorted(lane.cells.items())
        for taken in cell.samples
    ]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))
    frame = frame.reindex(columns=list(COLUMNS))
    frame["repetition"] = frame.groupby("cell").cumcount()
    types = {**dict.fromkeys(("study_id", "lane", "cell"), "string"), **SLICE_COLUMNS}
    types.update(dict.fromkeys(MACHINE_COLUMNS, "float64"))
    types.update(dict.fromkeys(("batch", "repetition", "duration_ns"), "int64"))
    typed: pd.DataFrame = frame.astype(types)
    return typed


def _slice(study_id: str, cell: CellRecord, taken: dict[str, Any]) -> pd.DataFrame:
    common = {"study_id": study_id, "lane": cell.lane, "cell": cell.id, "batch": cell.batch}
    common.update({name: taken.get(name) for name in SLICE_COLUMNS}, requests=cell.ready.get("requests", 1))
    machine = taken.get("machine", {})
    common.update({name: machine.get(said) for name, said in WINDOW_COLUMNS.items()})
    common.update(machine.get("values", {}), **machine.get("counted", {}))
    frame: pd.DataFrame = pd.DataFrame({**common, "duration_ns": np.asarray(taken["durations_ns"], np.int64)})
    return frame
