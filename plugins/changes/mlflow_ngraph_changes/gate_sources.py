"""Load results of a gate's sides: a run, a study or the one before it, a model, a commit, or a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.analysis import results, study_names
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.errors import TrackingError, UnknownNameError, UsageError
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, TABLE, reciprocal_of
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph_changes.gate import Side

FORMS = "the id of a run, models:/NAME@ALIAS, commit:SHA, the name of a study (NAME~1 is the one before the latest), or a file of results (.parquet, .csv, .json)"
_ENDINGS = (".parquet", ".csv", ".json")
_COMPARED = ("value", "metric", "cell", "verdict")
"""Columns of a file from `compare`, absent from the tidy table."""


def load(text: str, tracking_uris: Sequence[str] | None, everything: Callable[[], pd.DataFrame]) -> Side:
    """Load results by name.

    ``tracking_uris`` are the servers to search, MLflow's default when left out. ``everything`` reads all results of the
    servers, and is called only as a last resort. Raises `UsageError` if it names nothing or the file cannot be read,
    and `TrackingError` if a server cannot be reached or does not have it.
    """
    if is_file(text):
        return Side(text, of_file(Path(text)))
    if text.startswith("commit:"):
        return Side(text, _of_commit(text.removeprefix("commit:"), everything()))
    if text.startswith("models:/"):
        return Side(text, _first(tracking_uris, lambda uri: _of_model(text, uri)), model=True)
    if study_names.RUN_ID.fullmatch(text):
        return Side(text, _first(tracking_uris, lambda uri: _of_run(text, uri)))
    frame = everything()
    named = study_names.find(frame, text)
    if named is None:
        raise UsageError(f"{text!r} names no results: write {FORMS}")
    shown = text if text == named.study_id else f"{text} ({named.text})"
    return Side(shown, frame[frame["run_id"] == named.run_id].reset_index(drop=True))


def before(candidate: Side, everything: pd.DataFrame) -> Side:
    """Results of the previous study on the candidate's machine.

    Raises `UsageError` if it is no single study, or there is none before it.
    """
    ids = set(candidate.frame["study_id"].dropna()) if "study_id" in candidate.frame else set()
    if candidate.model or len(ids) != 1:
        raise UsageError(f"{candidate.name} is no study that has one before it: name a --baseline")
    named = study_names.before(everything, ids.pop())
    if named is None:
        raise UsageError(
            f"no study before {candidate.name} is of the same name and machine: measure it again, or name a --baseline"
        )
    return Side(
        f"the one before ({named.study_id})",
        everything[everything["run_id"] == named.run_id].reset_index(drop=True),
    )


def is_file(text: str) -> bool:
    """Tell if the text names a file of results."""
    return Path(text).suffix in _ENDINGS


def of_file(path: Path) -> pd.DataFrame:
    """Read a file: the tidy table, or the JSON or Parquet output of ``compare``.

    Raises `UsageError` if it cannot be read, or has no results in it.
    """
    if not path.is_file():
        raise UsageError(f"cannot read results from {path}: there is no such file")
    try:
        frame = _READERS[path.suffix](path)
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())[:200]
        raise UsageError(f"cannot read results from {path}: {why}") from error
    if set(_COMPARED) <= set(frame.columns):
        return _of_comparison(path, frame)
    if not {"cell", "verdict", "device", "workload", "batch"} <= set(frame.columns):
        hint = "; compare writes cells into JSON and Parquet, not into CSV" if path.suffix == ".csv" else ""
        raise UsageError(f"{path} has no results: expected results.parquet of a study, or a file of compare{hint}")
    try:
        return typed(frame, TABLE)
    except (ValueError, TypeError) as error:
        raise UsageError(f"cannot read results from {path}: {' '.join(str(error).split())[:200]}") from error


def _of_comparison(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the output of `compare` to rows of the tidy table."""
    if "relative_to" in frame and frame["relative_to"].notna().any():
        raise UsageError(f"{path} has ratios to {frame['relative_to'].dropna().iloc[0]}: compare without --relative-to")
    metric = str(frame["metric"].iloc[0]) if len(frame) else "throughput"
    # A metric with the error of its reciprocal is written with that error, too.
    source = reciprocal_of(metric)
    names = {
        "value": metric,
        "ci_low": source + LOW,
        "ci_high": source + HIGH,
        "log_se": source + LOG_ERROR,
        "df": source + FREEDOM,
    }
    values = frame.rename(columns=names).drop(
        columns=["metric", "unit", "relative_to", "best", "tied"], errors="ignore"
    )
    values = values.reindex(columns=list(dict.fromkeys([*values.columns, *names.values(), "fingerprint"])))
    numbers: pd.DataFrame = values.assign(**{name: pd.to_numeric(values[name]) for name in names.values()})
    return numbers


def _json(path: Path) -> pd.DataFrame:
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict) and "values" in content:
        about = {name: content.get(name) for name in ("metric", "unit", "relative_to")}
        content = [{**value, **about} for value in content["values"]]
    if not isinstance(content, list):
        raise TypeError("expected a list of cells, or what compare --json prints")
    frame: pd.DataFrame = pd.DataFrame(content)
    return frame


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": pd.read_parquet,
    ".csv": lambda path: pd.read_csv(path, low_memory=False),
    ".json": _json,
}


def _of_commit(sha: str, everything: pd.DataFrame) -> pd.DataFrame:
    fits = everything["git_commit"].astype("string").str.startswith(sha).fillna(False).astype(bool)
    if not sha or not fits.any():
        raise UnknownNameError("git commit", sha, set(everything["git_commit"].dropna()))
    rows: pd.DataFrame = everything[fits].reset_index(drop=True)
    return rows


def _of_run(run_id: str, uri: str | None) -> pd.DataFrame:
    frame = results.select(Selection(), uri, run=run_id)
    if frame.empty:
        raise TrackingError(f"run {run_id} has no results: name the run of a study, or one of its lane runs")
    lane = frame[frame["lane_run_id"] == run_id]
    rows: pd.DataFrame = (lane if len(lane) else frame).reset_index(drop=True)
    return rows


def _of_model(text: str, uri: str | None) -> pd.DataFrame:
    from mlflow_ngraph.tracking import connection, download

    remote = download.locate(text, connection.resolve_uri(uri))
    if not remote.run_id:
        raise TrackingError(f"{text}: engine {remote.model_id} does not say which run measured it")
    frame = results.select(Selection(), uri, run=remote.run_id)
    rows: pd.DataFrame = frame[frame["model_id"] == remote.model_id].reset_index(drop=True)
    if rows.empty:
        raise TrackingError(f"{text}: no results of engine {remote.model_id} in run {remote.run_id}")
    return rows


def _first(uris: Sequence[str] | None, ask: Callable[[str | None], pd.DataFrame]) -> pd.DataFrame:
    problem: TrackingError | None = None
    for uri in [None] if uris is None else uris:
        try:
            return ask(uri)
        except TrackingError as error:
            problem = problem or error
    assert problem is not None
    raise problem
