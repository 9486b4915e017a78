"""Resident memory of this process, and tuning of malloc."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path
from typing import Literal

FreedMemory = Literal["keep", "return"]
"""Policy for freed memory; see `keep_freed`."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Constants of glibc's malloc.h."""
_NEVER = -1
_TOP_PAD_BYTES = 64 * 2**20


def keep_freed() -> bool:
    """Keep freed memory in this process, so that the next inference finds it there.

    glibc returns large blocks to the system as soon as they are free, and the next inference gets new pages, which the
    kernel clears one by one. It depends on what else was freed before: equal processes differ by tens of per cent, for
    as long as they live. Returns False where the C library is not glibc, or refuses.
    """
    options = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _TOP_PAD_BYTES))
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) for option, value in options)


def release_freed() -> None:
    """Return all freed memory to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> bool:
    """Restart the kernel's high-water mark; False where the kernel cannot."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Largest resident set since the last `reset_peak`, or since the start where that is not possible."""
    known = _status("VmHWM:")
    if known is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int | None:
    """Resident set now; None where the kernel does not report it."""
    return _status("VmRSS:")


def _status(name: str) -> int | None:
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
