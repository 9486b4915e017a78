"""Survey of all kinds of findings, tested as one family and sorted; undecided answers, ties; as Markdown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.decision import Answer
from mlflow_ngraph.analysis.findings import gains_and_losses, health, regressions, reversals, scaling
from mlflow_ngraph.analysis.findings.base import MOST_ALIKE, Cells, Finding, command, identity_of, weight
from mlflow_ngraph.estimates import ALPHA
from mlflow_ngraph.text import counted

_KINDS = (
    gains_and_losses.gains,
    reversals.compiled,
    reversals.devices,
    gains_and_losses.losses,
    gains_and_losses.missed,
    scaling.knees,
    scaling.friction,
    regressions.regressions,
)


@dataclass(frozen=True)
class Survey:
    """Findings with the number of tests."""

    findings: list[Finding]
    """The most important one first."""
    hypotheses: int
    """Number of tested hypotheses."""
    cells: int
    """Number of cells: the latest of each cell and machine."""
    crowded: bool = False
    """More models were measured in equal conditions than are compared pair by pair."""

    @property
    def tested(self) -> str:
        """``1 hypothesis about 2 cells``."""
        said = f"{counted(self.hypotheses, 'hypothesis', 'hypotheses')} about {counted(self.cells, 'cell')}"
        without = f" (not the order of over {MOST_ALIKE} models in equal conditions)" if self.crowded else ""
        return said + without


def find(frame: pd.DataFrame) -> list[Finding]:
    """Findings of the results, the most important first; docs/explanation/comparing.md describes the tests."""
    return survey(frame).findings


def survey(frame: pd.DataFrame) -> Survey:
    """As `find`, with the number of tests."""
    if frame.empty:
        return Survey([], 0, 0)
    table = Cells(frame)
    asked = [ask(table) for ask in _KINDS]
    p_values = np.concatenate([hypotheses.p_values for hypotheses in asked])
    adjusted = significance.holm(p_values)
    findings = [*health.findings(table), *undecided(table)]
    start = 0
    for questions in asked:
        own = adjusted[start : start + len(questions.p_values)]
        start += len(questions.p_values)
        with np.errstate(invalid="ignore"):
            sure = np.flatnonzero(own < ALPHA)
        if len(sure):
            findings += questions.answer(sure, own)
    findings.sort(key=lambda finding: -finding.weight)
    crowded = len(table.ok) > 0 and int(np.bincount(reversals.alike(table)).max()) > MOST_ALIKE
    return Survey(findings, int(np.count_nonzero(~np.isnan(p_values))), len(table.latest), crowded)


def undecided(table: Cells) -> list[Finding]:
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
                _told(answer),
                evidence,
                answer.command
                or command("compare", {"devices": [best["device"]], "workloads": [best["workload"]]}, "--intervals"),
                weight(kind, size),
            )
        )
    return found


def _told(answer: Answer) -> str:
    """Sentence of an answer without its command, and without what the title says."""
    said = answer.sentence.removesuffix(answer.command).rstrip()
    rest = said.removeprefix(f"undecided for {answer.where}").lstrip(": ")
    rest = rest if answer.decided else rest.removeprefix(f"{answer.where}: ")
    return rest[:1].upper() + rest[1:] if rest != said else said


def markdown(findings: list[Finding]) -> str:
    """Markdown list of findings."""
    if not findings:
        return "No findings.\n"
    return (
        "\n".join(
            f"- **{_plain(finding.title)}.** {_plain(finding.text)}\n  `{finding.command}`" for finding in findings
        )
        + "\n"
    )


def _plain(text: str) -> str:
    return text.replace("*", r"\*").replace("<", "&lt;")
