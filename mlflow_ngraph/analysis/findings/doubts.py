"""Models of which nobody can say what runs them fastest."""

from __future__ import annotations

import math

import numpy as np

from mlflow_ngraph.analysis import contest, undecided
from mlflow_ngraph.analysis.findings.base import Finding, Table, command, weight
from mlflow_ngraph.metrics import CELL_METRICS

_WHERE = ["place", "threads", "workload", "precision", "mode"]
_METRIC = CELL_METRICS["throughput"]


def findings(table: Table) -> list[Finding]:
    """One finding for each model on a device, in a precision and mode, whose best cell could be beaten."""
    doubts = []
    for _, own in table.latest.groupby(_WHERE, dropna=False, sort=False):
        cells = own.reset_index(drop=True)
        order = np.argsort(-cells[_METRIC.name].to_numpy(float), kind="stable")
        order = order[contest.ranks(cells, _METRIC.name)[order]]
        if not len(order):  # no best is named there
            continue
        answer = contest.leader(cells, _METRIC.name, _METRIC.better, order)
        rivals = contest.rivals(cells, _METRIC, answer)
        if not rivals:
            continue
        best = cells.iloc[answer]
        text = undecided.said(rivals, best, undecided.figure(best[_METRIC.name], _METRIC.name, _METRIC.unit))
        hopes = [
            rival.ratio_ci_high or (1.0 if rival.value is None else rival.value / best[_METRIC.name])
            for rival in rivals
        ]
        doubts.append(
            Finding(
                "undecided",
                f"what runs {best['label']} fastest on {table.context(best)} is undecided",
                f"{text[0].upper()}{text[1:]}.",
                [rival.to_plain() for rival in rivals],
                command(
                    "compare",
                    {"devices": [best["device"]], "workloads": [best["label"]], "precision": [best["precision"]]},
                    "--intervals",
                ),
                weight("undecided", math.log(max(hopes))),
            )
        )  # fmt: skip
    return doubts
