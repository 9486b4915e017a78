"""Wording of remarks on cells: precision in force, fallback nodes, environment variables, contradictory figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow_ngraph.text import counted

_APART = 1.5


def apart(ratio: float) -> bool:
    """True if two figures that should be one, with this ratio, are reported as different."""
    return not 1 / _APART <= ratio <= _APART


def precisions(asked: str, in_force: str | None) -> str:
    """Effective precision, followed by the requested one where they differ."""
    return asked if in_force in (None, "", asked) else f"{in_force} (asked: {asked})"


def fallback_nodes(flags: Mapping[str, Any]) -> int:
    """Number of nodes that fell back to another provider, from the effective flags.

    0 without providers, or where an adapter's flag of this name is no number.
    """
    nodes = flags.get("fallback_nodes")
    return nodes if type(nodes) is int else 0


def fallback_note(nodes: int) -> str:
    """Remark about fallback nodes; empty for none."""
    return f"{counted(nodes, 'node')} fell back to another provider" if nodes else ""


def environment_warning(variables: str) -> str:
    """Warning about environment variables set while measuring."""
    return f"measured with {variables}, which may make one compiler faster or slower than it is without"
