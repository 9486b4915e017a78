"""Put the current directory on ``sys.path``, so that a child process can import a user's modules."""

from __future__ import annotations

import sys
from pathlib import Path


def add_current_directory() -> None:
    """Put the current directory first on the path."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
