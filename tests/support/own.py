"""A home in which the studies were begun that other tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of the studies of `tidy.cells` and `study_record`, as those of whoever asks."""
    home = tmp_path / "own"
    monkeypatch.setenv("NGRAPH_HOME", str(home))
    for name in ("study", "quick-0123abcd-20251009-090000"):
        (home / "studies" / name).mkdir(parents=True)
    return home / "studies"
