"""Models with an undecided fastest compiler or batch size, and models with ties."""

from __future__ import annotations

import math

from mlflow_ngraph.analysis.findings.base import Finding, Table, command, identity_of, weight


def findings(table: Table) -> list[Finding]:
    """One finding for each undecided answer, and one for each tie between compilers."""
    found = []
    for answer, _ in table.answers:
        best = answer.row
        if best is None:
            continue
        others = [row for row in answer.equals if row["compiler_label"] != best["compiler_label"]]
        if answer.rivals:
            kind, what = "undecided", "the batch size that runs" if answer.decided else "what runs"
            title = f"{what} {best['label']} fastest on {table.context(best)} is undecided"
            evidence = [rival.to_plain() for rival in answer.rivals]
            hopes = [
                rival.ratio_ci_high or (1.0 if rival.value is None else rival.value / best["throughput"])
                for rival in answer.rivals
            ]
            size = math.log(max(hopes))
        elif others:
            kind, size = "tie", 0.0
            names = dict.fromkeys(str(row["compiler_label"]) for row in (best, *others))
            title = f"{best['label']} on {table.context(best)}: either of {' and '.join(names)}"
            evidence = [identity_of(row) for row in (best, *others)]
        else:
            continue
        found.append(
            Finding(
                kind,
                title,
                f"{answer.said[0].upper()}{answer.said[1:]}",
                evidence,
                command("compare", {"devices": [best["device"]], "workloads": [best["label"]]}, "--intervals"),
                weight(kind, size),
            )
        )
    return found
