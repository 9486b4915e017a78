from __future__ import annotations

import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph_testing.steps import Case, Job, Refusal, attempt, block, in_fresh_process, within


def import_what_is_blocked() -> None:
    block(["wave"])
    import wave  # noqa: F401


@pytest.mark.usefixtures("processes")
def test_a_blocked_module_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="wave"):
        in_fresh_process(import_what_is_blocked)


def block_what_is_imported() -> None:
    import wave  # noqa: F401

    block(["wave"])


@pytest.mark.usefixtures("processes")
def test_a_module_that_is_imported_already_cannot_be_blocked() -> None:
    with pytest.raises(AssertionError, match="wave"):
        in_fresh_process(block_what_is_imported)


@pytest.mark.usefixtures("processes")
def test_a_step_that_hangs_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(BrokenProcessPool):
        within(0.5, time.sleep, 600)
    assert time.monotonic() - start < 60


def refuse(cases: dict[str, Case]) -> dict[str, int]:
    (label,) = cases
    if label == "one":
        raise UnsupportedError("no operator One")
    if label == "other":
        raise ValueError("anything")
    return {label: 3}


def test_what_a_step_raises_costs_its_own_case_only() -> None:
    case = Case(Job("fake"), Path(), Path(), (1,))
    assert attempt(refuse, dict.fromkeys(["one", "other", "good"], case)) == {
        "one": Refusal("UnsupportedError", "unsupported", "no operator One"),
        "other": Refusal("ValueError", None, "anything"),
        "good": 3,
    }
