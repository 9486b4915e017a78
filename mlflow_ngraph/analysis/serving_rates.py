"""Read results of open-loop load from servers, and add the p99 latency at a requested rate to the tidy table."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis.listing import Server
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.metrics import Metric
from mlflow_ngraph.tracking.artifact_stores import run_file
from mlflow_ngraph.tracking.schema import Artifact

AT_RATE = "latency_p99_at_rate_ms"
"""Column: 99th percentile of the latency at the lowest sustained rate not below the requested one."""
AT_RATE_METRIC = Metric(AT_RATE, "ms", "lower", "99th percentile of the latency at the rate asked for")


def read(tracking_uris: Sequence[str] | None, frame: pd.DataFrame) -> pd.DataFrame:
    """Offered rates of the cells in a results table; docs/reference/metrics.md lists the columns.

    ``tracking_uris`` are the servers that ``frame`` was read from; MLflow's default when left out. Raises `UsageError`
    if no study of the table offered any, and `TrackingError` if a server cannot be reached.
    """
    runs = frame.loc[frame["serve_peak_rate"].notna(), ["tracking_uri", "run_id"]].drop_duplicates()
    tables = []
    for uri in [None] if tracking_uris is None else tracking_uris:
        server = Server(uri)
        own = runs.loc[runs["tracking_uri"] == server.name, "run_id"]
        if own.empty:
            continue
        with server.talking():
            for run_id in own:
                location = server.client.get_run(str(run_id)).info.artifact_uri
                tables.append(pd.read_parquet(BytesIO(run_file(location, Artifact.ARRIVALS, server.uri))))
    if not tables:
        raise UsageError(
            "latency-at-rate: no study of these cells offered requests: measure with arrivals in the study"
        )
    whole: pd.DataFrame = pd.concat(tables, ignore_index=True)
    return whole


def add(frame: pd.DataFrame, offered: pd.DataFrame, rate: float) -> pd.DataFrame:
    """Add the column `AT_RATE`; missing where no such rate was sustained.

    ``offered`` are rows of ``arrivals.parquet``. The rate is in samples per second. A request is a batch, so requests
    per second are this divided by the batch size.
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
