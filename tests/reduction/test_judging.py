"""When an output counts as wrong."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_ngraph.reduction.judging import judge

EXACT = np.array([1.0, -2.0, 4.0])
ROUNDED = (EXACT + np.array([0.0, 2e-6, 0.0])).astype(np.float32)


def test_rounding_as_that_of_the_model_itself_is_not_wrong() -> None:
    off = ROUNDED - EXACT
    assert judge((EXACT + 15 * off).astype(np.float32), EXACT, ROUNDED) is None
    wrong = judge((EXACT + 17 * off).astype(np.float32), EXACT, ROUNDED)
    assert wrong is not None
    assert wrong.error > wrong.allowed


def test_a_millionth_of_the_largest_element_is_never_wrong() -> None:
    rounded = EXACT.astype(np.float32)
    assert judge((EXACT + 3e-6).astype(np.float32), EXACT, rounded) is None
    assert judge((EXACT + 1e-5).astype(np.float32), EXACT, rounded) is not None


def test_coarser_precisions_may_be_further_off() -> None:
    rounded = EXACT.astype(np.float32)
    found = (EXACT * 1.01).astype(np.float32)
    assert judge(found, EXACT, rounded) is not None
    assert judge(found, EXACT, rounded, "bf16") is None


def test_integers_have_to_be_equal_where_rounding_does_not_decide_them() -> None:
    exact, rounded = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert judge(np.array([1, 2, 7]), exact, rounded) is None
    wrong = judge(np.array([1, 0, 3]), exact, rounded)
    assert wrong is not None
    assert wrong.what == "33.3 % of its integers differ"


def test_no_number_where_there_is_one_is_wrong() -> None:
    found = np.array([1.0, np.nan, 4.0], np.float32)
    wrong = judge(found, EXACT, ROUNDED)
    assert wrong is not None
    assert wrong.what == "1 of its 3 elements are no finite numbers"


@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_what_the_model_itself_has_no_number_for_is_not_asked_of_an_engine(none: float) -> None:
    exact, rounded = np.array([1.0, none, 4.0]), np.array([1.0, 2.0, none], np.float32)
    assert judge(np.array([1.0, 7.0, 7.0], np.float32), exact, rounded) is None


def test_another_shape_is_wrong() -> None:
    wrong = judge(np.zeros((1, 3), np.float32), EXACT, None)
    assert wrong is not None
    assert wrong.what == "of shape (1, 3) where (3,) is right"
