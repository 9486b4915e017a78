"""Description of a study run in Markdown: answer, links to charts, table, search filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables import summary
from mlflow_ngraph.tables.sheet import fitting
from mlflow_ngraph.tracking import schema, views
from mlflow_ngraph.tracking.schema import Param, Tag
from mlflow_ngraph.workloads.naming import unique_names


def of_study(record: StudyRecord, answers: Sequence[str], charts: Mapping[str, str]) -> str:
    """Description of a study run in Markdown; of a long table as much as a tag holds.

    ``answers`` are conclusions from the results, a line each: MLflow folds away all but the first lines. ``charts`` are
    addresses, by the name of a model.
    """
    links = [f"[{model}]({address})" for model, address in charts.items()]
    before = [*(["\n".join(f"- {answer}" for answer in answers)] if answers else [])]
    before += [f"Charts: {', '.join(links)}"] if links else []
    filters = "\n".join(_filters(record))
    after = f"## Filters to copy\n\n```text\n{filters}\n```\n\n`speedup`, `throughput` and latencies are the best over batch sizes."
    room = schema.MAX_TAG - sum(len(part) + 2 for part in (*before, after))
    table = fitting(replace(summary.sheet(record), notes=()), room, "in the artifact summary.md")
    return "\n\n".join([*before, table, after])


def models(record: StudyRecord) -> dict[str, tuple[str, ...]]:
    """Filters that find the lane runs of each measured model, by its name."""
    labels = {lane.lane.workload: lane.lane.label for lane in record.lanes.values()}
    return {
        name: (
            f"params.`{Param.WORKLOAD}` = {views.quoted(schema.cut(ref, schema.MAX_PARAM))}",
            f"tags.`{Tag.MODEL_CONTENT}` = '{content}'",
        )
        for ref, name in unique_names(labels).items()
        if (content := record.content(ref))
    }


def _filters(record: StudyRecord) -> list[str]:
    """Search filters of MLflow that find lane runs of this study."""
    lanes = [lane.lane for lane in record.lanes.values()]
    examples = [f"params.{Param.MODEL} = {views.quoted(lane.label)}" for lane in lanes[:1]]
    examples += [f"params.{Param.COMPILER} = '{lane.compiler}' AND metrics.latency_p50_ms < 2" for lane in lanes[-1:]]
    return ["metrics.speedup > 2", *examples, f"tags.`{Tag.STUDY_ID}` = '{record.id}'"]
