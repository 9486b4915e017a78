"""What could beat an answer: cells that were measured, and whose numbers are not trusted enough to rank them.

Whoever names a best asks here first, so that all say the same of the same cells. A kept answer is read without pandas.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mlflow_ngraph.text import plain
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from mlflow_ngraph.metrics import Metric

_SHOWN = 3
"""Rivals that a sentence names before it counts the others."""
_VERDICTS = frozenset(str(verdict) for verdict in Verdict if verdict.retryable)
"""Those of cells that may be right and could end differently; of all others the function or the compiler is at fault."""
_COLUMNS = (
    "workload", "label", "device", "compiler", "compiler_label", "precision", "mode", "threads", "batch", "verdict",
    "reason", "cell", "study", "study_id", "model_id", "tracking_uri",
)  # fmt: skip
NEEDED = frozenset(_COLUMNS)
"""The columns of the tidy table that are told of a rival."""


@dataclass(frozen=True)
class Rival:
    """A cell that could beat an answer."""

    row: Mapping[str, Any]
    """What names the cell and says why it is not trusted; None where that is not known."""
    metric: str
    unit: str
    better: str
    value: float
    ci_low: float | None
    ci_high: float | None

    @property
    def said(self) -> str:
        """For people, in one clause."""
        reason = f" ({self.row['reason']})" if self.row["reason"] else ""
        return f"{named(self.row)} measured {figure(self.value, self.metric, self.unit)} but is {self.row['verdict']}{reason}"

    def beats(self, answer: float) -> bool:
        """Whether it could: the good end of its interval, or its figure where it has none, is better."""
        ends = [end for end in (self.value, self.ci_low, self.ci_high) if end is not None]
        return min(ends) < answer if self.better == "lower" else max(ends) > answer

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def cells(frame: pd.DataFrame, metric: str) -> NDArray[np.bool_]:
    """Which rows have the metric and are left out of rankings for their noise alone."""
    found: NDArray[np.bool_] = (frame["verdict"].isin(_VERDICTS) & frame[metric].notna()).to_numpy(bool)
    return found


def hopeful(frame: pd.DataFrame, metric: Metric) -> NDArray[np.float64]:
    """The best that each figure can be, as `Rival.beats` has it."""
    import numpy as np

    from mlflow_ngraph.analysis import significance

    low, high = significance.interval(frame, metric.name)
    values = frame[metric.name].to_numpy(float)
    found: NDArray[np.float64] = np.fmin(values, low) if metric.better == "lower" else np.fmax(values, high)
    return found


def rivals(frame: pd.DataFrame, metric: Metric, answer: float | None = None) -> tuple[Rival, ...]:
    """The cells that could beat an answer, those that look best first.

    Parameters
    ----------
    frame : pd.DataFrame
        The newest result of each cell that could have been the answer; only those of `cells` count.
    answer : float | None
        The figure of the answer; None where there is none, or none yet.
    """
    from mlflow_ngraph.analysis import significance

    noisy = frame[cells(frame, metric.name)]
    if answer is not None:
        best = hopeful(noisy, metric)
        noisy = noisy[best < answer if metric.better == "lower" else best > answer]
    noisy = noisy.sort_values(metric.name, ascending=metric.better == "lower", kind="stable")
    told = noisy.reindex(columns=list(_COLUMNS))
    rows = told.astype(object).where(told.notna(), None).to_dict("records")
    values = [noisy[metric.name].to_numpy(float), *significance.interval(noisy, metric.name)]
    figures = zip(*(map(plain, part) for part in values), strict=True)
    return tuple(
        Rival(row, metric.name, metric.unit, metric.better, *own) for row, own in zip(rows, figures, strict=True)
    )


def said(found: Sequence[Rival], answer: str, where: str = "") -> str:
    """One sentence: who could beat what, and what to do about it.

    Parameters
    ----------
    answer : str
        The best that can be trusted, with its figure; empty where there is none.
    where : str
        The model and device, as far as they have to be told.
    """
    shown = "; ".join(one.said for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    beaten = f"{'it' if len(found) == 1 else 'they'} could beat {answer}" if answer else "nothing else is ok"
    return f"undecided{f' for {where}' if where else ''}: {shown}{more}; {beaten}: {again(found)}"


def again(found: Sequence[Rival]) -> str:
    """How to measure the rivals again that are of the same model, device and precision as the first one."""
    first = found[0].row
    workload = str(first["workload"])
    same = ("workload", "device", "precision", "mode", "threads")
    rows = [one.row for one in found if all(one.row[name] == first[name] for name in same)]
    compilers = list(dict.fromkeys(_compiler(str(row["compiler_label"])) for row in rows))
    if "#" in workload or any("," in text for text in (workload, *compilers)):
        return f"run study {first['study']} again"  # it has what no command line can hold
    words = ["mlflow-ngraph", "benchmark", "--workloads", workload, "--compilers", ",".join(compilers)]
    words += ["--batch-sizes", ",".join(map(str, sorted({int(row["batch"]) for row in rows})))]
    words += ["--precision", str(first["precision"]), "--device", str(first["device"])]
    words += [
        "--mode",
        str(first["mode"]),
        "--threads",
        "default" if first["threads"] is None else str(first["threads"]),
    ]
    return f"measure again with {shlex.join(words)}"


def named(row: Mapping[str, Any]) -> str:
    """What was chosen, without the model: ``onnxruntime at batch 8``, ``openvino bf16 at batch 1``."""
    precision = "" if row["precision"] == "fp32" else f" {row['precision']}"
    return f"{row['compiler_label']}{precision} at batch {row['batch']}"


def figure(value: float, metric: str, unit: str) -> str:
    """A figure with its unit, or with its name where it has none."""
    return f"{metric} {value:.4g}" if unit == "1" else f"{value:.4g} {unit}"


def _compiler(label: str) -> str:
    """The compiler with its flags as the command line takes it."""
    name, bracket, flags = label.removesuffix("]").partition("[")
    return f"{name}?{urlencode(dict(part.partition('=')[::2] for part in flags.split(',')))}" if bracket else name
