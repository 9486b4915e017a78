"""What a visitor of the page wants to see, as the address of the page says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from mlflow_ngraph.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from werkzeug.datastructures import MultiDict

CHOSEN = {
    "experiment": "experiment_id",
    "device": "device",
    "compiler": "compiler_label",
    "precision": "precision",
    "workload": "workload",
}
"""What can be chosen, and the column of the results that it is looked for in."""
GROUPS = {"device": ("workload", "device"), "workload": ("workload",)}
"""Within what the best is marked: of each workload on each device, or of each workload wherever it ran."""


@dataclass(frozen=True)
class Query:
    """What is compared, and how it is shown."""

    chosen: dict[str, tuple[str, ...]]
    """Values by the names in `CHOSEN`; all where there are none."""
    metric: str = "throughput"
    baseline: str | None = None
    """The compiler, with its flags, that all are divided by; ``identity`` or nothing when left out."""
    batch: int | None = None
    """The batch size of maps and tables; the one that most models run fastest at when left out."""
    best_of: str = "device"
    everything: bool = False
    """Whether numbers count that are not ``ok``."""

    @classmethod
    def of(cls, given: MultiDict[str, str]) -> Query:
        """The question that the query of an address asks.

        Raises
        ------
        UsageError
            Something is not of its kind.
        """
        batch = given.get("batch")
        if batch and not batch.isdecimal():
            raise UsageError(f"batch: expected a whole number, found {batch!r}")
        best_of = given.get("best") or "device"
        if best_of not in GROUPS:
            raise UnknownNameError("group to mark the best of", best_of, GROUPS)
        return cls(
            chosen={name: tuple(dict.fromkeys(given.getlist(name))) for name in CHOSEN},
            metric=given.get("metric") or "throughput",
            baseline=given.get("baseline") or None,
            batch=int(batch) if batch else None,
            best_of=best_of,
            everything=given.get("all") == "1",
        )

    def fits(self, frame: pd.DataFrame, *, but: str = "") -> pd.DataFrame:
        """The rows that are meant.

        Parameters
        ----------
        but : str
            A name in `CHOSEN` that does not count.

        Raises
        ------
        UnknownNameError
            Nothing has a value that is chosen.
        """
        mask = pd.Series(True, frame.index)
        for name, values in self._chosen(but):
            column = frame[CHOSEN[name]]
            known = set(column.dropna())
            for value in values:
                if value not in known:
                    raise UnknownNameError(name, value, known)
            mask &= column.isin(values)
        rows: pd.DataFrame = frame[mask]
        return rows

    def _chosen(self, but: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        return ((name, values) for name, values in self.chosen.items() if values and name != but)
