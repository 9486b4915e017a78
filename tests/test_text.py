"""What verbs write is read by people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.text import rounded


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *((36063.2, "36063"), (1234567.0, "1234567"), (99.996, "100"), (0.5, "0.5"), (0.0, "0"), (-2.71828, "−2.718")),
        *(
            (1.5e-9, "1.5e−09"),
            (0.0006561, "0.0006561"),
            (-0.01775, "−0.01775"),
            (None, ""),
            (float("nan"), ""),
            (float("inf"), ""),
        ),
    ],
)
def test_numbers_keep_their_whole_digits_and_lack_nothing_that_is_said(value: float | None, written: str) -> None:
    assert rounded(value) == written


@given(st.floats(1e-4, 1e14), st.integers(1, 6))
def test_so_many_digits_say_something_and_none_is_an_exponent(value: float, digits: int) -> None:
    written = rounded(value, digits)
    assert "e" not in written
    assert float(written) == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits))
    assert len(written.replace(".", "").strip("0")) <= max(digits, len(written.partition(".")[0])) + 1
