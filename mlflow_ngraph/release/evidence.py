"""Why an engine was promoted, as Markdown in the description of its version: figures, what it is, where it comes from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_ngraph.analysis.champion import Duel
from mlflow_ngraph.metrics import BASELINE_COLUMN, CELL_METRICS, EAGER, METRICS
from mlflow_ngraph.release.logged_engine import LoggedEngine
from mlflow_ngraph.tables.summary import precisions
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.model_registry import MAX_DESCRIPTION

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
_LONGEST_FLAGS = 1500


def markdown(
    candidate: LoggedEngine,
    cell: Mapping[str, Any] | None,
    over: tuple[str, Mapping[str, Any] | None] | None,
    comparison: Duel | None,
    overruled: Sequence[str],
) -> str:
    """The description.

    Parameters
    ----------
    cell : Mapping[str, Any] | None
        The one that the candidate is judged by.
    over : tuple[str, Mapping[str, Any] | None] | None
        The version of the champion before, and the cell that it is judged by.
    overruled : Sequence[str]
        What spoke against the promotion, and was overruled.
    """
    manifest = candidate.manifest
    sizes = ", ".join(map(str, manifest.spec.batch_sizes))
    precision = precisions(manifest.spec.target.precision, manifest.precision_in_force)
    lines = [f"**{manifest.origin.label}** by {manifest.spec.compiler}, {precision}, batch {sizes}", ""]
    if overruled:
        lines += ["Promoted by force, although:", "", *(f"- {_inline(reason)}" for reason in overruled), ""]
    lines += _figures(cell, over)
    if comparison is not None:
        lines += ["", f"Against the champion before: {comparison.said}."]
    lines += ["", *_facts(candidate, precision)]
    return schema.cut("\n".join(lines) + "\n", MAX_DESCRIPTION)


def _figures(cell: Mapping[str, Any] | None, over: tuple[str, Mapping[str, Any] | None] | None) -> list[str]:
    """A table of figures, with those of the champion beside them where there is one."""
    columns: list[tuple[str, Mapping[str, Any]]] = [("this engine", cell or {})]
    if over is not None:
        columns.append((f"version {over[0]} before", over[1] or {}))
    lines = [_row(["", *(title for title, _ in columns)]), _row([":--", *("--:" for _ in columns)])]
    lines.append(_row(["verdict", *(_text(values.get("verdict")) for _, values in columns)]))
    lines.append(_row(["batch size", *(_text(values.get("batch")) for _, values in columns)]))
    for name, title in _SHOWN:
        unit = CELL_METRICS[name].unit
        shown = [figure(values, name) for _, values in columns]
        if METRICS[name].of_baseline:
            shown = [
                text and f"{text} over {_baseline(values)}" for text, (_, values) in zip(shown, columns, strict=True)
            ]
        if any(shown):
            lines.append(_row([title if unit == "1" else f"{title} [{unit}]", *shown]))
    return lines


def _facts(candidate: LoggedEngine, precision: str) -> list[str]:
    manifest = candidate.manifest
    spec, origin, target = manifest.spec, manifest.origin, manifest.spec.target
    flags = ", ".join(f"{name}={value}" for name, value in sorted(manifest.flags.items()))
    cpu = origin.fingerprint.get("hardware", {}).get("cpu", {}).get("model", "")
    compiled = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.made_by.compiled_at))
    facts = {
        "workload": f"`{spec.workload}`",
        "compiler": f"{spec.compiler} {manifest.compiler_version or ''}".strip(),
        "flags": f"`{schema.cut(flags, _LONGEST_FLAGS)}`" if flags else "none",
        "precision": precision,
        "mode, threads": f"{target.mode}, {'default' if target.threads is None else target.threads}",
        "outputs compared with": f"those of {spec.reference_by}" if spec.reference_by else "unknown",
        "device": origin.device,
        "machine": f"`{origin.fingerprint.get('digest', 'unknown')}` {cpu}".strip(),
        "study": f"{origin.study} `{origin.study_id}`",
        "lane run": f"`{origin.run_id}`" if origin.run_id else "not on this server",
        "source commit": f"`{origin.source_commit}`" if origin.source_commit else "unknown",
        "compiled": compiled,
        "engine": f"`models:/{candidate.model_id}`",
        "manifest": f"sha256 `{candidate.remote.digest}`",
    }
    return [_row(["", ""]), _row([":--", ":--"]), *(_row([name, value]) for name, value in facts.items())]


def figure(values: Mapping[str, Any], name: str) -> str:
    """A figure with its 95 % interval, or with its standard deviation; empty where there is none."""
    value = _number(values.get(name))
    if value is None:
        return ""
    digits = ".7f" if name == "parity_cosine" else ".4g"
    low, high, spread = (_number(values.get(f"{name}_{end}")) for end in ("ci_low", "ci_high", "std"))
    if low is not None and high is not None:
        return f"{value:{digits}} [{low:{digits}}, {high:{digits}}]"
    return f"{value:{digits}}" + ("" if spread is None else f" ± {spread:{digits}}")


def _baseline(values: Mapping[str, Any]) -> str:
    """What the ratios of a cell refer to; tables of older versions do not say it."""
    label = values.get(BASELINE_COLUMN)
    return label if isinstance(label, str) and label else EAGER


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _row(parts: Sequence[str]) -> str:
    return f"| {' | '.join(_inline(part).replace('|', chr(92) + '|') for part in parts)} |"


def _inline(text: str) -> str:
    return " ".join(text.split())
