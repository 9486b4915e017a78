"""Models of which nobody can say what runs them fastest."""

from __future__ import annotations

import math

from mlflow_ngraph.analysis import decision
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.findings.base import Finding, Table, command, weight
from mlflow_ngraph.metrics import CELL_METRICS

_METRIC = CELL_METRICS["throughput"]


def findings(table: Table) -> list[Finding]:
    """One finding for each model on a device of which it is open what runs it fastest, or at which batch size."""
    cells = table.latest.reset_index(drop=True)
    compared = Comparison(cells, _METRIC)
    doubts = []
    for answer, ranked in decision.answers(compared, compared.ranks | compared.doubtful, ("workload", "place")):
        if not (len(ranked) and answer.rivals):
            continue
        best = cells.iloc[ranked[0]]
        hopes = [
            rival.ratio_ci_high or (1.0 if rival.value is None else rival.value / best[_METRIC.name])
            for rival in answer.rivals
        ]
        what = "what runs" if not answer.decided else "the batch size that runs"
        doubts.append(
            Finding(
                "undecided",
                f"{what} {best['label']} fastest on {table.context(best)} is undecided",
                f"{answer.said[0].upper()}{answer.said[1:]}",
                [rival.to_plain() for rival in answer.rivals],
                command("compare", {"devices": [best["device"]], "workloads": [best["label"]]}, "--intervals"),
                weight("undecided", math.log(max(hopes))),
            )
        )
    return doubts
