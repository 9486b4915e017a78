"""One process that has imported PyTorch for all tests of a session: studies in this process fork their workers from it.

Those that measure, too, which a study of a user never does: importing PyTorch for each of them is most of what a small study
costs. Tests of what is measured ask for the fixture `timed_alone`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_ngraph.execute import lane_process
from mlflow_ngraph.processes import fork_server


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Started by the first test that needs it, ended after the last."""
    with fork_server.shared(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_process, "TIMED_START_ALONE", False)
        patch.setattr(fork_server, "PRELOADED", (*fork_server.PRELOADED, "tests.support.few_trials"))
        # Wherever the test stands that is the first to need it.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        yield


@pytest.fixture
def timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures starts by itself, as it does for users."""
    monkeypatch.setattr(lane_process, "TIMED_START_ALONE", True)
