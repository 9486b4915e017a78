"""Closing lines of a study: one recommendation for each workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.objectives import limits

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import StudyRecord


def answers(record: StudyRecord) -> list[str]:
    """Recommend for each workload by the study's objective, else by throughput, as ``mlflow-ngraph recommend`` does."""
    from mlflow_ngraph.analysis.recommend import recommend
    from mlflow_ngraph.tables import results

    frame, asked = results.from_record(record), record.study
    try:
        _, about = recommend(
            frame, objective=asked.get("objective") or "throughput", limits=limits(asked.get("bounds", {}))
        )
    except UsageError as error:
        return [f"no answer: {error}"]
    said = {str(answer["workload"]): str(answer["said"]) for answer in about["answers"]}
    for nothing in about["nothing"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in nothing["refused"].items())
        text = f"{nothing['label']} on {nothing['device']}: no answer: of {nothing['cells']} cells {reasons}"
        said.setdefault(str(nothing["workload"]), text)
    return [said[workload] for workload in dict.fromkeys(frame["workload"]) if workload in said]
