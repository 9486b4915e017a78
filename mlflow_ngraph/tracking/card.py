"""The card of an engine: for people, beside the engine and on its page in MLflow, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.metrics import METRICS, titled
from mlflow_ngraph.text import UNSTEADY_MARK, rounded
from mlflow_ngraph.tracking import study_manifest

FILE = "README.md"
"""Where the card lies in the package of an engine."""
_FIGURES = {
    "throughput": "throughput [samples/s]",
    "latency_p50_ms": "p50 [ms]",
    "latency_p99_ms": "p99 [ms]",
    "speedup": "speed-up",
    "parity_cosine": "cosine",
}


def card(record: StudyRecord, engine: EngineRecord, model_id: str) -> str:
    """What an engine is, what was measured of it, and how it is used."""
    about = study_manifest.about(record, engine)
    return "\n".join(
        [
            f"# {_plain(about.label)} with {about.compiler} on {record.device}",
            "",
            *_facts(record, engine),
            "",
            f"Measured in the study `{record.id}`. A number whose verdict is not `ok` may not be trusted.",
            "",
            *_figures(record, engine),
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


def _facts(record: StudyRecord, engine: EngineRecord) -> Iterator[str]:
    about = study_manifest.about(record, engine)
    in_force = about.precision_in_force
    precision = about.precision if in_force in (None, about.precision) else f"{in_force} ({about.precision} asked for)"
    compiled = datetime.fromtimestamp(engine.at, timezone.utc)
    facts = {
        "Workload": f"`{about.workload}`",
        "Inputs": "; ".join(f"`{spec['name']}` {spec['dtype']} {_shape(spec['shape'])}" for spec in about.inputs),
        "Compiler": f"{about.compiler} {about.compiler_version or ''}".strip(),
        "Precision": precision,
        "Mode": about.mode,
        "Outputs compared with": f"those of {about.reference_by}" if about.reference_by else "",
        "Batch sizes": ", ".join(map(str, about.batch_sizes)),
        "Compiled": f"{compiled:%Y-%m-%d %H:%M} UTC" + (", by another study" if engine.reused is not None else ""),
        "Size": f"{engine.size_bytes / 1e6:.3g} MB",
        "Needs": ", ".join(f"{name} {value}" for name, value in sorted(engine.requires.items())),
        "Flags": ", ".join(f"`{name}={value}`" for name, value in sorted(about.flags.items())),
    }
    yield "| | |"
    yield "|:--|:--|"
    for name, value in facts.items():
        if value:
            yield f"| {name} | {_plain(value)} |"


def _figures(record: StudyRecord, engine: EngineRecord) -> Iterator[str]:
    cells = record.lanes[engine.lane].cells
    titles = [titled(title, record.baseline if METRICS[name].of_baseline else None) for name, title in _FIGURES.items()]
    yield f"| batch | {' | '.join(titles)} | verdict |"
    yield "|--:|" + "--:|" * len(_FIGURES) + ":--|"
    for batch in engine.batch_sizes:
        if batch in cells:
            cell = cells[batch]
            shown = [
                (UNSTEADY_MARK if name in cell.unsteady else "") + rounded(cell.metrics[name])
                if name in cell.metrics
                else ""
                for name in _FIGURES
            ]
            reason = f": {cell.remarks}" if cell.remarks else ""
            yield f"| {batch} | {' | '.join(shown)} | {_plain(f'{cell.verdict}{reason}')} |"


def _shape(sizes: list[object]) -> str:
    return "×".join(map(str, sizes))


def _plain(text: str) -> str:
    """Text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
