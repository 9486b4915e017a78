"""Description of a promoted version in Markdown: figures, identity and origin of the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mlflow_ngraph.metrics import CELL_METRICS, METRICS
from mlflow_ngraph.tables import baselines, sheet
from mlflow_ngraph.tables.remarks import precisions
from mlflow_ngraph.tables.sheet import Cell, Part, Sheet
from mlflow_ngraph.text import decimals, rounded
from mlflow_ngraph.tracking import schema
from mlflow_ngraph_engines.champion import EngineComparison
from mlflow_ngraph_engines.logged_engine import LoggedEngine
from mlflow_ngraph_engines.registry import MAX_DESCRIPTION

_SHOWN = (
    ("throughput", "throughput"),
    ("latency_p50_ms", "latency, median"),
    ("latency_p99_ms", "latency, 99th percentile"),
    ("cpu_percent", "CPU use of the machine"),
    ("speedup", "speed-up"),
    ("peak_memory_mb", "peak memory"),
    ("parity_max_rel", "parity: relative error"),
    ("parity_cosine", "parity: cosine similarity"),
)
_TEXTS = {"verdict": "verdict", "batch": "batch size"}
_LONGEST_FLAGS = 1500


def markdown(
    candidate: LoggedEngine,
    cell: Mapping[str, Any] | None,
    over: tuple[str, Mapping[str, Any] | None] | None,
    comparison: EngineComparison | None,
    overruled: Sequence[str],
) -> str:
    """Write the description.

    ``cell`` is the candidate's best one. ``over`` is the version of the previous champion, with its best cell.
    ``overruled`` are objections that were overruled.
    """
    manifest = candidate.manifest
    sizes = ", ".join(map(str, manifest.spec.batch_sizes))
    precision = precisions(manifest.spec.target.precision, manifest.precision_in_force)
    title = f"{manifest.origin.label} by {manifest.spec.compiler}, {precision}, batch {sizes}"
    parts: list[Part] = [Cell(title, tone="heading")]
    if overruled:
        parts.append(Sheet("Promoted by force, although:", (), (), overruled))
    against = [] if comparison is None else [f"Against the champion before: {comparison.text}."]
    parts += [_figures(cell, over), *against, _facts(candidate, precision)]
    return schema.cut(f"{sheet.markdown(*parts)}\n", MAX_DESCRIPTION)


def _figures(cell: Mapping[str, Any] | None, over: tuple[str, Mapping[str, Any] | None] | None) -> Sheet:
    columns: list[tuple[str, Mapping[str, Any]]] = [("this engine", cell or {})]
    if over is not None:
        columns.append((f"version {over[0]} before", over[1] or {}))
    rows = [[title, *(values.get(name, "") for _, values in columns)] for name, title in _TEXTS.items()]
    for name, title in _SHOWN:
        unit = CELL_METRICS[name].unit
        shown = [figure(values, name) for _, values in columns]
        if METRICS[name].of_baseline:
            shown = [
                text and f"{text} over {baselines.of_row(values)}"
                for text, (_, values) in zip(shown, columns, strict=True)
            ]
        if any(shown):
            rows.append([title if unit == "1" else f"{title} [{unit}]", *shown])
    return Sheet("", ["", *(sheet.number(title) for title, _ in columns)], rows)


def _facts(candidate: LoggedEngine, precision: str) -> Sheet:
    manifest = candidate.manifest
    spec, origin, target = manifest.spec, manifest.origin, manifest.spec.target
    flags = ", ".join(f"{name}={value}" for name, value in sorted(manifest.flags.items()))
    cpu = origin.fingerprint.get("hardware", {}).get("cpu", {}).get("model", "")
    compiled = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.made_by.compiled_at))
    facts = {
        "workload": spec.workload,
        "model": f"sha256 {spec.digest}",
        "compiler": f"{spec.compiler} {manifest.compiler_version or ''}".strip(),
        "flags": schema.cut(flags, _LONGEST_FLAGS) or "none",
        "precision": precision,
        "mode, threads": f"{target.mode}, {'default' if target.threads is None else target.threads}",
        "outputs compared with": f"those of {spec.reference_by}" if spec.reference_by else "unknown",
        "device": origin.device,
        "machine": f"{origin.fingerprint.get('digest', 'unknown')} {cpu}".strip(),
        "study": f"{origin.study} {origin.study_id}",
        "lane run": origin.run_id or "not on this server",
        "source commit": origin.source_commit or "unknown",
        "compiled": compiled,
        "engine": f"models:/{candidate.model_id}",
        "manifest": f"sha256 {candidate.remote.digest}",
    }
    return Sheet("", ["", ""], list(facts.items()))


def figure(values: Mapping[str, Any], name: str) -> str:
    """Figure with its 95 % interval or standard deviation; empty where it is missing."""
    value = _number(values.get(name))
    if value is None:
        return ""
    written = partial(decimals, places=7) if name == "parity_cosine" else rounded
    low, high, spread = (_number(values.get(f"{name}_{end}")) for end in ("ci_low", "ci_high", "std"))
    if low is not None and high is not None:
        return f"{written(value)} [{written(low)}, {written(high)}]"
    return written(value) + ("" if spread is None else f" ± {written(spread)}")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
