"""Figures 5, 6, 8, 9, 12 as in the paper: models' throughput, speed-up, scaling and CPU use over batch size."""

from __future__ import annotations

import pandas as pd

from mlflow_ngraph_report import texts
from mlflow_ngraph_report.blocks import Figure, Missing
from mlflow_ngraph_report.curves import Axis, Grid
from mlflow_ngraph_report.model_tables import NEEDS_MODELS
from mlflow_ngraph_report.points import alternative, first_models, incomplete, lacks, means, named
from mlflow_ngraph_report.prepared import OTHER_STYLE, Prepared, order_of_families, order_of_models

BATCH = Axis("batch size", log=True)
SPEEDUP, BSR = Axis("speed-up", log=True, reference=1.0), Axis("BSR", log=True, reference=1.0)
ASE = Axis("ASE", reference=1.0, from_zero=True)
_STYLES = ("Convolutional", "Transformer", "Hybrid", OTHER_STYLE)
_MOST_FAMILIES = 6
"""Most families for a layout of one column per family."""


def throughput(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 5: throughput over batch size, model by model; a figure for each device."""
    title = "Figure 5: throughput over batch size"
    caption = "Samples per second, compiled and not, with 95 % intervals as bands. Each model has a scale of its own."
    axis = Axis("samples/s", from_zero=True)
    return _by_model(prepared, "f5", title, caption, "throughput", axis, prepared.models)


def resilience(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 9: BSR over batch size, architecture by architecture; a figure for each device."""
    title = "Figure 9: batch scaling resilience over batch size"
    caption = (
        f"BSR is the ASE of a compiler over that of {prepared.over}: above 1 it keeps more of its efficiency as batches "
        "grow. Bands are 95 % intervals."
    )
    compiled = prepared.models[~prepared.models["of_baseline"]]
    return _by_model(prepared, "f9", title, caption, "bsr", BSR, compiled)


def speedups(prepared: Prepared) -> Figure | Missing:
    """Figure 6: speed-up over batch size by family and device."""
    key, title = "f6", "Figure 6: speed-up over batch size by family"
    frame = prepared.models[~prepared.models["of_baseline"]]
    reason = lacks(frame, "speedup", NEEDS_MODELS)
    if reason:
        return Missing(key, title, reason)
    data = means(frame, "speedup", row="device", column="family", order=order_of_families(frame))
    return Figure(
        key,
        title,
        "Geometric mean of the speed-up over the models of a family, with its 95 % interval as a band. Above 1 the "
        f"compiler is faster than {prepared.over} at the same batch size.",
        named(data, row="device", column="family", x="batch", value="speedup"),
        Grid(data, BATCH, SPEEDUP).draw,
        alternative(data, "speed-up", "batch size"),
        incomplete(data),
    )


def efficiency(prepared: Prepared) -> Figure | Missing:
    """Figure 8: ASE over batch size by style of architecture and device."""
    key, title = "f8", "Figure 8: scaling efficiency over batch size by style"
    frame = prepared.models
    reason = lacks(frame, "ase", NEEDS_MODELS)
    if reason:
        return Missing(key, title, reason)
    styles = [style for style in _STYLES if (frame["style"] == style).any()]
    data = means(frame, "ase", row="device", column="style", order=styles)
    return Figure(
        key,
        title,
        "ASE is the throughput at a batch size over that many times the throughput at batch size 1; 1 is perfect batch "
        "parallelism. Geometric mean over the models of a style, with its 95 % interval as a band.",
        named(data, row="device", column="style", x="batch", value="ase"),
        Grid(data, BATCH, ASE).draw,
        alternative(data, "ASE", "batch size"),
        incomplete(data),
    )


def processors(prepared: Prepared) -> Figure | Missing:
    """Figure 12: CPU use and its reduction over batch size, by device."""
    key, title = "f12", "Figure 12: CPU use over batch size"
    frame = prepared.models if not prepared.models.empty else prepared.blocks()
    reason = lacks(frame, "cpu_percent", NEEDS_MODELS)
    if reason:
        return Missing(key, title, reason)
    use, reduction = "CPU use", "reduction"
    parts = []
    for metric, row in (("cpu_percent", use), ("cpu_reduction", reduction)):
        chosen = frame if metric == "cpu_percent" else frame[~frame["of_baseline"]]
        parts.append(means(chosen, metric, row=None, column="device", order=prepared.devices).assign(row=row))
    data = pd.concat([part for part in parts if len(part)], ignore_index=True)
    rows = {use: Axis("CPU of the machine [%]", from_zero=True), reduction: Axis("reduction", reference=0.0)}
    what = "models" if not prepared.models.empty else "blocks"
    return Figure(
        key,
        title,
        "Above: share of the machine's processors that the engine used while it was timed. Below: by how much less than "
        f"{prepared.over} in the same rounds. Means over {what}; bands are 95 % intervals, which only the reduction has.",
        named(data, row="metric", column="device", x="batch"),
        Grid(data, BATCH, rows[use], y_by_row=rows).draw,
        alternative(data, "CPU use and its reduction", "batch size"),
        incomplete(data),
    )


def _by_model(
    prepared: Prepared, key: str, title: str, caption: str, metric: str, axis: Axis, frame: pd.DataFrame
) -> list[Figure | Missing]:
    """Figure for each device, with a panel for each model."""
    reason = lacks(frame, metric, NEEDS_MODELS)
    if reason:
        return [Missing(key, title, reason)]
    figures: list[Figure | Missing] = []
    for device in prepared.devices:
        own = frame[(frame["device"] == device) & frame[metric].notna()]
        own_key = key if len(prepared.devices) == 1 else f"{key}-{texts.slug(device)}"
        own_title = title if len(prepared.devices) == 1 else f"{title}, {device}"
        reason = lacks(own, metric, NEEDS_MODELS)
        if reason:
            figures.append(Missing(own_key, own_title, reason))
            continue
        data = _panels(own, metric)
        drawn, notes = first_models(data, "title")
        figures.append(
            Figure(
                own_key,
                own_title,
                caption,
                named(data.assign(column=data["title"]).drop(columns="title"), column="model", x="batch", value=metric),
                Grid(drawn, BATCH, axis).draw,
                alternative(data, metric, "batch size"),
                notes,
            )
        )
    return figures


def _panels(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Panel for each model, in a column per family where there is room."""
    labels, families = order_of_models(frame), order_of_families(frame)
    if len(families) > _MOST_FAMILIES:
        data = means(frame, metric, row=None, column="label", order=labels)
        data["title"] = data["column"]
        return data
    known = frame[["label", "family"]].drop_duplicates("label").set_index("label")["family"]
    seen: dict[str, int] = {}
    titles: dict[tuple[str, str], str] = {}
    for label in labels:
        family = str(known[label])
        seen[family] = seen.get(family, 0) + 1
        titles[(str(seen[family]), family)] = label
    sizes = {label: int(size) for (size, _), label in titles.items()}
    data = means(frame.assign(size=frame["label"].map(sizes)), metric, row="size", column="family", order=families)
    data["title"] = [titles[place] for place in zip(data["row"], data["column"], strict=True)]
    return data
