"""One process that has imported PyTorch for all tests of a session: studies in this process fork their workers from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlflow_ngraph.execute import fork_server


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Started by the first test that needs it, ended after the last."""
    with fork_server.shared():
        yield
