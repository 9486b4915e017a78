"""Tests of what may be missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where a package is missing, without importing it: seconds for whoever only collects tests."""
    lacking = ", ".join(name for name in packages if find_spec(name) is None)
    return pytest.mark.skipif(bool(lacking), reason=f"needs {lacking}, which is not installed")
