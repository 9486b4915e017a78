"""Elements that are always smaller than the others are judged by themselves, as far as it can be told what rounding does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.execute.verifying import Judge, Verification
from mlflow_ngraph.parity import Rounding
from mlflow_ngraph.workloads.trial_references import Trial

WIDE, ALLOWED = 16, Rounding(1e-6, 1e-6)


@pytest.mark.parametrize(
    ("small", "truth", "refused"),
    [(1, True, True), (1, False, False), (8, True, True), (8, False, True)],
    ids=["one", "one, truth unknown", "several", "several, truth unknown"],
)
def test_one_small_element_is_judged_where_the_truth_is_known(small: int, *, truth: bool, refused: bool) -> None:
    model = np.ones((1, WIDE), np.float32)
    model[:, :small] = 1e-3
    engine = model.copy()
    engine[:, 0] *= np.float32(1 + 1e-4)
    trial = Trial(0, "normal", (ALLOWED,), ((ALLOWED,),))
    engine_of_no_use: Any = None
    judge = Judge(
        Verification(), engine_of_no_use, "fp32", Path(), [np.repeat(np.array([1, 0], np.int8), [small, WIDE - small])]
    )
    problem = judge.problem(trial, [engine], [model], [model.astype(np.float64)] if truth else None)
    assert bool(problem) == refused


@pytest.mark.parametrize("truth", [True, False])
def test_without_the_truth_the_model_is_allowed_an_error_of_its_own(*, truth: bool) -> None:
    model = np.ones((1, WIDE), np.float32)
    trial = Trial(0, "normal", (Rounding(1e-7, 1e-7),), ((),))
    engine_of_no_use: Any = None
    judge = Judge(Verification(), engine_of_no_use, "fp32", Path(), [None])
    exact = [model.astype(np.float64)] if truth else None
    assert bool(judge.problem(trial, [model * np.float32(1 + 8e-6)], [model], exact)) == truth
    assert judge.problem(trial, [model * np.float32(1 + 2e-5)], [model], exact)
