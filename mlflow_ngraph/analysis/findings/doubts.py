"""Models of which nobody can say what runs them fastest: a cell that was left out for its noise could be the best one."""

from __future__ import annotations

import math

from mlflow_ngraph.analysis import undecided
from mlflow_ngraph.analysis.findings.base import Finding, Table, command, weight
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.verdicts import Verdict

_WHERE = ["place", "threads", "workload", "precision", "mode"]
_METRIC = CELL_METRICS["throughput"]


def findings(table: Table) -> list[Finding]:
    """One finding for each model on a device, in a precision and mode, whose best ok cell could be beaten."""
    noisy = table.latest[undecided.cells(table.latest, _METRIC.name)]
    doubted = table.latest.merge(noisy[_WHERE].drop_duplicates(), on=_WHERE)
    found = []
    for _, cells in doubted.groupby(_WHERE, dropna=False, sort=False):
        trusted = cells[(cells["verdict"] == str(Verdict.OK)) & cells[_METRIC.name].notna()]
        if trusted.empty:  # no best is named there
            continue
        best = trusted.loc[trusted[_METRIC.name].idxmax()]
        rivals = undecided.rivals(cells, _METRIC, float(best[_METRIC.name]))
        if not rivals:
            continue
        answer = f"{undecided.named(best)}, {undecided.figure(best[_METRIC.name], _METRIC.name, _METRIC.unit)}"
        told = undecided.said(rivals, answer)
        found.append(
            Finding(
                "undecided",
                f"what runs {best['label']} fastest on {table.context(best)} is undecided",
                f"{told[0].upper()}{told[1:]}.",
                [one.to_plain() for one in rivals],
                command(
                    "compare",
                    {"devices": [best["device"]], "workloads": [best["label"]], "precision": [best["precision"]]},
                    "--include", "unstable", "--intervals",
                ),
                weight("undecided", math.log(max(one.value for one in rivals) / best[_METRIC.name])),
            )
        )  # fmt: skip
    return found
