"""Detect kills for lack of memory by the kernel's counter."""

from __future__ import annotations

import contextlib
from pathlib import Path

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
"""Counters of our control group, else of the machine."""


def _count() -> int:
    for path in _COUNTERS:
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


_seen = _count()


def new_kill() -> bool:
    """Return True when the counter has grown since the last call."""
    global _seen
    before, _seen = _seen, _count()
    return _seen > before
