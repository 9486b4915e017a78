"""Model card of an engine in Markdown, for the package and its page in MLflow."""

from __future__ import annotations

from datetime import datetime, timezone

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.tables.sheet import Sheet, escaped, markdown
from mlflow_ngraph.tables.summary import of_lane

FILE = "README.md"
"""Path of the card in an engine's package."""


def card(record: StudyRecord, engine: EngineRecord, spec: EngineSpec, model_id: str) -> str:
    """Description of an engine, its figures, and its use."""
    lane = record.lanes[engine.lane]
    cells = [lane.cells[batch] for batch in engine.batch_sizes if batch in lane.cells]
    return "\n".join(
        [
            f"# {escaped(lane.lane.label)} with {spec.compiler} on {record.device}",
            "",
            markdown(_facts(record, engine, spec)),
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
            f"    outputs = engine.run({{{', '.join(repr(tensor.name) + ': ...' for tensor in spec.inputs)}}})",
            "```",
            "",
            f"`mlflow-ngraph engine verify models:/{model_id}` checks its files, whether it fits a machine, and its outputs.",
            "",
        ]
    )


def _facts(record: StudyRecord, engine: EngineRecord, spec: EngineSpec) -> Sheet:
    lane, asked = record.lanes[engine.lane], spec.target.precision
    in_force = lane.precision_of(engine)
    precision = asked if in_force in (None, asked) else f"{in_force} ({asked} asked for)"
    compiled = datetime.fromtimestamp(engine.at, timezone.utc)
    facts = {
        "Workload": spec.workload,
        "Inputs": "; ".join(f"{one.name} {one.dtype} {_shape(one.shape)}" for one in spec.inputs),
        "Compiler": f"{spec.compiler} {record.versions.get(spec.compiler) or ''}".strip(),
        "Precision": precision,
        "Mode": spec.target.mode,
        "Outputs compared with": f"those of {spec.reference_by}" if spec.reference_by else "",
        "Batch sizes": ", ".join(map(str, spec.batch_sizes)),
        "Compiled": f"{compiled:%Y-%m-%d %H:%M} UTC" + (", by another study" if engine.reused is not None else ""),
        "Size": f"{engine.size_bytes / 1e6:.3g} MB",
        "Needs": ", ".join(f"{name} {value}" for name, value in sorted(engine.requires.items())),
        "Flags": ", ".join(f"{name}={value}" for name, value in sorted(lane.flags_of(engine).items())),
    }
    return Sheet("", ["", ""], [pair for pair in facts.items() if pair[1]])


def _shape(sizes: tuple[int | str, ...]) -> str:
    return "×".join(map(str, sizes))
