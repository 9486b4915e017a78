"""Query: parses the page's filters, metric, baseline and batch from its address, and selects matching rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from mlflow_ngraph.errors import UsageError, require_known

if TYPE_CHECKING:
    from werkzeug.datastructures import MultiDict

CHOSEN = {
    "experiment": "experiment_id",
    "device": "device",
    "compiler": "compiler_label",
    "precision": "precision",
    "workload": "workload",
}
"""Criteria, with their columns of the results."""
GROUPS = {"device": ("workload", "device"), "workload": ("workload",)}
"""Groups within which the best is marked: workload on a device, or workload anywhere."""


@dataclass(frozen=True)
class Query:
    """Choice of cells and of their presentation."""

    chosen: dict[str, tuple[str, ...]]
    """Values by the names in `CHOSEN`; empty means all."""
    metric: str = "throughput"
    baseline: str | None = None
    """Compiler with flags to divide by; ``identity`` or none when left out."""
    batch: int | None = None
    """Batch size of maps and tables; by default the one at which most models run fastest."""
    best_of: str = "device"
    everything: bool = False
    """Include numbers that are not ``ok``."""

    @classmethod
    def of(cls, given: MultiDict[str, str]) -> Query:
        """Parse the query of an address. Raises `UsageError` if something is not of its kind."""
        batch = given.get("batch")
        if batch and not batch.isdecimal():
            raise UsageError(f"batch: expected a whole number, found {batch!r}")
        best_of = given.get("best") or "device"
        require_known("group to mark the best of", [best_of], GROUPS)
        return cls(
            chosen={name: tuple(dict.fromkeys(given.getlist(name))) for name in CHOSEN},
            metric=given.get("metric") or "throughput",
            baseline=given.get("baseline") or None,
            batch=int(batch) if batch else None,
            best_of=best_of,
            everything=given.get("all") == "1",
        )

    def select(self, frame: pd.DataFrame, *, but: str = "") -> pd.DataFrame:
        """Select the matching rows, ignoring the criterion ``but``.

        Raises `UnknownNameError` if nothing has a value that is chosen.
        """
        mask = pd.Series(True, frame.index)
        for name, values in self._chosen(but):
            column = frame[CHOSEN[name]]
            known = set(column.dropna())
            require_known(name, values, known)
            mask &= column.isin(values)
        rows: pd.DataFrame = frame[mask]
        return rows

    def _chosen(self, but: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        return ((name, values) for name, values in self.chosen.items() if values and name != but)
