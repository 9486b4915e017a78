"""Download a recorded study, recompute its figures from raw samples, and compare them with the stored ones."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.analysis import listing, study_names
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.errors import JournalError, TrackingError
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables import arrivals, results, samples
from mlflow_ngraph.tracking import artifact_stores, connection
from mlflow_ngraph.tracking.schema import Artifact, Tag

NEEDED = (Artifact.JOURNAL, Artifact.SAMPLES, Artifact.RESULTS)


@dataclass(frozen=True)
class Recomputed:
    """Result of a recomputation."""

    study_id: str
    run_id: str
    cells: int
    figures: int
    """Number of compared figures."""
    samples: int
    finished: bool
    """False where the journal ends before the study does."""
    differences: pd.DataFrame
    """Figures that differ in any bit: ``cell``, ``figure``, ``stored``, ``recomputed``."""


def recompute(run: str, tracking_uri: str | None = None) -> Recomputed:
    """Derive the metrics of a study run from its raw samples, and compare them with the stored ones.

    ``run`` is the id of a study run or lane run, or a study, as `study_names.run_of` takes it. Raises `TrackingError`
    if the server cannot be reached, or the run lacks what is needed, or its files are not those that a study wrote: a
    line of the journal does not check, or the table is not the one that the run's tags speak of.
    """
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        run_id = fetch(run, directory, tracking_uri)
        try:
            record = replay.load(directory)
        except JournalError as error:
            raise TrackingError(f"run {run_id}: {str(error).replace(str(directory) + os.sep, '')}") from error
        stored, taken, offered = (
            table(run_id, directory / name) for name in (Artifact.RESULTS, Artifact.SAMPLES, Artifact.ARRIVALS)
        )
    return _compare(record, run_id, stored, taken, offered)


def fetch(run: str, target: Path, tracking_uri: str | None = None) -> str:
    """Download journal, samples and results of a study run, with its rates if any; return its id. See `recompute`."""
    uri = connection.resolve_uri(tracking_uri)
    client = connection.reach(uri)
    run_id, _ = study_names.run_of(run, tracking_uri)
    with connection.talking(uri, "read the samples", connection.RECORDING):
        study = listing.study_run(client, run_id)
        run_id = str(study.info.run_id)
        present = artifact_stores.run_files(client, run_id, study.info.artifact_uri, uri)
        missing = [name for name in NEEDED if name not in present]
        if missing:
            raise TrackingError(f"run {run_id} has no {' and no '.join(missing)}: name the run of a finished study")
        for name in (*NEEDED, *({Artifact.ARRIVALS} & present)):
            (target / name).write_bytes(artifact_stores.run_file(study.info.artifact_uri, name, uri))
    if sha256(target / Artifact.RESULTS) != study.data.tags.get(Tag.RESULTS_SHA256):
        raise TrackingError(
            f"run {run_id}: {Artifact.RESULTS} is not the file whose digest the run's tags tell: nothing follows from it"
        )
    return run_id


def table(run_id: str, path: Path) -> pd.DataFrame:
    """Read a recorded table; an empty one of rates where none were measured.

    Raises `TrackingError`, which names the run, if it is not readable.
    """
    stored: pd.DataFrame = pd.DataFrame(columns=list(arrivals.COLUMNS))
    if not path.is_file():
        return stored
    try:
        stored = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TrackingError(f"run {run_id}: {path.name} is not readable: {' '.join(str(error).split())}") from error
    return stored


def _compare(
    record: StudyRecord, run_id: str, stored: pd.DataFrame, taken: pd.DataFrame, offered: pd.DataFrame
) -> Recomputed:
    again = results.from_record(record)
    figures = sorted({name for lane in record.lanes.values() for cell in lane.cells.values() for name in cell.metrics})
    recorded, computed = (frame.set_index("cell").reindex(columns=figures) for frame in (stored, again))
    recorded, computed = recorded.align(computed)
    differs = (recorded != computed) & ~(recorded.isna() & computed.isna())
    rows = [
        {"cell": cell, "figure": name, "stored": recorded.loc[cell, name], "recomputed": computed.loc[cell, name]}
        for cell, name in differs.stack()[lambda marks: marks].index
    ]
    own = set(stored["cell"])
    rows += [
        {"cell": cell, "figure": "cells", "stored": cell in own, "recomputed": cell not in own}
        for cell in sorted(own ^ set(again["cell"]))
    ]
    rows += _sample_differences(record, taken)
    rates = arrivals.from_record(record)
    rows += arrivals.differences(offered, rates)
    return Recomputed(
        study_id=record.id,
        run_id=run_id,
        cells=len(computed),
        figures=int(computed.notna().to_numpy().sum() + rates[list(arrivals.FIGURES)].notna().to_numpy().sum()),
        samples=len(taken),
        finished=record.finished_at is not None,
        differences=pd.DataFrame(rows, columns=["cell", "figure", "stored", "recomputed"]),
    )


def _sample_differences(record: StudyRecord, taken: pd.DataFrame) -> list[dict[str, object]]:
    stored, journalled = (
        frame.groupby("cell")["duration_ns"].agg(list).to_dict() for frame in (taken, samples.from_record(record))
    )
    return [
        {"cell": cell, "figure": "samples", "stored": len(stored.get(cell, [])), "recomputed": len(values)}
        for cell, values in journalled.items()
        if stored.get(cell) != values
    ]
