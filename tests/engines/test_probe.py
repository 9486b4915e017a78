"""What the probe of an engine tells of it, and what it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlflow_ngraph.engines.load_check_child import _compared
from mlflow_ngraph.engines.probe import Probe
from mlflow_ngraph.engines.verification import _probe_check
from mlflow_ngraph.parity import Rounding

GIVEN = [np.ones((2, 3), np.float32)]
OUTPUTS = [np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)]


def status(rounding: list[Rounding | None] | None, outputs: list[NDArray[Any]]) -> str:
    return _probe_check(_compared(outputs, Probe(GIVEN, OUTPUTS, [], rounding), "fp32")).status


@pytest.mark.parametrize("rounding", [None, Rounding(0.5, 0.5)])
def test_a_probe_that_rounding_decides_is_no_check(rounding: Rounding | None) -> None:
    assert status([rounding], OUTPUTS) == "skipped"


def test_a_probe_tells_a_wrong_engine_also_by_the_fixed_tolerance() -> None:
    wrong = [OUTPUTS[0] * np.float32(1.01)]
    known: list[Rounding | None] = [Rounding(1e-7, 1e-7)]
    for rounding in (None, known):
        assert status(rounding, OUTPUTS) == "ok"
        assert status(rounding, wrong) == "problem"


def test_the_output_that_differs_in_form_is_named() -> None:
    two = Probe(GIVEN, OUTPUTS * 2, [], [Rounding(1e-7, 1e-7)] * 2)
    assert two.problem([OUTPUTS[0], OUTPUTS[0][:1]], "fp32").startswith("output 1 has shape (1, 3)")


def test_without_double_precision_the_models_own_error_lies_between() -> None:
    """As in a study, where an engine may be off by one part in a hundred thousand from the model."""
    assert status([Rounding(1e-8, 1e-8)], [OUTPUTS[0] * np.float32(1 + 8e-6)]) == "ok"
