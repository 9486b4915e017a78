"""The latency at a rate of requests, from the rates that studies with arrivals have offered."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis.listing import Server
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.metrics import Metric
from mlflow_ngraph.tracking.schema import Artifact

AT_RATE = "latency_p99_at_rate_ms"
"""Column: 99th percentile of the latency at the lowest offered rate that is not below the one asked for."""
AT_RATE_METRIC = Metric(AT_RATE, "ms", "lower", "99th percentile of the latency at the rate asked for")


def read(tracking_uris: Sequence[str] | None, frame: pd.DataFrame) -> pd.DataFrame:
    """Every rate that was offered to the cells of a results table; see docs/reference/metrics.md for the columns.

    Parameters
    ----------
    tracking_uris : Sequence[str] | None
        Where ``frame`` was read; MLflow's own default when left out.

    Raises
    ------
    UsageError
        No study of the table offered any.
    TrackingError
        A server cannot be reached.
    """
    runs = frame.loc[frame["serve_peak_rate"].notna(), ["tracking_uri", "run_id"]].drop_duplicates()
    tables = []
    for uri in [None] if tracking_uris is None else tracking_uris:
        server = Server(uri)
        own = runs.loc[runs["tracking_uri"] == server.name, "run_id"]
        if own.empty:
            continue
        with server.talking(), tempfile.TemporaryDirectory() as directory:
            for run_id in own:
                path = server.client.download_artifacts(str(run_id), Artifact.ARRIVALS, directory)
                tables.append(pd.read_parquet(Path(path)))
    if not tables:
        raise UsageError(
            "latency-at-rate: no study of these cells offered requests: measure with arrivals in the study"
        )
    whole: pd.DataFrame = pd.concat(tables, ignore_index=True)
    return whole


def add(frame: pd.DataFrame, offered: pd.DataFrame, rate: float) -> pd.DataFrame:
    """The table with the column `AT_RATE`; missing where no rate that high was offered without overload.

    Parameters
    ----------
    offered : pd.DataFrame
        Rows of ``arrivals.parquet``.
    rate : float
        Samples per second. A request is a batch, so a cell gets this many divided by its batch size.
    """
    fair = offered[
        offered["valid"].astype(bool) & ~offered["overloaded"].astype(bool) & offered["latency_p99_ms"].notna()
    ]
    enough = fair[fair["rate"] * fair["batch"] >= rate * (1 - 1e-9)].sort_values("rate", kind="stable")
    first = enough.drop_duplicates(["study_id", "cell"], keep="first").set_index(["study_id", "cell"])["latency_p99_ms"]
    keys = pd.MultiIndex.from_frame(frame[["study_id", "cell"]].astype(object))
    first.index = pd.MultiIndex.from_tuples([(str(study), str(cell)) for study, cell in first.index], names=keys.names)
    values = first.reindex(keys).to_numpy(float) if len(first) else np.full(len(frame), np.nan)
    table: pd.DataFrame = frame.assign(**{AT_RATE: values})
    return table
