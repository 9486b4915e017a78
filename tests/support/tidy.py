"""Tidy tables with planted truths, as studies would give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mlflow_ngraph.analysis.results import COLUMNS, RUN_COLUMNS, TEXT_COLUMNS
from mlflow_ngraph.analysis.results import typed as typed_frame

ROUNDS = 10
NOISE = 0.004
"""Standard deviation of a round."""


def cells(**columns: Any) -> pd.DataFrame:
    """Rows with the given columns; everything else as in a study of one ok cell a row, with intervals."""
    count = max((len(values) for values in columns.values() if isinstance(values, list)), default=1)
    base: dict[str, Any] = dict.fromkeys(TEXT_COLUMNS, "")
    base.update(
        study_id="study", study="study", device="xeon", fingerprint="f", workload="timm:resnet18", label="resnet18",
        family="ResNet", compiler="openvino", compiler_label="openvino", flags="{}", precision="fp32",
        precision_in_force="fp32", mode="sync", verdict="ok", threads=2, batch=1, started_at=1.76e9,
        finished_at=1.76e9, throughput=100.0, rounds=float(ROUNDS), parameters=10**7, paper_macs=10**9,
        true_macs=10**9, experiment="e", tracking_uri="u", git_commit="c0ffee",
    )  # fmt: skip
    frame = pd.DataFrame({**base, **columns}, index=range(count))
    names = ("device", "workload", "compiler_label", "precision", "batch")
    frame["lane"] = frame[list(names[:-1])].astype(str).agg("/".join, axis=1)
    frame["cell"] = frame["lane"] + "-b" + frame["batch"].astype(str)
    if "speedup" not in frame:
        frame["speedup"] = frame["throughput"] / 50.0
    if "latency_mean_ms" not in frame:
        frame["latency_mean_ms"] = 1e3 * frame["batch"] / frame["throughput"]
    reach = float(stats.t.ppf(0.975, ROUNDS - 1)) * NOISE / np.sqrt(ROUNDS)
    for metric in ("throughput", "speedup", "rtr", "ase", "bsr"):
        if metric in frame and f"{metric}_ci_low" not in frame:
            frame[f"{metric}_ci_low"] = frame[metric] * np.exp(-reach)
            frame[f"{metric}_ci_high"] = frame[metric] * np.exp(reach)
    return typed_frame(frame, (*COLUMNS, *RUN_COLUMNS))
