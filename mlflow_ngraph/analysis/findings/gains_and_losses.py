"""Findings of compilers that are faster or slower than the baseline, or scale worse with the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.decision import times
from mlflow_ngraph.analysis.findings.base import (
    ABOVE,
    BELOW,
    Cells,
    Finding,
    Hypotheses,
    Places,
    change,
    command,
    figures_of,
    filters,
    groups,
    identity_of,
    listed,
    sentence,
    weight,
)
from mlflow_ngraph.estimates import Estimate, unknown
from mlflow_ngraph.metrics import TOUCHED
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.text import UNSTEADY_MARK, plain

_WHERE = ("place", "threads", "precision", "mode", "baseline")


def gains(table: Cells) -> Hypotheses:
    """Cells in which a compiler is faster than the baseline.

    Each model is represented by its recommended cell, else by the most significant one.
    """
    known = significance.figures(table.ok, "speedup") if "speedup" in table.ok else unknown(len(table.ok))
    rows = np.flatnonzero(table.compiled())
    ratios, touched = known.take(rows), significance.unsteady(table.ok, "speedup")[rows]
    # A large uncertain speed-up is less of a gain than a smaller certain one.
    least = ratios.ends[0]
    answers = {(answer.row["cell"], answer.row["fingerprint"]) for answer, _ in table.answers if answer.row is not None}
    cells = zip(table.ok["cell"].iloc[rows], table.ok["fingerprint"].iloc[rows], strict=True)
    rank = np.where([cell in answers for cell in cells], np.inf, least)

    def said(place: int) -> str:
        return times(*map(plain, figures_of(ratios, place).values()), unsteady=bool(touched[place]))

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        models, lanes = table.codes(*_WHERE, "workload")[rows], table.codes(*_WHERE, "compiler_label")[rows]
        best = np.array([own[np.argmax(rank[own])] for own in groups(models, sure)], np.int64)
        for group in groups(lanes, best):
            ranked = group[np.argsort(-least[group], kind="stable")]
            cells = table.ok.iloc[rows[ranked]]
            first, lead = cells.iloc[0], int(ranked[0])
            also = [
                f"{said(int(place))} on {row['label']} at batch {row['batch']}"
                for place, (_, row) in zip(ranked[1:], cells.iloc[1:].iterrows(), strict=True)
            ]
            of_model = np.flatnonzero((models == models[lead]) & ~np.isnan(ratios.log))
            yield Finding(
                "gain",
                f"{first['compiler_label']} is {said(lead)} times {baselines.over(first)} on {first['label']} at batch "
                f"{first['batch']} on {table.context(first)}",
                sentence([
                    _beside(table, rows, ratios, of_model, lead, said),
                    f"It gains on other models, too: {listed(also)}." if also else "",
                    f"{UNSTEADY_MARK} {TOUCHED}." if touched[ranked].any() else "",
                ]),
                [
                    identity_of(table.row(rows[place]))
                    | {"metric": "speedup", **figures_of(ratios, int(place)), "p": float(adjusted[place])}
                    for place in ranked
                ],
                command(
                    "compare",
                    filters(cells, "devices", "workloads", "precision"),
                    "--metric", "speedup", "--intervals",
                ),
                weight("gain", float(ratios.log[lead])),
            )  # fmt: skip

    return Hypotheses(_where_shown(ratios, ratios.p_above(ABOVE)), answer)


def _beside(
    table: Cells, rows: Places, ratios: Estimate, of_model: Places, lead: int, said: Callable[[int], str]
) -> str:
    """Same compiler at other batch sizes, and the closest other cell at this one."""
    first = table.row(rows[lead])
    shown = np.isfinite(ratios.interval()[0])
    rest = [(int(place), table.row(rows[place])) for place in of_model if place != lead and shown[place]]
    own = [(place, row) for place, row in rest if row["compiler_label"] == first["compiler_label"]]
    others = [(place, row) for place, row in rest if row["batch"] == first["batch"]]
    clauses = []
    if own:
        others_of_it = [f"{said(place)} at batch {row['batch']}" for place, row in own]
        clauses.append(f"it is {listed(others_of_it)}")
    if others:
        place, row = max(others, key=lambda other: float(ratios.log[other[0]]))
        clauses.append(f"{row['compiler_label']} is {said(place)} at batch {row['batch']}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def losses(table: Cells) -> Hypotheses:
    """Cells in which a compiler is slower than the baseline."""

    def said(name: str, where: str, over: str, worst: str, others: str, count: str) -> tuple[str, str]:
        text = f"Throughput against {over}: {worst}{others}. That is {count}."
        return f"{name} is slower than {over} on {where}", text

    return _below(table, "speedup", "loss", said)


def missed(table: Cells) -> Hypotheses:
    """Cells with a batch scaling resilience below 1: from batch 1 on, the compiler falls behind the baseline."""

    def said(name: str, where: str, over: str, worst: str, others: str, count: str) -> tuple[str, str]:
        text = (
            f"Batch scaling resilience (BSR) against 1: {worst}{others}. The baseline, {over}, makes more of larger batches there: "
            f"the compiler missed something at these sizes. That is {count}."
        )
        return f"{name} loses part of its advantage at larger batches on {where}", text

    return _below(table, "bsr", "bsr", said)


def _below(table: Cells, metric: str, kind: str, said: Any) -> Hypotheses:
    """Cells of compilers with a ratio to the baseline below 1."""
    ratios = significance.figures(table.ok, metric) if metric in table.ok else unknown(len(table.ok))
    asked = table.compiled()
    if metric == "bsr":
        asked = asked & (table.ok["batch"] > 1).to_numpy(bool)
    rows = np.flatnonzero(asked)
    ratios = ratios.take(rows)

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        lanes = table.codes("place", "threads", "compiler_label", "precision", "mode", "baseline")
        for group in groups(lanes[rows], sure):
            ranked = group[np.argsort(ratios.log[group], kind="stable")]
            cells = table.ok.iloc[rows[ranked]]
            first = cells.iloc[0]
            asked_here = int(np.count_nonzero(lanes[rows] == lanes[rows[group[0]]]))
            rest = [f"{row['label']} at batch {row['batch']}" for _, row in cells.iloc[1:].iterrows()]
            title, text = said(
                first["compiler_label"],
                table.context(first),
                table.over(first),
                f"{first['label']} at batch {first['batch']}: {change(ratios, int(ranked[0]))}",
                f", also {listed(rest)}" if rest else "",
                f"{len(group)} of {asked_here} cells",
            )
            yield Finding(
                kind,
                title,
                text,
                [
                    identity_of(table.row(rows[place]))
                    | {"metric": metric, **figures_of(ratios, int(place)), "p": float(adjusted[place])}
                    for place in ranked
                ],
                command(
                    "compare",
                    filters(cells, "devices", "workloads", "compilers", "precision", "batch-sizes"),
                    "--metric", metric, "--intervals", "--sort", "value",
                ),
                weight(kind, float(ratios.log[ranked[0]])),
            )  # fmt: skip

    return Hypotheses(_where_shown(ratios, ratios.p_below(BELOW)), answer)


def _where_shown(ratios: Estimate, p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out ratios without an interval that can be shown: nothing is said of them."""
    return np.where(np.isnan(ratios.interval()[0]), np.nan, p_values)
