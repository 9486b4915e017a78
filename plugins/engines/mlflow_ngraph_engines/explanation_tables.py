"""Explanations of compilers as table rows and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.tables.remarks import precisions
from mlflow_ngraph.text import counted
from mlflow_ngraph_engines.explanations import Explained

UNKNOWN = "–"
"""Shown for unknown values."""
COUNTED = {
    "operations": "operation",
    "implementations": "implementation",
    "layouts": "layout",
    "precisions": "precision",
    "providers": "provider",
}
"""Counted fields of kernels, by title."""
_NAMED = 6
"""Most values of a kind in a table; JSON has all."""

Row = tuple[str, list[str]]
"""Title, and one text for each cell."""


def side_by_side(explained: Sequence[Explained]) -> list[Row]:
    """Rows that compare cells: identity, counts, and every compiler's facts."""
    explanations = [entry.explanation for entry in explained]
    rows: list[Row] = [
        ("cell", [entry.cell.id for entry in explained]),
        ("model", [entry.cell.workload for entry in explained]),
        ("study", [entry.cell.study_id for entry in explained]),
        ("verdict", [entry.cell.verdict or "not measured yet" for entry in explained]),
        ("precision", [precisions(entry.cell.precision, entry.cell.precision_in_force) for entry in explained]),
        ("nodes before", [_count(explanation.nodes_before if explanation else None) for explanation in explanations]),
        ("nodes after", [_count(explanation.nodes_after if explanation else None) for explanation in explanations]),
        ("fused groups", [_count(_fused_groups(explanation)) for explanation in explanations]),
        (
            "layout changes",
            [_count(explanation.layout_changes if explanation else None) for explanation in explanations],
        ),
        ("generated code", [_size(explanation.code_bytes if explanation else None) for explanation in explanations]),
    ]
    for title, field in COUNTED.items():
        values = [_counted(explanation.count(field)) if explanation else "" for explanation in explanations]
        if any(values):
            rows.append((title, [value or UNKNOWN for value in values]))
    times = [_profiled_us(explanation) for explanation in explanations]
    if any(time is not None for time in times):
        rows.append(("profiled", [UNKNOWN if time is None else f"{time / 1000:.3g} ms in kernels" for time in times]))
    facts = list(dict.fromkeys(name for explanation in explanations if explanation for name in explanation.facts))
    rows += [(name, [_fact(explanation, name) for explanation in explanations]) for name in facts]
    if any(entry.problem for entry in explained):
        rows.append(("not explained", [entry.problem for entry in explained]))
    return rows


def longest(explanation: Explanation, most: int) -> list[tuple[Kernel, float]]:
    """Kernels with the longest time and their share of it; empty without a profile."""
    timed = [(kernel, kernel.microseconds) for kernel in explanation.kernels if kernel.microseconds is not None]
    whole = sum(time for _, time in timed)
    timed.sort(key=lambda item: -item[1])
    return [(kernel, time / whole if whole else 0.0) for kernel, time in timed[:most]]


def largest(explanation: Explanation, most: int) -> list[Kernel]:
    """Kernels that fuse the most nodes, at least two each."""
    fused = [kernel for kernel in explanation.kernels if len(kernel.fused) > 1]
    return sorted(fused, key=lambda kernel: -len(kernel.fused))[:most]


def document(explained: Sequence[Explained]) -> list[dict[str, Any]]:
    """Plain values for JSON."""
    return [{**_identity(entry), **_content(entry.explanation)} for entry in explained]


def _identity(explained: Explained) -> dict[str, Any]:
    cell = explained.cell
    names = ("label", "compiler", "compiler_label", "precision", "batch", "study", "study_id", "device", "reason")
    return {
        "cell": cell.id,
        "address": cell.address,
        **{name: getattr(cell, name) for name in names},
        "verdict": cell.verdict or None,
        "precision_in_force": cell.precision_in_force or None,
        "problem": explained.problem,
    }


def _content(explanation: Explanation | None) -> dict[str, Any]:
    known = explanation or Explanation()
    return {
        "nodes_before": known.nodes_before,
        "nodes_after": known.nodes_after,
        "fused_groups": _fused_groups(known),
        "layout_changes": known.layout_changes,
        "code_bytes": known.code_bytes,
        "profiled_us": _profiled_us(known),
        **{title: known.count(field) for title, field in COUNTED.items()},
        "facts": dict(known.facts),
        "kernels": [asdict(kernel) for kernel in known.kernels],
    }


def _fused_groups(explanation: Explanation | None) -> int | None:
    return explanation.fused_groups if explanation and explanation.kernels else None


def _profiled_us(explanation: Explanation | None) -> float | None:
    times = [kernel.microseconds for kernel in explanation.kernels if explanation] if explanation else []
    known = [time for time in times if time is not None]
    return sum(known) if known else None


def _counted(counts: dict[str, int]) -> str:
    shown = [f"{value} {number}" for value, number in list(counts.items())[:_NAMED]]
    more = len(counts) - _NAMED
    if more > 0:
        shown.append(counted(more, "more kind"))
    return ", ".join(shown)


def _fact(explanation: Explanation | None, name: str) -> str:
    value = explanation.facts.get(name, "") if explanation is not None else ""
    if value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _size(size: int | None) -> str:
    if size is None:
        return UNKNOWN
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
