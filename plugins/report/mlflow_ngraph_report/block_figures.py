"""Figures 7, 10 and 11 of the paper: stacked blocks over depth, width and batch size."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from mlflow_ngraph_report import texts
from mlflow_ngraph_report.blocks import Figure, Missing
from mlflow_ngraph_report.curves import Axis, Grid
from mlflow_ngraph_report.depth_tables import chosen_batches
from mlflow_ngraph_report.heat import HeatMaps
from mlflow_ngraph_report.model_figures import BATCH, BSR, SPEEDUP
from mlflow_ngraph_report.points import alternative, incomplete, lacks, means, named
from mlflow_ngraph_report.prepared import Prepared, batch_sizes

_TARGETS = {"conv": "convolutional blocks", "mha": "attention blocks"}


def speedups(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 7: speed-up over depth, for each kind of block and device."""
    figures: list[Figure | Missing] = []
    for target, what in _TARGETS.items():
        blocks = prepared.blocks(target)
        frame = blocks[~blocks["of_baseline"] & blocks["speedup"].notna()]
        title = f"Figure 7: speed-up over depth, {what}"
        if frame.empty:
            figures.append(Missing(f"f7-{target}", title, _needs(target)))
            continue
        for key, name, own in _each(frame, f"f7-{target}"):
            batches = chosen_batches(batch_sizes(own))
            own = own[own["batch"].isin(batches)]  # noqa: PLW2901
            if own.groupby(["series", "width", "batch"])["depth"].nunique().max() < 2:
                reason = f"needs several depths with ok cells at batch size {texts.listed(batches)}"
                figures.append(Missing(key, f"{title}{name}", reason))
                continue
            data = means(
                own.assign(at="batch " + own["batch"].astype(str), wide="width " + own["width"].astype(str)),
                "speedup",
                row="at",
                column="wide",
                order=[f"width {width}" for width in sorted(own["width"].unique())],
                x="depth",
            )
            order = {f"batch {batch}": place for place, batch in enumerate(batches)}
            data = data.loc[data["row"].map(order).sort_values(kind="stable").index]
            figures.append(
                Figure(
                    key,
                    f"{title}{name}",
                    f"Speed-up over {prepared.over} against the number of stacked blocks, with 95 % intervals as bands.",
                    named(data, row="batch", column="width", x="depth", value="speedup"),
                    Grid(data.reset_index(drop=True), Axis("stacked blocks"), SPEEDUP).draw,
                    alternative(data, "speed-up", "depth"),
                )
            )
    return figures


def efficiency(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 10: heat maps of ASE over width and batch size, for each kind of block and device."""
    figures: list[Figure | Missing] = []
    for target, what in _TARGETS.items():
        frame = prepared.blocks(target)
        title = f"Figure 10: scaling efficiency over width and batch size, {what}"
        reason = lacks(frame, "ase", _needs(target))
        if reason:
            figures.append(Missing(f"f10-{target}", title, reason))
            continue
        for key, name, own in _each(frame, f"f10-{target}"):
            reason = lacks(own, "ase", _needs(target))
            if reason:
                figures.append(Missing(key, f"{title}{name}", reason))
                continue
            widths = sorted(int(width) for width in own["width"].unique())
            data = means(own, "ase", row=None, column="width", order=widths)
            figures.append(
                Figure(
                    key,
                    f"{title}{name}",
                    "Geometric mean of the ASE over depths; 1 is perfect batch parallelism. Beneath each number is half the "
                    "width of its 95 % interval. A place without a number had no cell that counts.",
                    named(data, column="width", x="batch", value="ase"),
                    HeatMaps(data, "batch size", "width").draw,
                    f"Heat maps of ASE over width and batch size, one for each of {_names(data)}.",
                    incomplete(data),
                )
            )
    return figures


def resilience(prepared: Prepared) -> list[Figure | Missing]:
    """Figure 11: BSR of blocks over batch size by depth; a figure for each device."""
    key, title = "f11", "Figure 11: batch scaling resilience of blocks by depth"
    blocks = prepared.blocks()
    frame = blocks[~blocks["of_baseline"]]
    reason = lacks(frame, "bsr", "needs the studies paper-blocks-conv and paper-blocks-mha, or block: workloads")
    if reason:
        return [Missing(key, title, reason)]
    figures: list[Figure | Missing] = []
    for device in sorted(frame["device"].unique()):
        own = frame[frame["device"] == device]
        several = frame["device"].nunique() > 1
        own_key, own_title = (f"{key}-{texts.slug(device)}", f"{title}, {device}") if several else (key, title)
        reason = lacks(own, "bsr", "")
        if reason:
            figures.append(Missing(own_key, own_title, reason))
            continue
        depths = sorted(int(depth) for depth in own["depth"].unique())
        data = means(
            own.assign(deep="depth " + own["depth"].astype(str)),
            "bsr",
            row="block",
            column="deep",
            order=[f"depth {depth}" for depth in depths],
        )
        figures.append(
            Figure(
                own_key,
                own_title,
                "Geometric mean of the BSR over widths, with its 95 % interval as a band. Above 1 a compiler keeps more of "
                f"its efficiency than {prepared.over} as batches grow.",
                named(data, row="block", column="depth", x="batch", value="bsr"),
                Grid(data, BATCH, BSR).draw,
                alternative(data, "BSR", "batch size"),
                incomplete(data),
            )
        )
    return figures


def _needs(target: str) -> str:
    return f"needs the study paper-blocks-{target}, or block:{target} workloads"


def _each(frame: pd.DataFrame, key: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Cells of each device and variant of a block, with a key and an addition to the title."""
    several = frame["block"].nunique() > 1, frame["device"].nunique() > 1
    for number, ((block, device), own) in enumerate(frame.groupby(["block", "device"])):
        name = "".join(f", {text}" for text, varies in zip((block, device), several, strict=True) if varies)
        yield (f"{key}-{number + 1}" if any(several) else key), name, own


def _names(data: pd.DataFrame) -> str:
    return texts.listed(list(dict.fromkeys(data["series"])))
