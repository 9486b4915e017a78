"""Every test finds a process in which nobody has named a tracking server or a variable with a credential."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from mlflow_ngraph import credentials

_NAME = "MLFLOW_TRACKING_URI"


@pytest.fixture(autouse=True)
def no_tracking_uri() -> Iterator[None]:
    """``mlflow.set_tracking_uri``, which commands of MLflow call too, outlives a test and goes before the environment."""
    before = os.environ.get(_NAME)
    _forget()
    yield
    _forget()
    if before is None:
        os.environ.pop(_NAME, None)
    else:
        os.environ[_NAME] = before


@pytest.fixture(autouse=True)
def no_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload's ``{env: NAME}`` lets NAME through to every later child of the process."""
    monkeypatch.setattr(credentials, "_named", set())


def _forget() -> None:
    service = sys.modules.get("mlflow.tracking._tracking_service.utils")
    if service is not None:
        service._tracking_uri = None  # type: ignore[attr-defined]
