"""Losses against the baseline: in speed, or in scaling with the batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.findings.base import (
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
    weight,
)
from mlflow_ngraph.estimates import unknown


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

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> list[Finding]:
        lanes = table.codes("place", "threads", "compiler_label", "precision", "mode", "baseline")
        findings = []
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
            findings.append(
                Finding(
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
                )
            )  # fmt: skip
        return findings

    return Hypotheses(ratios.p_below(BELOW), answer)
