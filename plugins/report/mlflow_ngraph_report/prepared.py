"""The tidy table prepared for a report: newest cells, one baseline, kinds of workloads, series, sort orders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from mlflow_ngraph.analysis.compare import latest
from mlflow_ngraph.metrics import EAGER, METRICS, baseline_phrase, with_estimates
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import CONTENT, WorkloadRef
from mlflow_ngraph.workloads.catalogue import paper_models

MODEL, BLOCK = "model", "block"
_ALIKE = ("device", "workload", "series", "batch")
"""Columns that identify a cell."""
_DISTINGUISHING = ("precision", "mode", "threads")
"""Added to the name of a series where results have several values."""
_INTERVALS = ("throughput", "speedup", "ase", "bsr", "cpu_reduction")
_COLUMNS = (
    "study_id", "study", "device", "fingerprint", "workload", "label", "family", "compiler", "compiler_label", "precision",
    "precision_in_force", "mode", "threads", "batch", "verdict", "reason", "cell", "run_id", "engine_reused", "parameters",
    "reference_by", "paper_macs", "true_macs", "started_at", "finished_at", "tracking_uri", "repetitions", "rounds", "throughput_std",
    "cpu_percent", "cpu_percent_std", "compile_total_s", "export_s", "convert_s", "tune_s", "compile_s", "save_s",
    "built_beside", "foreign_cpu_percent", "clock_mhz", "temperature_c", "power_w", "peak_memory_mb",
    *with_estimates(_INTERVALS),
)  # fmt: skip
"""Columns that a report needs. Reading only these makes it several times as fast."""
_STYLES = {"conv": "Convolutional", "mha": "Transformer"}
OTHER_STYLE = "Other"
_OF_BASELINE = "of_baseline"
"""Column: the row belongs to the report's baseline."""


@dataclass(frozen=True)
class Prepared:
    """The cells of a report."""

    every: pd.DataFrame
    """The newest row of each cell with any verdict, with the columns that `prepare` adds."""
    counted: pd.DataFrame
    """Rows in tables and figures."""
    included: tuple[str, ...] = ()
    """Verdicts that count besides ``ok``."""
    baseline: str = EAGER
    """Label of the compiler that ratios refer to."""
    over_others: tuple[str, ...] = ()
    """Other baselines; their ratios are left out."""

    @property
    def over(self) -> str:
        """The baseline in a sentence."""
        return baseline_phrase(self.baseline)

    @property
    def models(self) -> pd.DataFrame:
        """Included cells of whole models."""
        return _of_kind(self.counted, MODEL)

    def blocks(self, target: str | None = None) -> pd.DataFrame:
        """Included cells of stacked blocks, of all or one kind: ``conv`` or ``mha``."""
        cells = _of_kind(self.counted, BLOCK)
        if target is None:
            return cells
        chosen: pd.DataFrame = cells[cells["target"] == target]
        return chosen

    @property
    def devices(self) -> list[str]:
        return sorted(self.every["device"].dropna().unique())


def prepare(frame: pd.DataFrame, include: Collection[str] = ()) -> Prepared:
    """Choose and describe the cells; ``include`` are verdicts that count besides ``ok``."""
    every = latest(frame.loc[:, list(_COLUMNS)])
    every["series"] = _series(every)
    parts = [_block(str(workload)) for workload in every["workload"]]
    every["kind"] = [MODEL if part is None else BLOCK for part in parts]
    for index, name in enumerate(("target", "block", "width", "depth")):
        every[name] = [None if part is None else part[index] for part in parts]
    for name in ("width", "depth"):
        every[name] = every[name].astype("Int64")
    families = {model.family: model.style for model in paper_models().values()}
    every["style"] = [
        families.get(str(family), OTHER_STYLE) if part is None else _STYLES.get(part[0], OTHER_STYLE)
        for part, family in zip(parts, every["family"], strict=True)
    ]
    # One cell may have several ids, such as with and without copies to the GPU: one of them is shown.
    every = latest(every, _ALIKE).sort_values(list(_ALIKE), kind="stable").reset_index(drop=True)
    chosen, others = _one_baseline(every)
    trusted = (str(Verdict.OK), *include)
    counted = every[every["verdict"].isin(trusted) & every["throughput"].notna()].reset_index(drop=True)
    return Prepared(every, counted, tuple(include), chosen, others)


def _one_baseline(every: pd.DataFrame) -> tuple[str, tuple[str, ...]]:
    """Baseline of a report and its rivals, whose ratios are removed. Eager execution is preferred."""
    known = baselines.of(every, "speedup")
    chosen = EAGER if EAGER in known or not known else known[0]
    every[_OF_BASELINE] = baselines.own(every) & (baselines.labels(every) == chosen)
    ratios = [name for name in _INTERVALS if METRICS[name].of_baseline]
    figures = [name for name in with_estimates(ratios) if every[name].dtype.kind == "f"]
    every.loc[baselines.labels(every) != chosen, figures] = float("nan")
    return chosen, tuple(name for name in known if name != chosen)


def order_of_series(frame: pd.DataFrame) -> list[str]:
    """Series of the cells: the baseline first, then by name."""
    known = frame.drop_duplicates("series")
    base = known[_OF_BASELINE] if _OF_BASELINE in known else known["compiler"] == EAGER
    pairs = sorted((not first, series) for first, series in zip(base, known["series"], strict=True))
    return [series for _, series in pairs]


def order_of_models(frame: pd.DataFrame) -> list[str]:
    """Labels of models: families in the order of the paper, then by name; within a family by parameters."""
    known = frame[["family", "label", "parameters"]].drop_duplicates("label")
    families = order_of_families(frame)
    sizes = known["parameters"].fillna(0)
    ranked = sorted(zip(known["family"], sizes, known["label"], strict=True), key=_by_family(families))
    return [label for _, _, label in ranked]


def order_of_families(frame: pd.DataFrame) -> list[str]:
    """Families in the order of the paper, then by name."""
    papers = list(dict.fromkeys(model.family for model in paper_models().values()))
    families = sorted(frame["family"].dropna().unique())
    return [name for name in papers if name in families] + [name for name in families if name not in papers]


def batch_sizes(frame: pd.DataFrame) -> list[int]:
    """Batch sizes in ascending order."""
    return sorted(int(batch) for batch in frame["batch"].unique())


def _series(frame: pd.DataFrame) -> list[str]:
    """Name a series: compiler with flags, and other columns with several values."""
    names = [str(label) for label in frame["compiler_label"]]
    for column in _DISTINGUISHING:
        values = frame[column].astype("string").fillna("default")
        if values.nunique() > 1:
            shown = values if column != "threads" else values + " threads"
            names = [f"{name}, {value}" for name, value in zip(names, shown, strict=True)]
    return names


def _block(workload: str) -> tuple[str, str, int, int] | None:
    """Kind, kind with options, width and depth of a stacked block; None for other workloads."""
    ref = WorkloadRef.recorded(workload)
    if ref is None or ref.scheme != BLOCK or not str(ref.options.get("width", "")).isdigit():
        return None
    options = dict(ref.options)
    width, depth = int(options.pop("width")), int(options.pop("depth", "1"))
    content = [match[0] for match in [CONTENT.search(workload)] if match]
    more = ", ".join([*(f"{name}={value}" for name, value in sorted(options.items())), *content])
    return ref.target, f"{ref.target} ({more})" if more else ref.target, width, depth


def _of_kind(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    cells: pd.DataFrame = frame[frame["kind"] == kind]
    return cells


def _by_family(families: Sequence[str]) -> Callable[[tuple[str, float, str]], tuple[int, float, str]]:
    place = {name: index for index, name in enumerate(families)}

    def key(model: tuple[str, float, str]) -> tuple[int, float, str]:
        family, size, label = model
        return place.get(family, len(place)), float(size), label

    return key
