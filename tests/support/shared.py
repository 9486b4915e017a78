"""What takes long to make, made once for all processes that run tests beside each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first who asks for it fills, and the others find filled. Nobody may change it.

    Parameters
    ----------
    factory: of the process that asks.
    name: unique among these folders.
    make: gets the empty folder.
    """
    base = factory.getbasetemp()
    # The processes of pytest-xdist have a folder each in a common one.
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, whole = root / f"once-{name}", root / f"once-{name}.whole"
    with (root / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
