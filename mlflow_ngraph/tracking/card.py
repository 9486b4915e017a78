"""The card of an engine: for people, beside the engine and on its page in MLflow, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.metrics import METRICS, titled
from mlflow_ngraph.text import UNSTEADY_MARK, rounded

FILE = "README.md"
"""Where the card lies in the package of an engine."""
_FIGURES = {
    "throughput": "throughput [samples/s]",
    "latency_p50_ms": "p50 [ms]",
    "latency_p99_ms": "p99 [ms]",
    "speedup": "speed-up",
    "parity_cosine": "cosine",
}


def card(record: StudyRecord, engine: EngineRecord, spec: EngineSpec, model_id: str) -> str:
    """What an engine is, what was measured of it, and how it is used."""
    label = record.lanes[engine.lane].lane.label
    return "\n".join(
        [
            f"# {_plain(label)} with {spec.compiler} on {record.device}",
            "",
            *_facts(record, engine, spec),
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
            f"    outputs = engine.run({{{', '.join(repr(tensor.name) + ': ...' for tensor in spec.inputs)}}})",
            "```",
            "",
            f"`mlflow-ngraph verify models:/{model_id}` checks its files, whether it fits a machine, and its outputs.",
            "",
        ]
    )


def _facts(record: StudyRecord, engine: EngineRecord, spec: EngineSpec) -> Iterator[str]:
    lane, asked = record.lanes[engine.lane], spec.target.precision
    in_force = lane.precision_of(engine)
    precision = asked if in_force in (None, asked) else f"{in_force} ({asked} asked for)"
    compiled = datetime.fromtimestamp(engine.at, timezone.utc)
    facts = {
        "Workload": f"`{spec.workload}`",
        "Inputs": "; ".join(f"`{one.name}` {one.dtype} {_shape(one.shape)}" for one in spec.inputs),
        "Compiler": f"{spec.compiler} {record.versions.get(spec.compiler) or ''}".strip(),
        "Precision": precision,
        "Mode": spec.target.mode,
        "Outputs compared with": f"those of {spec.reference_by}" if spec.reference_by else "",
        "Batch sizes": ", ".join(map(str, spec.batch_sizes)),
        "Compiled": f"{compiled:%Y-%m-%d %H:%M} UTC" + (", by another study" if engine.reused is not None else ""),
        "Size": f"{engine.size_bytes / 1e6:.3g} MB",
        "Needs": ", ".join(f"{name} {value}" for name, value in sorted(engine.requires.items())),
        "Flags": ", ".join(f"`{name}={value}`" for name, value in sorted(lane.flags_of(engine).items())),
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


def _shape(sizes: tuple[int | str, ...]) -> str:
    return "×".join(map(str, sizes))


def _plain(text: str) -> str:
    """Text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
