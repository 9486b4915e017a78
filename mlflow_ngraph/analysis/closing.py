"""The last lines of a study: for each workload one sentence that says what to run, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.objectives import limits
from mlflow_ngraph.text import missing, rounded

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.execute.record import StudyRecord

_TIES = 3
"""Choices that are as good of which a sentence names so many before it counts the others."""


def answers(record: StudyRecord) -> list[str]:
    """What the study recommends as ``mlflow-ngraph recommend`` does, workload by workload: for what it was to decide, else for the
    highest throughput.
    """
    from mlflow_ngraph.analysis.recommend import recommend
    from mlflow_ngraph.tables import results

    frame, asked = results.from_record(record), record.study
    try:
        table = recommend(
            frame, objective=asked.get("objective") or "throughput", limits=limits(asked.get("bounds", {}))
        )
    except UsageError as error:
        return [f"no answer: {error}"]
    said = {str(doubt["workload"]): str(doubt["said"]) for doubt in table.attrs["undecided"]}
    for nothing in table.attrs["nothing"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in nothing["refused"].items())
        said.setdefault(str(nothing["workload"]), f"no answer: of {nothing['cells']} cells {reasons}")
    for row in table[table["best"]].to_dict("records"):
        rivals = table[(table["workload"] == row["workload"]) & table["tied"]]
        measured = frame[frame["cell"] == row["cell"]].to_dict("records")[0]
        said[str(row["workload"])] = "; ".join(_sentence(row, measured, rivals, table.attrs["unit"]))
    return [f"{workload}: {said[workload]}" for workload in dict.fromkeys(frame["workload"]) if workload in said]


def _sentence(row: dict[Any, Any], measured: dict[Any, Any], ties: pd.DataFrame, unit: str) -> Iterator[str]:
    from mlflow_ngraph.analysis import undecided

    three = partial(rounded, digits=3)
    yield f"{undecided.named(row)}, {three(row['value'])} {unit}{_ends(row['ci_low'], row['ci_high'], three)}"
    base = str(measured["baseline"])
    if row["compiler_label"] == base:
        yield "no compiler was faster than eager execution" if base == EAGER else f"nothing was faster than {base}"
    elif not missing(measured["speedup"]):
        ends = _ends(measured["speedup_ci_low"], measured["speedup_ci_high"], "{:.2f}".format)
        yield f"{measured['speedup']:.2f} times {'eager' if base == EAGER else base}{ends}"
    if len(ties):
        names = [undecided.named(tie) for tie in ties.head(_TIES).to_dict("records")]
        more = f" and {len(ties) - _TIES} more" if len(ties) > _TIES else ""
        yield f"not told apart from {', '.join(names)}{more}"


def _ends(low: Any, high: Any, written: Callable[[float], str]) -> str:
    """The interval; without one it is said that there is none."""
    return " (no interval)" if missing(low) or missing(high) else f" [{written(low)}, {written(high)}]"
