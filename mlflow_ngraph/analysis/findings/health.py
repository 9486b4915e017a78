"""Findings of cells that failed, are unsupported or not measured, and of noisy machines, without any test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis.findings.base import Cells, Finding, command, filters, identity_of, listed, sentence, weight
from mlflow_ngraph.metrics import EAGER, TOUCHED
from mlflow_ngraph.text import brief
from mlflow_ngraph.verdicts import Verdict

_KINDS = {
    Verdict.BUILT: ("built", "compiled for another device, and not measured yet"),
    Verdict.UNSUPPORTED: ("unsupported", "the compiler cannot do it"),
    Verdict.PARITY_FAILED: ("failed", "outputs differ from eager execution"),
    Verdict.UNVERIFIED: ("failed", "the model gives nothing to verify an engine with"),
    Verdict.TIMEOUT: ("failed", "the time limit was reached"),
    Verdict.OOM: ("failed", "memory did not suffice"),
    Verdict.FAILED: ("failed", "the compiler or its engine failed"),
    Verdict.CRASHED: ("failed", "the process crashed"),
    Verdict.LEFT_OUT: ("left_out", "there was no time to measure it"),
}
_WHERE = ("place", "threads", "precision", "mode")
_ALIKE = ("label", "verdict", "reason")
_LONGEST = 160


def findings(table: Cells) -> list[Finding]:
    """Findings about models that fail in eager execution, other failures by compiler and verdict, and disturbed
    devices.
    """
    latest = table.latest
    bad = latest[latest["verdict"] != str(Verdict.OK)]
    troubles = _of_verdicts(table, bad) if len(bad) else []
    if "noise" in latest:
        noisy = latest[(latest["noise"].fillna("") != "") & latest["throughput"].notna()]
        troubles += [_of_machine(table, cells) for _, cells in noisy.groupby(["place"], dropna=False, sort=False)]
    return troubles


def _of_verdicts(table: Cells, bad: pd.DataFrame) -> list[Finding]:
    alike = bad.assign(eager=bad["compiler"] == EAGER).groupby([*_WHERE, *_ALIKE], sort=False, dropna=False)
    of_model = (alike["compiler"].transform("nunique") > 1) & alike["eager"].transform("any")
    of_model &= bad["reason"].fillna("") != ""  # without reasons the failures may be different ones
    troubles = [
        _of_model(table, cells) for _, cells in bad[of_model].groupby([*_WHERE, *_ALIKE], dropna=False, sort=False)
    ]
    for _, cells in bad[~of_model].groupby([*_WHERE, "compiler_label", "verdict"], dropna=False, sort=False):
        troubles.append(_of_compiler(table, cells))
    return troubles


def _of_machine(table: Cells, cells: pd.DataFrame) -> Finding:
    row, beside = cells.iloc[0], _like(table.latest, cells.iloc[0], ("place",))
    reason = cells["noise"].value_counts().index[0]
    return Finding(
        "noise",
        f"{row['place']} was not quiet: absolute figures of {len(cells)} of {len(beside)} cells are unsteady",
        sentence([
            f"Their throughput, latency, CPU use, RTR and ASE are marked, and have wider intervals; {TOUCHED}.",
            f"Most often: {brief(str(reason), _LONGEST)}",
        ]),
        [identity_of(cell) | {"noise": str(cell["noise"])} for _, cell in cells.iterrows()],
        command("compare", filters(cells, "devices", "workloads"), "--intervals"),
        weight("noise", len(cells) / len(beside)),
    )  # fmt: skip


def _of_model(table: Cells, cells: pd.DataFrame) -> Finding:
    """Failures without a compiler, which no compiler is to blame for."""
    row = cells.iloc[0]
    verdict = str(row["verdict"])
    batches = ", ".join(str(batch) for batch in sorted(cells["batch"].unique()))
    return _finding(
        table,
        cells,
        f"{row['label']} on {table.context(row)}: {verdict} in eager execution, and the same with compilers",
        f"At batch {batches} with {listed(cells['compiler_label'])}.",
        "Reason",
        len(cells) / len(_like(table.latest, row, (*_WHERE, "label"))),
    )


def _of_compiler(table: Cells, cells: pd.DataFrame) -> Finding:
    row = cells.iloc[0]
    verdict, beside = str(row["verdict"]), _like(table.latest, row, (*_WHERE, "compiler_label"))
    texts = [f"{cell['label']} at batch {cell['batch']}" for _, cell in cells.iterrows()]
    return _finding(
        table,
        cells,
        f"{row['compiler_label']} on {table.context(row)}: {len(cells)} of {len(beside)} cells {verdict}",
        f"{listed(texts)}: {_KINDS[Verdict(verdict)][1]}.",
        "First reason",
        len(cells) / len(beside),
    )


def _finding(table: Cells, cells: pd.DataFrame, title: str, text: str, says: str, share: float) -> Finding:
    """Finding about cells of one verdict."""
    verdict = str(cells["verdict"].iloc[0])
    kind, lost = _KINDS[Verdict(verdict)][0], _were_ok(table, cells)
    reasons = [reason for reason in cells["reason"].dropna() if reason]
    return Finding(
        kind,
        title,
        sentence([
            text,
            f"{len(lost)} of them were ok in an earlier study: {listed(lost)}." if lost else "",
            f"{says}: {brief(str(reasons[0]), _LONGEST)}" if reasons else "",
        ]),
        [
            identity_of(cell) | {"verdict": verdict, "reason": "" if pd.isna(cell["reason"]) else str(cell["reason"])}
            for _, cell in cells.iterrows()
        ],
        command(
            "results findings",
            filters(cells, "devices", "workloads", "compilers", "precision", "batch-sizes"),
            "--kinds", kind, "--json",
        ),
        weight(kind, share + len(lost)),
    )  # fmt: skip


def _like(latest: pd.DataFrame, row: pd.Series[Any], names: Sequence[str]) -> pd.DataFrame:
    beside = latest
    for column in names:
        same = latest[column].isna() if pd.isna(row[column]) else latest[column] == row[column]
        beside = beside[same.reindex(beside.index).fillna(False).astype(bool)]
    return beside


def _were_ok(table: Cells, cells: pd.DataFrame) -> list[str]:
    """Cells that an earlier study measured successfully on the same machine."""
    earlier = table.all[(table.all["verdict"] == str(Verdict.OK)) & table.all["cell"].isin(cells["cell"])]
    known = set(zip(earlier["cell"], earlier["fingerprint"], strict=True))
    return [
        f"{row['label']} at batch {row['batch']}"
        for _, row in cells.iterrows()
        if (row["cell"], row["fingerprint"]) in known
    ]
