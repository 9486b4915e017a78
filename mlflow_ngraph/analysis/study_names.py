"""A study by its name: the latest run of that name, where it is clear which one is meant."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from mlflow_ngraph.errors import UsageError

COLUMNS = ("study", "study_id", "run_id", "device", "experiment", "started_at")
"""The columns of the tidy table that are looked at."""


@dataclass(frozen=True)
class Named:
    """The study run that a name means."""

    run_id: str
    study_id: str
    runs: int
    """How many studies have the name."""

    @property
    def said(self) -> str:
        """Which one was taken."""
        return f"{'the latest of ' + str(self.runs) + ' studies, ' if self.runs > 1 else ''}{self.study_id}"


def find(frame: pd.DataFrame, name: str) -> Named | None:
    """The latest study of this name or id; None where no result is of one.

    Raises
    ------
    UsageError
        Studies of this name are of several devices or experiments.
    """
    fits = (frame["study"] == name) | (frame["study_id"] == name)
    rows = frame[fits.fillna(False)].sort_values("started_at", kind="stable").drop_duplicates("study_id", keep="last")
    if rows.empty:
        return None
    for column in ("device", "experiment"):
        newest = rows.drop_duplicates(column, keep="last")
        if len(newest) > 1:
            ids = ", ".join(f"{row[column]}: {row['study_id']}" for row in newest.to_dict("records"))
            raise UsageError(
                f"studies named {name!r} are of several {column}s: name one by its id; the latest ones are {ids}"
            )
    last = rows.iloc[-1]
    return Named(str(last["run_id"]), str(last["study_id"]), len(rows))
