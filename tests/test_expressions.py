"""Formulas compute, and nothing else gets in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.expressions import Expression


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("throughput * rate", 40.0),
        ("(1 - rate) * throughput ** 2", 60 * 100.0),
        ("-rate + +1", 0.6),
        ("sqrt(throughput - 91) + max(1, rate, 2) / min(4, 2)", 4.0),
        ("log2(8) + log10(100) + log(exp(1)) + abs(-1)", 7.0),
        (" 1e3 / throughput ", 10.0),
        ("1 / (throughput - 100)", math.nan),
        ("log(-1)", math.nan),
        ("(0 - 8) ** 0.5", math.nan),
        ("throughput ** throughput ** throughput", math.nan),
        ("unmeasured + 1", math.nan),
    ],
)
def test_formulas_have_values(text: str, value: float) -> None:
    assert Expression(text).value({"throughput": 100.0, "rate": 0.4}) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('x')", "unknown function"),
        ("throughput.real", "is no arithmetic"),
        ("[throughput][0]", "is no arithmetic"),
        ("(lambda: 1)()", "unknown function"),
        ("throughput if rate else 1", "is no arithmetic"),
        ("throughput < 1", "is no arithmetic"),
        ("throughput // 2", "is no arithmetic"),
        ("'a' * 9", "is no arithmetic"),
        ("True", "is no arithmetic"),
        ("1j", "is no arithmetic"),
        ("x := 1", "is no formula: "),
        ("", "is no formula: "),
        ("1 +", "is no formula: "),
        ("a; b", "is no formula: "),
        ("sqrt()", "sqrt takes 1 number"),
        ("sqrt(1, 2)", "sqrt takes 1 number"),
        ("max(1)", "max takes 2 or more numbers"),
        ("sqrt(x=1)", "sqrt takes 1 number"),
        ("max(*a)", "takes 2 or more"),
        ("1+" * 300 + "1", "at most 500 characters"),
        ("(" * 240 + "1" + ")" * 240, "is no formula: "),
    ],
)
def test_everything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Expression(text)


def test_unknown_names_come_with_the_closest_one() -> None:
    with pytest.raises(ValueError, match="unknown name 'troughput' in 'troughput': did you mean 'throughput'"):
        Expression("troughput").check(["throughput", "batch"])
    with pytest.raises(ValueError, match="unknown name 'xyz' in 'xyz': known are batch, throughput"):
        Expression("xyz").check(["throughput", "batch"])


@given(st.text(max_size=60))
def test_whatever_is_written_is_a_formula_or_a_complaint(text: str) -> None:
    try:
        value = Expression(text).value({})
    except ValueError:
        return
    assert math.isnan(value) or math.isfinite(value)
