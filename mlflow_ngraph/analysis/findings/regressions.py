"""Regressions: cells that are slower in the latest study than in the one before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import between_studies
from mlflow_ngraph.analysis.compare import ALIKE
from mlflow_ngraph.analysis.comparison import Comparison
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
    sentence,
    weight,
)
from mlflow_ngraph.metrics import EAGER, METRICS
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.verdicts import Verdict


def regressions(table: Cells) -> Hypotheses:
    """Cells that are slower in the latest study, on the same machine."""
    rows, now, before = _runs(table)
    earlier = rows[~rows.index.isin(now)]
    between = between_studies.of_machines(earlier, set(rows["device"].dropna()), "throughput")
    plainly = Comparison(rows, METRICS["throughput"]).ratios(now, before)
    ratios = between_studies.widened_between(plainly, rows, now, before, between)

    def answer(sure: Places, adjusted: NDArray[np.float64]) -> Iterator[Finding]:
        arms = _numbers(rows, ("place", "threads", "compiler_label", "precision", "mode", "study_id"))
        studies = pd.factorize(rows["study_id"])[0]
        code = arms[now] * (int(studies.max(initial=0)) + 1) + studies[before]
        for group in groups(code, sure):
            ranked = group[np.argsort(ratios.log[group], kind="stable")]
            worst = int(ranked[0])
            cells, earlier = rows.iloc[now[ranked]], rows.iloc[before[worst]]
            first = cells.iloc[0]
            together = int(np.count_nonzero(code == code[worst]))
            others = [f"{row['label']} at batch {row['batch']}" for _, row in cells.iloc[1:].iterrows()]
            yield Finding(
                "regression",
                f"{first['compiler_label']} on {table.context(first)} became slower since {_when(earlier)}",
                sentence([
                    f"{first['label']} at batch {first['batch']}: {change(ratios, worst)} in {first['study_id']}"
                    f"{_commit(first)} against {earlier['study_id']}{_commit(earlier)}"
                    + (f"; also {listed(others)}" if others else "") + ".",
                    f"That is {len(group)} of {together} cells that both measured.",
                    "" if between_studies.machines(cells.iloc[:1])[0] in between else
                    "What studies of this machine differ by without any cause is not known yet.",
                    _of_baseline(rows, now, before, worst, ratios) if not baselines.own(rows.iloc[[now[worst]]])[0] else
                    "It is the baseline itself that changed: look at the machine first.",
                ]),
                [
                    identity_of(rows.iloc[now[place]])
                    | {"than_study_id": str(rows["study_id"].iloc[before[place]]), "metric": "throughput",
                       **figures_of(ratios, int(place)), "p": float(adjusted[place])}
                    for place in ranked
                ],
                command(
                    "compare",
                    filters(cells, "devices", "workloads", "compilers", "precision", "batch-sizes", "studies"),
                    "--relative-to", f"study_id={earlier['study_id']}", "--intervals",
                ),
                weight("regression", float(ratios.log[worst])),
            )  # fmt: skip

    return Hypotheses(ratios.p_below(BELOW), answer)


def _runs(table: Cells) -> tuple[pd.DataFrame, Places, Places]:
    """All ok rows, and the positions of the last two of each repeated cell."""
    measured = table.all[table.all["throughput"].notna()]
    rows = measured.reset_index(drop=True)
    ok = (rows["verdict"] == str(Verdict.OK)).to_numpy(bool)
    code = _numbers(rows, ("fingerprint", *ALIKE))
    studies = pd.factorize(rows["study_id"], use_na_sentinel=False)[0]
    now, before = [], []
    for group in groups(code, np.arange(len(rows), dtype=np.int64)):
        # Rows are in order of time. A study on several servers counts once.
        last = group[-1]
        earlier = [place for place in group if ok[place] and studies[place] != studies[last]]
        if ok[last] and earlier:
            now.append(last)
            before.append(earlier[-1])
    return rows, np.array(now, np.int64), np.array(before, np.int64)


def _of_baseline(rows: pd.DataFrame, now: Places, before: Places, place: int, ratios: Any) -> str:
    """Change of the baseline meanwhile. If it changed as well, the machine did."""
    names = ["fingerprint", *(name for name in ALIKE if name != "compiler_label")]
    keys = _numbers(rows, names)
    over = baselines.labels(rows)[now]
    alike = (keys[now] == keys[now[place]]) & (over == over[place])
    own = np.flatnonzero(alike & baselines.own(rows.iloc[now]))
    if not len(own):
        return ""
    said = f"{'Eager execution' if over[place] == EAGER else over[place]} changed by {change(ratios, int(own[0]))} meanwhile"
    if abs(np.log(float(ratios.value[own[0]]))) > np.log(1 / BELOW):
        return f"{said}: look at the machine first."
    return f"{said}."


def _numbers(rows: pd.DataFrame, names: Any) -> Places:
    """Number the rows that are equal in these columns."""
    numbers = rows.groupby(list(names), sort=False, dropna=False, observed=True).ngroup().to_numpy(np.int64)
    return np.asarray(numbers, np.int64)


def _when(row: Any) -> str:
    return f"{datetime.fromtimestamp(float(row['started_at']), timezone.utc):%Y-%m-%d %H:%M} UTC"


def _commit(row: Any) -> str:
    return "" if pd.isna(row["git_commit"]) or not row["git_commit"] else f" (commit {row['git_commit'][:8]})"
