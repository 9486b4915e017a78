"""Where nobody can say what rounding does to a model, its engines are not said to be right."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_ngraph import parity
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.baseline import ModuleBaseline
from mlflow_ngraph.workloads.trial_references import collect
from tests.workloads.undisturbable import WAYS

pytestmark = pytest.mark.usefixtures("all_trials")
COARSE = ("computes_in_bfloat16", "quantises", "fakes_quantisation")
"""What a step of theirs changes is more than what a fault in fp32 does."""
INPUTS = (TensorSpec("given", "float32", (BATCH, 8)),)


def test_there_are_forty_ways() -> None:
    assert len(WAYS) >= 40


@pytest.mark.parametrize("name", WAYS)
def test_a_wrong_engine_is_found_or_it_is_said_that_nobody_knows(name: str) -> None:
    baseline = ModuleBaseline(WAYS[name]().eval())
    example = [np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)]
    trials = collect(baseline, INPUTS, 3, 0, example, baseline.run(example))
    assert trials.trials
    for trial, (native,), exact in zip(trials.trials, trials.outputs, trials.exact, strict=True):
        if trial.unchecked or not np.ptp(native):
            assert trial.rounding == (None,) or not np.ptp(native)
            continue
        truth = native if exact is None else exact[0]
        wrong = native.copy()
        wrong[0, 0] += np.abs(native).max() * (0.3 if name in COARSE else 0.03)
        judgement = parity.judge(wrong, native, truth, trial.rounding[0], "fp32")
        assert judgement is not None, "it is said that rounding alone decides"
        assert judgement.problem
        right = parity.judge(
            (native * np.float32(1 + 1e-6)).astype(np.float32), native, truth, trial.rounding[0], "fp32"
        )
        assert right is not None
        assert not right.problem
