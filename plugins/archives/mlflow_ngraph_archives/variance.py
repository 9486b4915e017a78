"""Sources of a study's variance, the effect of pairing, and the best length of a slice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.errors import JournalError, TrackingError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.measure.variance import components, slice_length
from mlflow_ngraph.tables import baselines, results, samples
from mlflow_ngraph.tracking.schema import Artifact
from mlflow_ngraph_archives import recompute

LEVELS = ("process", "slice", "repetition")
FIGURES = (
    *(f"{level}_deviation" for level in LEVELS),
    *(f"{level}_of_error" for level in LEVELS),
    *("slice_length", "best_slice_length", "time_at_best", "paired_away"),
)
COLUMNS = ("cell", "workload", "compiler", "batch", *(f"{level}_units" for level in LEVELS), *FIGURES)
_SLICE = ["session", "round"]


def scatter(source: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """Decompose the variance of a study's cells.

    ``source`` is the directory of a study, or the id of a study run or lane run. Raises `JournalError` or
    `TrackingError` if there is no such study, or it cannot be read.

    Returns one row per timed cell: numbers of processes, slices and repetitions; for each of these levels, the standard
    deviation that it adds as a share of a duration, and its share of the variance of the cell's mean (missing where
    unknown); the repetitions of a slice, the number that would be most informative for a given time, and the share of
    the time that it would need for the same error; the share of the variance of the slices' ratio to the baseline that
    shared rounds removed (negative if they added to it).
    """
    taken, cells = _read(source, tracking_uri)
    names = cells.set_index("cell")
    medians = taken.groupby(["cell", *_SLICE])["duration_ns"].median()
    bases = {
        (row.workload, row.batch, row.precision): row.cell
        for row in cells[baselines.labels(cells) == cells["compiler_label"]].itertuples(index=False)
    }
    timed = set(taken["cell"])
    rows = []
    for cell, repetitions in taken.groupby("cell", sort=False):
        name = names.loc[str(cell)]
        baseline = bases.get((name["workload"], name["batch"], name["precision"]))
        compared = baseline is not None and baseline in timed and baseline != cell
        paired = _paired_away(medians.loc[cell], medians.loc[str(baseline)]) if compared else None
        rows.append(
            {
                "cell": cell,
                "workload": name["label"],
                "compiler": name["compiler_label"],
                "batch": name["batch"],
                **_components(repetitions),
                "paired_away": paired,
            }
        )
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(FIGURES, float))
    return table


def _read(source: str, tracking_uri: str | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    if (Path(source) / journal.FILE_NAME).is_file():
        record = replay.load(Path(source))
        return samples.from_record(record), results.from_record(record)
    if Path(source).is_dir():
        raise JournalError(f"{source} is no directory of a study: it has no {journal.FILE_NAME}")
    with tempfile.TemporaryDirectory() as temporary:
        run_id = recompute.fetch(source, Path(temporary), tracking_uri)
        taken, cells = (recompute.table(run_id, Path(temporary, name)) for name in (Artifact.SAMPLES, Artifact.RESULTS))
    if lacking := {"cell", *_SLICE, "loading", "watched_s", "duration_ns"} - set(taken):
        raise TrackingError(f"run {run_id}: {Artifact.SAMPLES} lacks {', '.join(sorted(lacking))}")
    return taken, cells


def _components(repetitions: pd.DataFrame) -> dict[str, Any]:
    slices = repetitions.groupby(_SLICE, sort=False)
    processes = repetitions.groupby(["session", "loading"], sort=False)
    durations = repetitions["duration_ns"].to_numpy(float)
    parts = components(durations, slices.ngroup().to_numpy(np.int64), processes.ngroup().to_numpy(np.int64))
    units = {"process": processes.ngroups, "slice": slices.ngroups, "repetition": len(repetitions)}
    found: dict[str, Any] = {f"{level}_units": count for level, count in units.items()}
    for level, part in parts.items():
        found[f"{level}_deviation"] = None if part is None else part.deviation
        found[f"{level}_of_error"] = None if part is None else part.of_error
    length, each_s = len(repetitions) / slices.ngroups, float(durations.mean()) / 1e9
    beside_s = max(0.0, float((slices["watched_s"].first() - slices["duration_ns"].sum() / 1e9).mean()))
    found["slice_length"] = length
    own = parts["repetition"]
    between = next((part for part in (parts["slice"], parts["process"]) if part is not None), None)
    if own is not None and between is not None:
        best = slice_length(own.deviation, between.deviation, beside_s, each_s)
        found["best_slice_length"] = best
        # Seconds times variance is proportional to the time for a given error.
        at_best, now = (
            (beside_s / count + each_s) * (count * between.deviation**2 + own.deviation**2) for count in (best, length)
        )
        if np.isfinite(best) and now:
            found["time_at_best"] = at_best / now
    return found


def _paired_away(medians: pd.Series[float], baseline: pd.Series[float]) -> float | None:
    """Share of a ratio's variance removed by shared rounds; None with fewer than three."""
    shared = medians.index.intersection(baseline.index)
    if len(shared) < 3:
        return None
    own, other = (np.log(part.loc[shared].to_numpy(float)) for part in (medians, baseline))
    apart = float(own.var(ddof=1) + other.var(ddof=1))
    return 1 - float((own - other).var(ddof=1)) / apart if apart else None
