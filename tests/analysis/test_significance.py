"""Tests on the figures of a table keep their promises."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.significance import holm
from mlflow_ngraph.estimates import Estimate, exactly
from mlflow_ngraph.measure import statistics
from tests.support.tidy import cells


def row(estimate: Estimate) -> dict[str, float]:
    low, high = map(float, estimate.interval())
    return {
        "throughput": float(estimate.value),
        "throughput_ci_low": low,
        "throughput_ci_high": high,
        "throughput_log_se": float(estimate.error),
        "throughput_df": float(estimate.freedom),
    }


def test_ratios_are_those_of_the_statistics() -> None:
    rng = np.random.default_rng(2)
    one, two = (statistics.typical(rng.lognormal(mean, 0.1, n)) for mean, n in ((3.0, 5), (3.1, 12)))
    expected = one.over(two)
    frame = pd.DataFrame([row(one), row(two)])
    whole = significance.figures(frame, "throughput")
    found = whole.take([0]).over(whole.take([1]))
    assert (found.log[0], found.error[0], found.freedom[0]) == pytest.approx(
        (expected.log, expected.error, expected.freedom)
    )
    ends = tuple(end[0] for end in found.interval())
    assert ends == pytest.approx(expected.interval())
    p_value = 2 * stats.t.sf(abs(expected.log / expected.error), expected.freedom)
    assert found.p_differs()[0] == pytest.approx(p_value)


def test_one_sided_tests_against_a_bound() -> None:
    found = Estimate(np.log([0.9, 1.1]), np.array([0.02, 0.02]), np.array([9.0, 9.0]))
    below, above = found.p_below(0.98), found.p_above(1.02)
    assert below[0] == pytest.approx(stats.t.cdf(np.log(0.9 / 0.98) / 0.02, 9))
    assert above[1] == pytest.approx(stats.t.sf(np.log(1.1 / 1.02) / 0.02, 9))
    assert below[1] > 0.99
    assert above[0] > 0.99


def test_what_is_known_exactly_and_what_has_no_interval() -> None:
    exact = exactly([1.0, 2.0])
    assert list(exact.p_differs()) == [1.0, 0.0]
    frame = pd.DataFrame([{"throughput": 5.0, "throughput_ci_low": np.nan, "throughput_ci_high": np.nan}])
    alone = significance.figures(frame, "throughput")
    assert np.isnan(alone.error[0])
    assert np.isnan(alone.over(exactly([4.0])).p_differs()[0])
    assert np.isnan(significance.figures(frame.assign(cpu_percent=3.0), "cpu_percent").error[0])


def test_a_complement_has_the_logarithm_of_what_is_left() -> None:
    frame = pd.DataFrame(
        {"cpu_reduction": [0.6, 0.2], "cpu_reduction_log_se": [0.1, 0.0], "cpu_reduction_df": [4.0, np.nan]}
    )
    left = significance.figures(frame, "cpu_reduction")
    assert left.value == pytest.approx([0.4, 0.8])
    assert left.freedom.tolist() == [4.0, np.inf], "what is known without an error is known exactly"


def test_a_mean_latency_has_the_error_of_the_throughput() -> None:
    frame = cells(throughput=[100.0, 120.0])
    speed, latency = (significance.figures(frame, name) for name in ("throughput_mean", "latency_mean_ms"))
    assert latency.error == pytest.approx(speed.error)


def test_the_ends_that_are_shown_are_those_that_were_recorded_or_follow_from_the_reciprocal() -> None:
    frame = cells(throughput=[100.0, 120.0])
    for metric in ("throughput", "latency_mean_ms"):
        low, high = significance.interval(frame, metric)
        assert np.all((low < frame[metric]) & (frame[metric] < high))
        expected = np.log(frame["throughput_ci_high"]) - np.log(frame["throughput_ci_low"])
        assert np.log(high) - np.log(low) == pytest.approx(expected)
    assert np.isnan(significance.interval(frame, "batch")).all()
    recorded = significance.interval(frame.assign(throughput_log_se=np.nan), "throughput")
    assert np.array_equal(recorded[0], frame["throughput_ci_low"])
    assert np.array_equal(recorded[1], frame["throughput_ci_high"])


def test_intervals_of_older_tables_that_are_too_wide_to_be_shown_are_left_out() -> None:
    frame = pd.DataFrame(
        {
            "throughput": [100.0] * 3,
            "throughput_ci_low": [90.0, 1.0, 1.0],
            "throughput_ci_high": [110.0, 1e4, 1e4],
            "throughput_log_se": [0.05, 2.0, np.nan],
            "throughput_df": [20.0, 20.0, np.nan],
        }
    )
    low, high = significance.interval(frame, "throughput")
    assert low == pytest.approx([90.0, np.nan, 1.0], nan_ok=True)
    assert high == pytest.approx([110.0, np.nan, 1e4], nan_ok=True)


def test_figures_that_are_missing_or_have_no_logarithm_are_unknown_without_a_warning() -> None:
    frame = pd.DataFrame({"cpu_reduction": pd.Series([0.6, None, 1.5], dtype=object)})
    with np.errstate(all="raise"):
        left = significance.figures(frame, "cpu_reduction")
    assert left.value == pytest.approx([0.4, np.nan, np.nan], nan_ok=True)
    frame["cpu_reduction_log_se"] = pd.Series([0.1, None, None], dtype=object)
    assert significance.figures(frame, "cpu_reduction").known.tolist() == [True, False, False]


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, np.nan]) == pytest.approx([0.03, 0.06, 0.06, np.nan], nan_ok=True)
    assert holm([0.01], 10) == pytest.approx([0.1])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([1, 0]) == pytest.approx([1.0, 0.0])
    assert holm([]).size == 0


def test_noise_touches_the_metrics_that_a_row_names() -> None:
    frame = pd.DataFrame({"unsteady": ["throughput,rtr", None, "", "throughput_mean"]})
    assert significance.unsteady(frame, "throughput").tolist() == [True, False, False, False]
    assert significance.unsteady(frame, "rtr").tolist() == [True, False, False, False]
    assert significance.unsteady(frame, "throughput_mean").tolist() == [False, False, False, True]
    for rows in (frame[[]], frame.iloc[:0], frame[[]].iloc[:0]):
        mask = significance.unsteady(rows, "throughput")
        assert (~mask).tolist() == [True] * len(rows), "a mask of truths, however few"


def test_equal_cells_differ_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(3)
    draws = 4000
    logs = rng.normal(0, 0.02, (draws, 2, 8))
    error = logs.std(axis=2, ddof=1) / np.sqrt(8)
    one, two = (Estimate(logs[:, side].mean(axis=1), error[:, side], np.full(draws, 7.0)) for side in (0, 1))
    assert np.mean(one.over(two).p_differs() < 0.05) == pytest.approx(0.05, abs=0.012)
