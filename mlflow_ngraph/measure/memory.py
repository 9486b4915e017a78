"""Resident memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak() -> bool:
    """Start the kernel's high-water mark anew; False where the kernel cannot."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The largest resident set since the last `reset_peak`, or since the start where that is not possible."""
    known = _status("VmHWM:")
    if known is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int | None:
    """The resident set now; None where the kernel does not tell."""
    return _status("VmRSS:")


def _status(name: str) -> int | None:
    """A size in the kernel's account of this process."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
