"""Tidy tables with planted truths, as studies would give them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import COLUMNS, METRICS, RUN_COLUMNS, TEXT_COLUMNS
from mlflow_ngraph.tables.columns import typed as typed_frame

Array = NDArray[np.float64]
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
    if "throughput_mean" not in frame:
        frame["throughput_mean"] = frame["throughput"]
    if "latency_mean_ms" not in frame:
        frame["latency_mean_ms"] = 1e3 * frame["batch"] / frame["throughput"]
    for metric in ("throughput", "throughput_mean", "latency_p50_ms", "speedup", "rtr", "ase", "bsr"):
        if metric in frame and f"{metric}_ci_low" not in frame:
            freedom, error = ROUNDS - 2 * statistics.trimmed(ROUNDS) - 1.0, NOISE / np.sqrt(ROUNDS)
            reach = float(stats.t.ppf(0.975, freedom)) * error
            frame[f"{metric}_ci_low"] = frame[metric] * np.exp(-reach)
            frame[f"{metric}_ci_high"] = frame[metric] * np.exp(reach)
            frame[f"{metric}_log_se"], frame[f"{metric}_df"] = error, freedom
    return typed_frame(frame, (*COLUMNS, *RUN_COLUMNS))


def raced(metric: str, *rows: tuple[str, int, float, float, float | None], **columns: Any) -> pd.DataFrame:
    """Cells of one study whose figures, errors and rounds may contradict each other.

    Parameters
    ----------
    metric: a rate, or a duration, which is 1 / rate.
    rows: compiler, batch size, rate, standard error of its logarithm (NaN: no interval), and rate in the rounds that all
        of a batch size share, which differs by 0.1 % from round to round (None: no rounds).
    """
    rng = np.random.default_rng(0)
    names, batches, rates, errors, paces = map(list, zip(*rows, strict=True))
    rounds = [
        {f"0.{place}@{batch}": noise - np.log(pace) for place, noise in enumerate(rng.normal(0, 0.001, ROUNDS))}
        if pace
        else None
        for batch, pace in zip(batches, paces, strict=True)
    ]
    figures = np.array(rates) ** (-1.0 if METRICS[metric].better == "lower" else 1.0)
    reach = np.exp(stats.norm.ppf(0.975) * np.array(errors))
    estimates = {"": figures, "_log_se": errors, "_df": np.inf, "_ci_low": figures / reach, "_ci_high": figures * reach}
    texts = ["" if logs is None else json.dumps(logs) for logs in rounds]
    frame = cells(compiler=names, compiler_label=names, batch=batches, log_medians=texts)
    return frame.assign(**{metric + end: values for end, values in estimates.items()}, **columns)


class Drawn:
    """Tables of studies that measure the same truth again and again, each with noise and intervals of its own.

    What slows a round down, slows every lane of a workload, batch size and study; beside it each lane has its own noise.

    Parameters
    ----------
    truth: rows of `cells` with the true throughputs; each lane needs batch size 1, each workload the baseline.
    noise, common: standard deviations of a round, of the lane alone and of what all lanes share.
    """

    def __init__(self, truth: pd.DataFrame, noise: float = NOISE, common: float = NOISE, rounds: int = ROUNDS) -> None:
        self.truth = truth.reset_index(drop=True)
        self._sizes = noise, common, rounds
        beside = ["study_id", "device", "workload", "precision", "batch"]
        lane = ["study_id", "device", "workload", "precision", "compiler_label"]
        texts = {name: self.truth[name].astype(str).to_numpy() for name in {*beside, *lane}}
        places = range(len(self.truth))
        beside_of = [tuple(texts[name][place] for name in beside) for place in places]
        lane_of = [tuple(texts[name][place] for name in lane) for place in places]
        base = {beside_of[place]: place for place in places if texts["compiler_label"][place] == "identity"}
        first = {lane_of[place]: place for place in places if texts["batch"][place] == "1"}
        self._base = np.array([base[one] for one in beside_of])
        self._first = np.array([first[one] for one in lane_of])
        self._group = pd.factorize(pd.Series(beside_of))[0]
        self._log = np.log(self.truth["throughput"].to_numpy(float))
        self._batch = self.truth["batch"].to_numpy(float)

    def draw(self, seed: int) -> pd.DataFrame:
        """The table of one measurement."""
        noise, common, rounds = self._sizes
        rng = np.random.default_rng(seed)
        shared = rng.normal(0, common, (self._group.max() + 1, rounds))
        logs = self._log[:, None] + rng.normal(0, noise, (len(self._log), rounds)) + shared[self._group]
        gains = logs - logs[self._base]
        figures = {
            "throughput": (*_trimmed(logs), 1.0),
            "throughput_mean": (*_trimmed(logs), 1.0),
            "speedup": (*_trimmed(gains), 1.0),
            "rtr": (*_over(*_trimmed(logs), self._first), 1.0),
            "ase": (*_over(*_trimmed(logs), self._first), self._batch),
            "bsr": (*_over(*_trimmed(gains), self._first), 1.0),
        }
        columns = {}
        for name, (log, error, divisor) in figures.items():
            freedom = rounds - 2 * statistics.trimmed(rounds) - 1.0
            reach = float(stats.t.ppf(0.975, freedom))
            for end, sign in (("", 0), ("_ci_low", -1), ("_ci_high", 1)):
                columns[name + end] = np.exp(log + sign * reach * error) / divisor
            columns[name + "_log_se"] = error
            columns[name + "_df"] = np.where(error == 0, np.nan, freedom)
        columns["latency_mean_ms"] = 1e3 * self._batch / columns["throughput"]
        medians = [
            {f"0.{place}@{batch:g}": float(-log) for place, log in enumerate(lane)}
            for lane, batch in zip(logs, self._batch, strict=True)
        ]
        return self.truth.assign(log_medians=list(map(json.dumps, medians)), **columns)


def _trimmed(logs: Array) -> tuple[Array, Array]:
    """The means of rounds whose ends are left out, and their errors."""
    cut = statistics.trimmed(logs.shape[1])
    kept = logs.shape[1] - 2 * cut
    logs = np.sort(logs, axis=1)
    clipped = np.clip(logs, logs[:, [cut]], logs[:, [-cut - 1]])
    return logs[:, cut : cut + kept].mean(1), clipped.std(axis=1, ddof=1) * np.sqrt(
        (logs.shape[1] - 1) / kept / (kept - 1)
    )


def _over(log: Array, error: Array, first: Array) -> tuple[Array, Array]:
    """Against batch size 1, which was measured in other rounds; exact there."""
    same = first == np.arange(len(first))
    return log - log[first], np.where(same, 0.0, np.hypot(error, error[first]))


def grid(throughput: Any, **axes: list[Any]) -> pd.DataFrame:
    """A row for each combination of the axes.

    Parameters
    ----------
    throughput: gets one value of each axis by name, and returns the true throughput.
    axes: values by column; of ``compiler`` and ``workload`` the labels follow.
    """
    index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes)).to_frame(index=False)
    columns = {name: index[name].tolist() for name in axes}
    columns["throughput"] = [float(throughput(**row)) for row in index.to_dict("records")]
    if "compiler" in columns:
        columns.setdefault("compiler_label", columns["compiler"])
    if "workload" in columns:
        columns["label"] = [str(name).partition(":")[2] or name for name in columns["workload"]]
    if "study_id" in columns:
        order = {name: place for place, name in enumerate(dict.fromkeys(columns["study_id"]))}
        columns["started_at"] = [1.76e9 + 86400 * order[name] for name in columns["study_id"]]
    return cells(**columns)
