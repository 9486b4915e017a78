"""Results of a study's cells: counts, faults, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph.text import rounded
from mlflow_ngraph.verdicts import Verdict

RIGHT = (Verdict.OK, Verdict.UNSUPPORTED)
"""Verdicts that are no fault: a compiler may say that it does not have something."""


def cells(record: StudyRecord) -> Iterator[tuple[LaneRecord, CellRecord]]:
    """Cells with a verdict."""
    for lane in record.lanes.values():
        for cell in lane.cells.values():
            yield lane, cell


def planned(record: StudyRecord) -> int:
    """Number of cells of the study."""
    return sum(len(lane.lane.batch_sizes) for lane in record.lanes.values())


def faults(record: StudyRecord) -> list[str]:
    """The cells that are neither right nor unsupported, each with its reason."""
    return [
        f"{lane.lane.label} {lane.lane.compiler_label} b{cell.batch} {cell.verdict}: {cell.reason}"
        for lane, cell in cells(record)
        if cell.verdict not in RIGHT
    ]


def counted(record: StudyRecord) -> str:
    """Summary such as ``3 ok, 1 unsupported of 6 cells``."""
    verdicts = Counter(str(cell.verdict) for _, cell in cells(record))
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common()) or "none"
    return f"{counts} of {planned(record)} cells"


def table(record: StudyRecord, heading: str) -> Sheet:
    """A row a cell, with its error against the baseline and its speed."""
    return Sheet(
        heading,
        ("workload", "compiler", "batch", "verdict", "largest relative error", "samples/s", "remarks"),
        [
            [
                lane.lane.label,
                lane.lane.compiler_label,
                cell.batch,
                cell.verdict,
                cell.parity and f"{cell.parity.max_rel:.1e}",
                rounded(cell.metrics.get("throughput")) or None,
                cell.remarks,
            ]
            for lane, cell in cells(record)
        ],
    )
