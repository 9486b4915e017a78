"""Tables 3 to 6 as in the paper: compile time, size of models and blocks, throughput and CPU use by family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.tables.sheet import EMPTY, Cell, Sheet, number
from mlflow_ngraph.text import NO_INTERVAL, decimals, with_thousands
from mlflow_ngraph_report import combined, texts
from mlflow_ngraph_report.blocks import Missing
from mlflow_ngraph_report.prepared import (
    MODEL,
    Prepared,
    batch_sizes,
    order_of_families,
    order_of_models,
    order_of_series,
)

BANDS = ((2, 4), (8, 16))
"""Bands of batch sizes in table 6, as in the paper."""
NEEDS_MODELS = "needs results of whole models: run the study paper-models, or a study with models of your own"


def compile_seconds(prepared: Prepared) -> Sheet | Missing:
    """Table 3: compile time at the smallest and the largest batch size."""
    key, title = "t3", "Table 3: compile time"
    models = prepared.models
    frame = models[(models["compiler"] != EAGER) & models["compile_total_s"].notna()]
    if frame.empty:
        return Missing(key, title, NEEDS_MODELS if models.empty else "no compiler but the baseline has an ok cell")
    batches = batch_sizes(frame)
    places = [
        (device, series)
        for device in prepared.devices
        for series in order_of_series(frame)
        if ((frame["device"] == device) & (frame["series"] == series)).any()
    ]
    records = {(row["label"], row["batch"], row["device"], row["series"]): row for row in frame.to_dict("records")}
    rows = []
    for label in order_of_models(frame):
        for batch in dict.fromkeys((batches[0], batches[-1])):
            cells = [_seconds(records.get((label, batch, *place))) for place in places]
            if any(cells):
                rows.append([label, batch, *cells])
    stages = [name for name in ("export_s", "convert_s", "tune_s", "compile_s", "save_s") if name in frame]
    columns = [
        "label",
        "batch",
        "device",
        "series",
        "compiler",
        "compile_total_s",
        *stages,
        "built_beside",
        "engine_reused",
    ]
    notes = ["Each engine is compiled once: there is no interval."]
    if frame["engine_reused"].notna().any():
        notes.append("† The engine was reused; the seconds are those of the study that compiled it.")
    if (frame["built_beside"] > 0).any():
        notes.append("≤ Others were prepared or compiled at the same time; with nothing beside it takes less.")
    return Sheet(
        title,
        ["model", number("batch"), *(number(series, group=device) for device, series in places)],
        rows,
        notes,
        caption="Seconds from the model to an engine on disk (export, conversion, search, compilation and saving together), at "
        f"{_ends(batches)}. All batch sizes and the single stages are in the CSV file.",
        key=key,
        data=frame[columns].sort_values(["label", "batch", "device", "series"]).reset_index(drop=True),
        names=2,
    )


def sizes_of_models(prepared: Prepared) -> Sheet | Missing:
    """Table 4: parameters and multiply-accumulates of models."""
    key, title = "t4", "Table 4: models"
    columns = ["label", "family", "style", "parameters", "paper_macs", "true_macs"]
    models = prepared.every[prepared.every["kind"] == MODEL]
    frame = models[models["parameters"].notna()][columns].drop_duplicates("label")
    if frame.empty:
        return Missing(key, title, NEEDS_MODELS)
    data = frame.set_index("label").loc[order_of_models(frame)].reset_index()
    rows = [
        [*(row[name] for name in ("label", "family", "style")), *map(_whole, _counts(row))]
        for row in data.to_dict("records")
    ]
    return Sheet(
        title,
        [
            *("model", "family", "style"),
            *map(number, ("parameters", "MACs (paper's way)", "MACs (all)")),
        ],
        rows,
        caption="Parameters, and multiply-accumulates of one inference at batch size 1: as the paper counts them, which leaves out "
        "attention products and functional layers, and all of them.",
        key=key,
        data=data,
    )


def sizes_of_blocks(prepared: Prepared) -> Sheet | Missing:
    """Table 5: parameters of the stacked blocks."""
    key, title = "t5", "Table 5: blocks"
    every = prepared.every
    frame = every[every["block"].notna() & every["parameters"].notna()].copy()
    if frame.empty:
        return Missing(key, title, "needs the studies paper-blocks-conv and paper-blocks-mha, or block: workloads")
    frame["depth"] = frame["depth"].astype("int64")
    frame["parameters_per_block"] = frame["parameters"] // frame["depth"]
    frame["true_macs_per_block"] = frame["true_macs"] // frame["depth"]
    groups = frame.groupby(["target", "block", "width"], as_index=False)
    data = groups.agg(
        parameters_per_block=("parameters_per_block", "first"),
        true_macs_per_block=("true_macs_per_block", "first"),
        depths=("depth", lambda depths: " ".join(map(str, sorted(set(depths))))),
    )
    rows = [
        [
            row["block"],
            row["width"],
            *map(_whole, (row["parameters_per_block"], row["true_macs_per_block"])),
            row["depths"].replace(" ", ", "),
        ]
        for row in data.to_dict("records")
    ]
    return Sheet(
        title,
        [
            "block",
            *map(number, ("width", "parameters a block", "MACs a block (all)")),
            "depths",
        ],
        rows,
        caption="Parameters and multiply-accumulates of one block, and how many of them were stacked.",
        key=key,
        data=data,
        names=2,
    )


@dataclass(frozen=True)
class Aggregate:
    """Table 6 for one family, series, device and band."""

    throughput: float
    throughput_std: float
    throughput_ci_low: float
    throughput_ci_high: float
    cpu_percent: float
    cpu_percent_std: float
    cells: int
    asked: int
    batches: str


def families(prepared: Prepared) -> Sheet | Missing:
    """Table 6: throughput and CPU use by family, compiler and device."""
    key, title = "t6", "Table 6: throughput and CPU use by family"
    models = prepared.models
    if models.empty:
        return Missing(key, title, NEEDS_MODELS)
    banded = {band: models[models["batch"].between(*band)] for band in BANDS}
    if all(frame.empty for frame in banded.values()):
        have = texts.listed(batch_sizes(models))
        return Missing(
            key, title, f"needs batch sizes from 2 to 16: run with --batch-sizes 1,2,4,8,16; there is {have}"
        )
    rows, data, without = [], [], False
    for family in order_of_families(models):
        for series in order_of_series(models):
            for device in prepared.devices:
                aggregates = {band: aggregate(prepared, banded[band], band, family, series, device) for band in BANDS}
                without |= any(mean is not None and math.isnan(mean.throughput_ci_low) for mean in aggregates.values())
                if any(aggregates.values()):
                    rows.append([family, series, device, *_banded_cells(aggregates)])
                    data.append(_banded_row(models, family, series, device, aggregates))
    return Sheet(
        title,
        [
            *("family", "compiler", "device"),
            *(
                number(name, group=f"batch {_band(band, frame)}")
                for band, frame in banded.items()
                for name in ("samples/s", "CPU [%]")
            ),
        ],
        rows,
        [
            "A mean over fewer cells than its neighbours' (“5 of 6 cells”) is not comparable with theirs.",
            *([f"A throughput without brackets has {NO_INTERVAL}, or a cell of a single round."] if without else []),
        ],
        caption="Means over all models of a family and both batch sizes of a band: the throughput with its 95 % interval, the CPU use "
        "with its standard deviation over slices (the root of the mean variance of the cells). The standard deviation of the "
        "throughput over repetitions is in the data.",
        key=key,
        data=pd.DataFrame(data),
        names=3,
    )


def aggregate(
    prepared: Prepared, frame: pd.DataFrame, band: tuple[int, int], family: str, series: str, device: str
) -> Aggregate | None:
    """Mean over the cells of one row and band; None if there are none."""

    def of_row(cells: pd.DataFrame) -> pd.DataFrame:
        own: pd.DataFrame = cells[(cells["family"] == family) & (cells["device"] == device)]
        return own

    chosen = of_row(frame)
    chosen = chosen[chosen["series"] == series]
    if chosen.empty:
        return None
    every = prepared.every
    asked = of_row(every[(every["kind"] == MODEL) & every["batch"].between(*band)])
    throughput = combined.mean(significance.figures(chosen, "throughput"))
    scatter = chosen["cpu_percent_std"] if chosen["cpu_percent_std"].notna().all() else None
    return Aggregate(
        throughput.value,
        combined.pooled(chosen["throughput_std"]),
        throughput.low,
        throughput.high,
        float(chosen["cpu_percent"].mean()),
        float("nan") if scatter is None else combined.pooled(scatter),
        len(chosen),
        len(asked[["label", "batch"]].drop_duplicates()),
        " ".join(map(str, batch_sizes(chosen))),
    )


def _banded_cells(aggregates: dict[tuple[int, int], Aggregate | None]) -> list[Cell | str]:
    cells: list[Cell | str] = []
    for mean in aggregates.values():
        if mean is None:
            cells += [EMPTY, EMPTY]
            continue
        low, high = mean.throughput_ci_low, mean.throughput_ci_high
        interval = "" if math.isnan(low) else f"[{decimals(low)}, {decimals(high)}]"
        few = f"{mean.cells} of {mean.asked} cells" if mean.cells < mean.asked else ""
        cells += [
            Cell(decimals(mean.throughput), texts.joined([interval, few])),
            " ± ".join(filter(None, map(decimals, (mean.cpu_percent, mean.cpu_percent_std)))),
        ]
    return cells


def _banded_row(
    models: pd.DataFrame, family: str, series: str, device: str, aggregates: dict[tuple[int, int], Aggregate | None]
) -> dict[str, object]:
    compiler = models.loc[models["series"] == series, "compiler"].iloc[0]
    row: dict[str, object] = {"family": family, "series": series, "compiler": compiler, "device": device}
    for (first, last), mean in aggregates.items():
        values = asdict(mean) if mean is not None else dict.fromkeys(Aggregate.__dataclass_fields__)
        row.update({f"{name}_b{first}_{last}": value for name, value in values.items()})
    return row


def _band(band: tuple[int, int], frame: pd.DataFrame) -> str:
    """Name a band, with its available batch sizes where an end is missing."""
    there = batch_sizes(frame)
    name = f"{band[0]}–{band[1]}"
    return name if set(band) <= set(there) else f"{name} ({texts.listed(there)} only)" if there else name


def _ends(batches: Sequence[int]) -> str:
    return f"batch size {batches[0]}" if len(batches) == 1 else f"batch sizes {batches[0]} and {batches[-1]}"


def _seconds(row: dict[str, object] | None) -> str | None:
    if row is None:
        return None
    mark = "" if pd.isna(row["engine_reused"]) else " †"  # type: ignore[call-overload]
    bound = "≤ " if float(str(row["built_beside"])) > 0 else ""
    return f"{bound}{decimals(float(str(row['compile_total_s'])), 3)}{mark}"


def _counts(row: dict[str, float]) -> list[float]:
    return [row["parameters"], row["paper_macs"], row["true_macs"]]


def _whole(count: float) -> str | None:
    return None if pd.isna(count) else with_thousands(float(count))
