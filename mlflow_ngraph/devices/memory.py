"""Available memory: what the machine has left, bounded by its control groups."""

from __future__ import annotations

from pathlib import Path

import psutil

from mlflow_ngraph.devices import control_groups

_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit and use of a control group, version 2 and 1, and the part of the use that the kernel gives back on demand."""


def available_bytes(
    root: Path = control_groups.ROOT, membership: Path = control_groups.MEMBERSHIP, *, machine: int | None = None
) -> int:
    """Bytes that can be allocated without swapping or being killed, of those that the machine has."""
    free = psutil.virtual_memory().available if machine is None else machine
    left = [
        bytes_ for group in control_groups.groups("memory", root, membership) if (bytes_ := _left(group)) is not None
    ]
    return max(0, min([free, *left]))


def _left(group: Path) -> int | None:
    """Spare bytes of a control group; None without a limit."""
    for limit_name, use_name, reclaimable_name in _FILES:
        try:
            limit = (group / limit_name).read_text(encoding="ascii").strip()
            use = int((group / use_name).read_text(encoding="ascii"))
            fields = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            continue
        if limit == "max":
            return None
        return int(limit) - use + int(fields.get(reclaimable_name, 0))
    return None
