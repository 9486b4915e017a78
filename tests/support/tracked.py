"""Every test finds MLflow as it is when nobody has named a tracking server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

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


def _forget() -> None:
    service = sys.modules.get("mlflow.tracking._tracking_service.utils")
    if service is not None:
        service._tracking_uri = None  # type: ignore[attr-defined]
