"""Tests measure nothing that counts: they neither wait for real studies and other tests, nor hold them up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_ngraph.execute.machine_lock import VARIABLE


@pytest.fixture(scope="session", autouse=True)
def lock_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this test session and its children look for the lock on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("lock")
        patch.setenv(VARIABLE, str(folder))
        yield folder
