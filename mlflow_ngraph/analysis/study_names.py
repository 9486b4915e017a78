"""Look up study runs by name, id or ``NAME~1``, and the study before one; leave out imported studies."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd

from mlflow_ngraph import home
from mlflow_ngraph.analysis import results
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.execute.study_directories import counted_back, too_few
from mlflow_ngraph.text import counted

RUN_ID = re.compile(r"[0-9a-f]{32}")
COLUMNS = ("study", "study_id", "run_id", "device", "experiment", "started_at")
"""Needed columns of the tidy table."""


@dataclass(frozen=True)
class NamedStudy:
    """Study run behind a name."""

    run_id: str
    study_id: str
    runs: int
    """Number of studies with the name."""
    back: int = 0
    """Number of later ones."""

    @property
    def text(self) -> str:
        place = f"{self.back} before the latest" if self.back else "the latest"
        return f"{f'{place} of {self.runs} studies, ' if self.runs > 1 else ''}{self.study_id}"


def run_of(named: str, tracking_uri: str | None = None) -> tuple[str, str]:
    """Find a run by its id or by a study, and describe the choice.

    Raises `UsageError` if no study has this name or it is ambiguous, and `TrackingError` if the server cannot be
    reached.
    """
    if RUN_ID.fullmatch(named):
        return named, named
    frame = results.select(Selection(), tracking_uri, columns=COLUMNS)
    study = find(frame, named)
    if study is None:
        raise UnknownNameError("study", named, set(frame["study"].dropna()))
    return study.run_id, f"{named} ({study.text})"


def find(frame: pd.DataFrame, name: str) -> NamedStudy | None:
    """Find a study by id, or the latest of a name, or with ``~1`` the one before; None if no result matches.

    Others may record under any name and id. Experiments to which this machine recorded such a study come before theirs.

    Raises `UsageError` if studies of this name are of several devices or experiments, or not so many.
    """
    stem, back = counted_back(name)
    fits = (frame["study"] == stem) | (frame["study_id"] == name)
    rows = frame[fits.fillna(False)].sort_values("started_at", kind="stable").drop_duplicates("run_id", keep="last")
    if rows.empty:
        return None
    if rows["experiment"].nunique() > 1 or rows["study_id"].duplicated().any():
        mine = rows["run_id"].isin(list(study_directories.recorded(home.location())))
        own = rows.loc[mine, "experiment"]
        rows = rows[rows["experiment"].isin(own)] if len(own) else rows
        mine = mine.loc[rows.index]
        # A copy of a study run has the id of its study.
        copies = rows["study_id"].isin(rows.loc[mine, "study_id"]) & ~mine
        rows = rows[~copies].drop_duplicates(["study_id", "experiment"], keep="first")
    for column in ("device", "experiment"):
        newest = rows.drop_duplicates(column, keep="last")
        if len(newest) > 1:
            known = "study_id" if newest["study_id"].is_unique else "run_id"
            ids = ", ".join(f"{row[column]}: {row[known]}" for row in newest.to_dict("records"))
            raise UsageError(
                f"studies named {name!r} are of several {column}s: name one by its id; the latest ones are {ids}"
            )
    if back >= len(rows):
        raise too_few(name, len(rows))
    last = rows.iloc[-1 - back]
    return NamedStudy(str(last["run_id"]), str(last["study_id"]), len(rows), back)


def without_imported(frame: pd.DataFrame, named: Collection[str]) -> tuple[pd.DataFrame, str]:
    """Leave out studies that this home has from archives, except those named by an id; says so, or empty.

    They are recorded beside the studies of this home, and may have their names.
    """
    marks = (home.location() / "studies").glob(f"*/{home.IMPORTED_FROM}")
    theirs = frame["study_id"].isin([mark.parent.name for mark in marks])
    theirs &= ~(frame["study_id"].isin(named) | frame["run_id"].isin(named))
    if not theirs.any():
        return frame, ""
    count = counted(int(frame.loc[theirs, "study_id"].nunique()), "imported study is", "imported studies are")
    rows: pd.DataFrame = frame[~theirs].reset_index(drop=True)
    return rows, f"{count} left out: to take one in, name it by its id"


def before(frame: pd.DataFrame, study_id: str) -> NamedStudy | None:
    """Previous study of the same name, device and experiment; None without one."""
    rows = frame.sort_values("started_at", kind="stable").drop_duplicates("study_id", keep="last")
    known = rows[rows["study_id"] == study_id]
    if known.empty:
        return None
    own = known.iloc[0]
    alike = rows[(rows[["study", "device", "experiment"]] == own[["study", "device", "experiment"]]).all(axis=1)]
    earlier = alike[alike["started_at"] < own["started_at"]]
    if earlier.empty:
        return None
    last = earlier.iloc[-1]
    return NamedStudy(str(last["run_id"]), str(last["study_id"]), len(alike), len(alike) - len(earlier))
