"""Cells without a trustworthy number: nothing is tested here, a verdict is a verdict."""

from __future__ import annotations

import pandas as pd

from mlflow_ngraph.analysis.findings.base import Finding, Table, command, filters, identity_of, listed, sentence, weight
from mlflow_ngraph.verdicts import Verdict

_KINDS = {
    Verdict.UNSTABLE: ("unstable", "the machine was not quiet enough"),
    Verdict.UNSUPPORTED: ("unsupported", "the compiler cannot do it"),
    Verdict.PARITY_FAILED: ("failed", "outputs differ from eager execution"),
    Verdict.TIMEOUT: ("failed", "the time limit was reached"),
    Verdict.OOM: ("failed", "memory did not suffice"),
    Verdict.FAILED: ("failed", "the compiler or its engine failed"),
    Verdict.CRASHED: ("failed", "the process crashed"),
}
_LONGEST = 160


def findings(table: Table) -> list[Finding]:
    """One finding for each compiler on a device and each verdict but ``ok``."""
    latest = table.latest
    names = ["place", "threads", "compiler_label", "precision", "mode"]
    found = []
    for _, arm in latest[latest["verdict"] != str(Verdict.OK)].groupby(names, dropna=False, sort=False):
        for verdict, cells in arm.groupby("verdict", sort=False):
            kind, meaning = _KINDS[Verdict(str(verdict))]
            row = cells.iloc[0]
            beside = latest
            for name in names:
                same = latest[name].isna() if pd.isna(row[name]) else latest[name] == row[name]
                beside = beside[same.reindex(beside.index).fillna(False).astype(bool)]
            texts = [f"{cell['label']} at batch {cell['batch']}" for _, cell in cells.iterrows()]
            reasons = cells["reason"].dropna()
            reasons = reasons[reasons != ""]
            lost = _were_ok(table, cells)
            found.append(
                Finding(
                    kind,
                    f"{row['compiler_label']} on {table.context(row)}: {len(cells)} of {len(beside)} cells {verdict}",
                    sentence([
                        f"{listed(texts)}: {meaning}.",
                        f"{len(lost)} of them were ok in an earlier study: {listed(lost)}." if lost else "",
                        f"First reason: {_short(str(reasons.iloc[0]))}" if len(reasons) else "",
                    ]),
                    [
                        identity_of(cell)
                        | {"verdict": str(verdict), "reason": "" if pd.isna(cell["reason"]) else str(cell["reason"])}
                        for _, cell in cells.iterrows()
                    ],
                    _command(kind, cells),
                    weight(kind, len(cells) / max(len(beside), 1) + len(lost)),
                )
            )  # fmt: skip
    return found


def _command(kind: str, cells: pd.DataFrame) -> str:
    """What has numbers is compared; of what has none the reasons are all there is."""
    names = ("devices", "workloads", "compilers", "precision", "batch-sizes")
    if kind == "unstable" and bool(cells["throughput"].notna().any()):
        return command("compare", filters(cells, *names), "--include", "unstable", "--intervals")
    return command("findings", filters(cells, *names), "--kinds", kind, "--json")


def _were_ok(table: Table, cells: pd.DataFrame) -> list[str]:
    """Of these cells those that an earlier study could measure on the same machine."""
    earlier = table.all[(table.all["verdict"] == str(Verdict.OK)) & table.all["cell"].isin(cells["cell"])]
    known = set(zip(earlier["cell"], earlier["fingerprint"], strict=True))
    return [
        f"{row['label']} at batch {row['batch']}"
        for _, row in cells.iterrows()
        if (row["cell"], row["fingerprint"]) in known
    ]


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
