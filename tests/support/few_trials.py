"""The baseline computes as few trials as for a slow model of a user, in every process that imports this.

That are the tests' own, and the one that workers of their studies are forked from. Where trials are what is tested, ask for the
fixture `all_trials`, or prepare the model in a process of its own.
"""

import pytest

from mlflow_ngraph.workloads import trial_references

ALL_S = 60.0
trial_references.SECONDS = 0.0


@pytest.fixture
def all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a fast model."""
    monkeypatch.setattr(trial_references, "SECONDS", ALL_S)
