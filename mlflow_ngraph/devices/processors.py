"""Number of usable processors: the affinity mask, bounded by the CPU quota of the control group.

The kernel grants a quota in periods, of a tenth of a second as a rule. A process that has used up its quota is
throttled: it stands still until the next period.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from mlflow_ngraph.devices import control_groups
from mlflow_ngraph.devices.sysfs import fields


@dataclass(frozen=True)
class Quota:
    """The CPU quota of a control group."""

    processors: float
    group: Path

    def counts(self) -> dict[str, float]:
        """Periods since the group was made, and throttled ones among them; empty where not reported."""
        found = fields(self.group / "cpu.stat", "nr_periods", "nr_throttled")
        return (
            {"quota_periods": found["nr_periods"], "quota_throttled": found["nr_throttled"]} if len(found) == 2 else {}
        )


def available() -> int:
    """Processors that threads of this process can use concurrently; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota.processors)))


def cpu_quota(root: Path = control_groups.ROOT, membership: Path = control_groups.MEMBERSHIP) -> Quota | None:
    """Smallest CPU quota of the control groups of this process; None without a quota."""
    quotas = [
        Quota(quota, group)
        for group in control_groups.groups("cpu", root, membership)
        if (quota := _quota_of(group)) is not None
    ]
    return min(quotas, key=lambda quota: quota.processors, default=None)


def throttled(times: float, periods: float, quota: float | None) -> str:
    """Describe how often the quota throttled this process."""
    of = "" if quota is None else f" of {quota:.3g} processors"
    return f"throttled in {times:.0f} of {periods:.0f} periods by this container's quota{of}"


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
