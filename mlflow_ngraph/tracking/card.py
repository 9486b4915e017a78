"""The card of an engine: for people, beside the engine and on its page in MLflow, in Markdown."""

from __future__ import annotations

from datetime import datetime, timezone

from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.tables.sheet import Sheet, escaped, markdown
from mlflow_ngraph.tables.summary import of_lane
from mlflow_ngraph.tracking import study_manifest

FILE = "README.md"
"""Where the card lies in the package of an engine."""


def card(record: StudyRecord, engine: EngineRecord, model_id: str) -> str:
    """What an engine is, what was measured of it, and how it is used."""
    about = study_manifest.about(record, engine)
    measured = record.lanes[engine.lane].cells
    cells = [measured[batch] for batch in engine.batch_sizes if batch in measured]
    return "\n".join(
        [
            f"# {escaped(about.label)} with {about.compiler} on {record.device}",
            "",
            markdown(_facts(record, engine)),
            "",
            f"Measured in the study `{record.id}`. A number whose verdict is not `ok` may not be trusted.",
            "",
            markdown(of_lane(cells, record.baseline)),
            "",
            "## Use it",
            "",
            "```python",
            "import mlflow_ngraph",
            "",
            f'with mlflow_ngraph.load_model("models:/{model_id}") as engine:',
            f"    outputs = engine.run({{{', '.join(repr(str(spec['name'])) + ': ...' for spec in about.inputs)}}})",
            "```",
            "",
            f"`mlflow-ngraph verify models:/{model_id}` checks its files, whether it fits a machine, and its outputs.",
            "",
        ]
    )


def _facts(record: StudyRecord, engine: EngineRecord) -> Sheet:
    about = study_manifest.about(record, engine)
    in_force = about.precision_in_force
    precision = about.precision if in_force in (None, about.precision) else f"{in_force} ({about.precision} asked for)"
    compiled = datetime.fromtimestamp(engine.at, timezone.utc)
    facts = {
        "Workload": about.workload,
        "Inputs": "; ".join(f"{spec['name']} {spec['dtype']} {_shape(spec['shape'])}" for spec in about.inputs),
        "Compiler": f"{about.compiler} {about.compiler_version or ''}".strip(),
        "Precision": precision,
        "Mode": about.mode,
        "Outputs compared with": f"those of {about.reference_by}" if about.reference_by else "",
        "Batch sizes": ", ".join(map(str, about.batch_sizes)),
        "Compiled": f"{compiled:%Y-%m-%d %H:%M} UTC" + (", by another study" if engine.reused is not None else ""),
        "Size": f"{engine.size_bytes / 1e6:.3g} MB",
        "Needs": ", ".join(f"{name} {value}" for name, value in sorted(engine.requires.items())),
        "Flags": ", ".join(f"{name}={value}" for name, value in sorted(about.flags.items())),
    }
    return Sheet("", ["", ""], [pair for pair in facts.items() if pair[1]])


def _shape(sizes: list[object]) -> str:
    return "×".join(map(str, sizes))
