"""How many processors this process may use: the affinity mask, bounded by the CPU quota of its control group."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Processors that threads of this process can really run on at once; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def cpu_quota(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The smallest CPU quota, in processors, of the control groups that this process is in; None without a quota."""
    quotas = [quota for group in _groups(root, membership) if (quota := _quota_of(group)) is not None]
    return min(quotas, default=None)


def _groups(root: Path, membership: Path) -> list[Path]:
    """The directories of this process's group and all groups above it, of control groups v2 and v1."""
    found: list[Path] = []
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        group = top / path.lstrip("/")
        found += [group, *(parent for parent in group.parents if parent == top or top in parent.parents)]
    return [*dict.fromkeys(found)]


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
