"""Read study runs, deleted lane runs and LoggedModels from MLflow's SQLite file, without importing MLflow.

Nothing is written, and nothing kept: each question is one transaction on the file, and on its write-ahead log, so what
somebody has just committed is in the answer. A file that is no database of MLflow's, is laid out in another way or has
workspaces raises `sqlite3.Error`; MLflow's own client has to be asked then, and says what is wrong.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag

_NEEDS_CLIENT = ("MLFLOW_ENABLE_WORKSPACES", "MLFLOW_WORKSPACE")
"""Variables of workspaces, which show a part of the file; MLflow's client knows which."""
_PATIENCE_S = 20.0
"""Longest wait for a writer of the file, as MLflow has it."""
_COARSE_NS = 2_000_000_000
"""Coarsest time stamps of any file system."""
_ELSEWHERE = "SELECT 1 FROM experiments WHERE workspace != 'default' LIMIT 1"
_STUDIES = """
SELECT run_uuid, experiments.name, experiment_id, artifact_uri, start_time FROM runs JOIN experiments USING (experiment_id)
JOIN tags USING (run_uuid) WHERE key = ? AND value = ? AND runs.lifecycle_stage = 'active'
AND experiments.lifecycle_stage = 'active'
"""
_TAGS = """
SELECT run_uuid, key, value FROM tags WHERE run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value = ?)
"""


@dataclass(frozen=True)
class Row:
    """A study run; deleted ones are left out."""

    run_id: str
    experiment: str
    experiment_id: str
    artifact_uri: str
    tags: dict[str, str]
    started_ms: int


@dataclass(frozen=True)
class Model:
    """A LoggedModel; deleted ones are left out."""

    location: str
    run_id: str | None
    tags: dict[str, str]


def of(tracking_uri: str) -> Path | None:
    """The file that alone makes a store; None where there is none, or where more than the file has a say."""
    path = connection.database_file(tracking_uri)
    if path is None or "?" in tracking_uri or any(os.environ.get(name) for name in _NEEDS_CLIENT):
        return None
    return path if path.is_file() else None


def state(path: Path) -> list[tuple[int, int, int, int, int]] | None:
    """State of a database and its write-ahead log, constant as long as nobody writes; None while one may.

    A file that was written a moment ago could be written again without a change of its times, which are coarse.
    """
    found = []
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-journal")):
        try:
            is_now = part.stat()
        except FileNotFoundError:
            continue
        if part is path or is_now.st_size:  # who reads may leave the others behind, with nothing in them
            found.append((is_now.st_dev, is_now.st_ino, is_now.st_size, is_now.st_mtime_ns, is_now.st_ctime_ns))
    newest = max((time_ns for *_, changed, created in found for time_ns in (changed, created)), default=0)
    return found if found and newest < time.time_ns() - _COARSE_NS else None


def study_runs(path: Path) -> list[Row]:
    """The study runs of all experiments that are not deleted, in no order."""
    kind = (Tag.KIND, Kind.STUDY)
    with _reading(path) as database:
        found = database.execute(_STUDIES, kind).fetchall()
        tags: dict[str, dict[str, str]] = defaultdict(dict)
        for run_id, key, value in database.execute(_TAGS, kind):
            tags[run_id][key] = value or ""
    return [Row(run_id, name, str(place), uri, tags[run_id], at or 0) for run_id, name, place, uri, at in found]


def deleted(path: Path, lane_runs: Collection[str]) -> frozenset[str]:
    """Those of some lane runs that are in MLflow's trash or gone, but for those that another run has taken the place of."""
    with _reading(path) as database:
        left = {run_id for (run_id,) in database.execute("SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'")}
        gone = {*lane_runs} - left
        if not gone:
            return frozenset()
        replaced = database.execute("SELECT run_uuid FROM tags WHERE key = ?", (Tag.RESUMED_BY,))
        return frozenset(gone.difference(run_id for (run_id,) in replaced))


def logged_model(path: Path, model_id: str) -> Model | None:
    """The LoggedModel of this id; None where there is none, or no longer."""
    with _reading(path) as database:
        found = database.execute(
            "SELECT artifact_location, source_run_id FROM logged_models "
            "WHERE model_id = ? AND lifecycle_stage != 'deleted'",
            (model_id,),
        ).fetchone()
        tags = database.execute("SELECT tag_key, tag_value FROM logged_model_tags WHERE model_id = ?", (model_id,))
        if found is None:
            return None
        location, run_id = found
        return Model(location, run_id, {key: value or "" for key, value in tags})


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database at one moment."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_S)) as database:
        database.execute("BEGIN")
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(experiments)")]
        if "workspace" in columns and database.execute(_ELSEWHERE).fetchone():
            raise sqlite3.DataError("it has workspaces")
        yield database
