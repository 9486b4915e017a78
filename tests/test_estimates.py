"""How figures with errors are compared and combined, beside formulas that are written here once more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mlflow_ngraph import estimates
from mlflow_ngraph.estimates import Estimate, exactly

PARTS = Estimate(np.log([2.0, 3.0, 5.0]), np.array([0.1, 0.2, 0.05]), np.array([4.0, 9.0, 6.0]))
EXACT = Estimate(np.log([1.1]), np.array([0.05]), np.array([np.inf]))
"""Of a normal distribution: an error that is known from ever so many rounds."""


def satterthwaite(variances: np.ndarray, freedoms: np.ndarray) -> float:
    return float(variances.sum() ** 2 / (variances**2 / freedoms).sum())


def test_a_geometric_mean_of_independent_figures() -> None:
    mean, variances = estimates.geometric_mean(PARTS), PARTS.error**2
    assert float(mean.value) == pytest.approx(30 ** (1 / 3))
    assert float(mean.error) == pytest.approx(np.sqrt(0.01 + 0.04 + 0.0025) / 3)
    assert float(mean.freedom) == pytest.approx(satterthwaite(variances, PARTS.freedom))


def test_a_sum_of_independent_figures() -> None:
    whole, shares = estimates.total(PARTS), np.array([0.2, 0.3, 0.5])
    variances = (shares * PARTS.error) ** 2
    assert float(whole.value) == pytest.approx(10.0)
    assert float(whole.error) == pytest.approx(np.sqrt(variances.sum()))
    assert float(whole.freedom) == pytest.approx(satterthwaite(variances, PARTS.freedom))


def test_a_weighted_sum_takes_whole_numbers_and_its_interval_is_that_of_the_sum() -> None:
    value, low, high = estimates.weighted_sum([1, -1, 2], PARTS)
    variances = (np.array([1, -1, 2]) * PARTS.value * PARTS.error) ** 2
    reach = stats.t.ppf(0.975, satterthwaite(variances, PARTS.freedom)) * np.sqrt(variances.sum())
    assert (value, low, high) == pytest.approx((9.0, 9.0 - reach, 9.0 + reach))


def test_a_ratio_of_independent_figures() -> None:
    ratio = PARTS.take([1]).over(PARTS.take([0]))
    variances = np.array([0.04, 0.01])
    assert ratio.value[0] == pytest.approx(1.5)
    assert ratio.error[0] == pytest.approx(np.sqrt(0.05))
    assert ratio.freedom[0] == pytest.approx(satterthwaite(variances, np.array([9.0, 4.0])))


def test_intervals_and_their_reach_are_those_of_student() -> None:
    reach = stats.t.ppf(0.975, PARTS.freedom) * PARTS.error
    low, high = PARTS.interval()
    assert low == pytest.approx(PARTS.value * np.exp(-reach))
    assert high == pytest.approx(PARTS.value * np.exp(reach))
    assert PARTS.reach() == pytest.approx(np.exp(reach) - 1)


@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(0, 20), st.floats(1, 50)), min_size=1, max_size=6))
def test_no_interval_is_wider_than_a_factor_of_ten_and_what_decides_knows_all_of_it(parts) -> None:
    log, error, freedom = (np.array(part) for part in zip(*parts, strict=True))
    several = Estimate(log, error, freedom)
    reach = stats.t.ppf(0.975, freedom) * error
    with np.errstate(over="ignore"):
        wide = 2 * reach > np.log(estimates.WIDEST)
        low, high = several.ends
        assert low == pytest.approx(np.exp(log - reach))
        assert high == pytest.approx(np.exp(log + reach))
    low, high = several.interval()
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == wide.tolist()
    assert np.all(low[~wide] > 0)
    assert np.all(high[~wide] / low[~wide] <= 10 * (1 + 1e-9))
    assert several.known.all(), "its error stays, for tests"


def test_without_end_of_freedom_they_are_those_of_the_normal_distribution() -> None:
    assert EXACT.interval()[1] == pytest.approx(1.1 * np.exp(stats.norm.ppf(0.975) * 0.05))
    score = np.log(1.1) / 0.05
    assert EXACT.p_differs() == pytest.approx(2 * stats.norm.sf(score))
    assert EXACT.p_above() == pytest.approx(stats.norm.sf(score))
    assert EXACT.p_below() == pytest.approx(stats.norm.cdf(score))


def test_where_nothing_is_known_there_is_no_quantile() -> None:
    quantiles = estimates.quantile([np.nan, 4, np.inf], 0.9)
    assert quantiles == pytest.approx([np.nan, stats.t.ppf(0.95, 4), stats.norm.ppf(0.95)], nan_ok=True)


@pytest.mark.parametrize(("alpha", "power"), [(0.05, 0.95), (0.01, 0.8)])
def test_a_difference_that_a_test_notices_is_found_as_often_as_said(alpha: float, power: float) -> None:
    """Its true logarithm lies so far from 0 that estimates around it are significant with this probability."""
    for freedom in (4.0, 30.0):
        distance = stats.t.ppf(1 - alpha / 2, freedom) + stats.t.ppf(power, freedom)
        several = Estimate(np.zeros(3), np.array([0.1, 0.3, np.nan]), np.array([freedom, freedom, np.nan]))
        expected = [0.1 * distance, 0.3 * distance, np.nan]
        assert several.notices(alpha, power) == pytest.approx(expected, nan_ok=True)
    assert EXACT.notices(alpha) == pytest.approx(0.05 * (stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(0.95)))


def test_a_sum_with_a_variance_that_is_not_known_has_no_freedom() -> None:
    variances = np.array([[0.2, np.nan], [0.1, 0.3]])
    found = estimates.satterthwaite(variances, np.full((2, 2), 3.0))
    assert found == pytest.approx([0.09 / (0.05 / 3), np.nan], nan_ok=True)


def test_the_widest_interval_that_is_shown_has_a_factor_of_ten_between_its_ends() -> None:
    error = np.log(estimates.WIDEST) / 2 / stats.norm.ppf(0.975)
    for factor, shown in ((1 - 1e-9, True), (1 + 1e-9, False)):
        single = Estimate(np.array(1.0), np.array(error * factor), np.array(np.inf))
        assert np.isfinite(single.interval()).tolist() == [shown, shown]


def test_a_bound_is_one_unless_it_is_given() -> None:
    assert PARTS.p_below() == pytest.approx(PARTS.p_below(1.0))
    assert PARTS.p_above() == pytest.approx(stats.t.sf(PARTS.log / PARTS.error, PARTS.freedom))
    assert PARTS.p_above([2.0, 3.0, 4.0])[:2] == pytest.approx(0.5)


def test_what_is_known_exactly_is_above_a_bound_or_it_is_not() -> None:
    known = exactly([1.0, 2.0])
    assert known.ends[0] == pytest.approx([1.0, 2.0])
    assert known.p_above(1.5) == pytest.approx([1.0, 0.0])
    assert known.p_below(1.5) == pytest.approx([0.0, 1.0])
    assert known.p_above(2.0) == pytest.approx([1.0, 0.5])


def test_of_what_has_no_interval_nothing_is_said() -> None:
    alone = Estimate(np.log([2.0, 2.0]), np.array([np.nan, 0.1]), np.array([np.nan, 5.0]))
    assert alone.known.tolist() == [False, True]
    for values in (alone.p_differs(), alone.p_above(), alone.p_below(), alone.reach(), *alone.ends):
        assert np.isnan(values).tolist() == [True, False]
    assert np.isnan(estimates.geometric_mean(alone).error)
    assert np.isnan(estimates.total(alone).freedom)


def test_no_figure_of_many_speaks_up() -> None:
    """What is compared may be zero, infinite or unknown; that is no warning of a reader's."""
    odd = Estimate(np.array([0.0, -np.inf, np.nan, 1.0]), np.array([0.0, 0.0, np.nan, 0.0]), np.full(4, np.inf))
    with np.errstate(all="raise"):
        assert odd.over(odd).log.shape == (4,)
        assert odd.p_differs()[[0, 3]] == pytest.approx([1.0, 0.0])
        assert np.isnan(odd.p_below()[2])
        assert estimates.satterthwaite(np.zeros((2, 2)), np.array([[4.0, 7.0], [5.0, 6.0]])).tolist() == [4.0, 6.0]


def test_figures_at_places_and_by_a_mask() -> None:
    chosen = PARTS.take([2, 0])
    assert chosen.value == pytest.approx([5.0, 2.0])
    assert (chosen.error.tolist(), chosen.freedom.tolist()) == ([0.05, 0.1], [6.0, 4.0])
    mixed = PARTS.where(np.array([True, False, True]), exactly([7.0, 8.0, 9.0]))
    assert mixed.value == pytest.approx([2.0, 8.0, 5.0])
    assert mixed.error.tolist() == [0.1, 0.0, 0.05]
    assert mixed.freedom.tolist() == [4.0, np.inf, 6.0]
    assert PARTS.times(2.0).value == pytest.approx([4.0, 6.0, 10.0])


def test_of_what_is_unknown_each_part_has_an_array_of_its_own() -> None:
    nothing = estimates.unknown(2)
    nothing.log[0] = 1.0
    assert np.isnan([*nothing.error, *nothing.freedom, nothing.log[1]]).all()


@given(
    st.floats(0.001, 1.0),
    st.one_of(st.integers(1, 40).map(float), st.just(np.inf)),
    st.floats(0.0, 1.0),
)
def test_load_never_makes_an_interval_narrower(error: float, freedom: float, load: float) -> None:
    own = Estimate(np.log([1.3]), np.array([error]), np.array([freedom]))
    beside = own.beside([load])
    assert beside.log == own.log
    assert (beside.ends[1] >= own.ends[1] * (1 - 1e-12)).all()
    if np.isinf(freedom):
        taken = min(load, 0.95)
        assert float(beside.error[0]) == pytest.approx(
            np.hypot(error, estimates.UNEVEN * (taken if taken <= 0.5 else taken / (1 - taken) / 2))
        )


def test_load_changes_only_ratios_that_were_measured_beside_some() -> None:
    """To the last bit: an error of 0.37 is not the root of its square."""
    beside = Estimate(np.zeros(3), np.full(3, 0.37), np.full(3, np.inf)).beside([0, 0.5, 1])
    assert beside.error[0] == 0.37
    assert beside.error[1] == pytest.approx(np.hypot(0.37, estimates.UNEVEN / 2))
    assert np.isfinite(beside.error[2])
    assert np.isnan(beside.interval()[0]).tolist() == [False, False, True]


def test_load_gives_no_interval_to_what_has_none() -> None:
    assert not estimates.unknown(2).beside([0.0, 0.5]).known.any()
