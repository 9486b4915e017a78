"""How many processors this process may use: the affinity mask, bounded by the CPU quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

from mlflow_ngraph.devices import control_groups


def available() -> int:
    """Processors that threads of this process can really run on at once; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def cpu_quota(root: Path = control_groups.ROOT, membership: Path = control_groups.MEMBERSHIP) -> float | None:
    """The smallest CPU quota, in processors, of the control groups that this process is in; None without a quota."""
    quotas = [
        quota for group in control_groups.groups("cpu", root, membership) if (quota := _quota_of(group)) is not None
    ]
    return min(quotas, default=None)


def _quota_of(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (group / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
