import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph.measure import statistics


def rng():
    return np.random.default_rng(7)


def drifting(rounds, repetitions, level, seed):
    """Slices whose level drifts by a third, as on a machine that somebody else uses."""
    source = np.random.default_rng(seed)
    drift = 1 + 0.3 * np.sin(np.arange(rounds))
    return [level * factor * (1 + 0.02 * source.standard_normal(repetitions)) for factor in drift]


def test_paired_ratio_is_immune_to_drift_that_hits_both():
    estimate = statistics.paired_ratio(drifting(12, 10, 300.0, 1), drifting(12, 10, 100.0, 2), rng())
    assert estimate.value == pytest.approx(3.0, rel=0.02)
    assert estimate.high - estimate.low < 0.15
    assert estimate.low <= 3.0 <= estimate.high


def test_a_program_against_itself_covers_one():
    """The interval of an A/A comparison covers 1 in about 95 of 100 draws."""
    covered = 0
    for seed in range(100):
        estimate = statistics.paired_ratio(drifting(10, 10, 50.0, seed), drifting(10, 10, 50.0, seed + 1000), rng())
        covered += estimate.low <= 1.0 <= estimate.high
    assert covered >= 88


@given(st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_paired_ratio_scales(factor):
    top, bottom = drifting(5, 6, 10.0, 3), drifting(5, 6, 4.0, 4)
    plain = statistics.paired_ratio(top, bottom, rng())
    scaled = statistics.paired_ratio([factor * part for part in top], bottom, rng())
    for name in ("value", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(factor * getattr(plain, name))


def test_paired_ratio_refuses_unpaired_rounds():
    with pytest.raises(ValueError, match="same rounds"):
        statistics.paired_ratio([np.ones(3)], [], rng())
    with pytest.raises(ValueError, match="same rounds"):
        statistics.paired_ratio([np.ones(3)], [np.ones(3), np.ones(3)], rng())


def test_drift_between_slices_widens_the_interval():
    """Resampling single repetitions would call these two alike."""
    steady = [np.full(10, 100.0) for _ in range(10)]
    low, high = statistics.interval(statistics.mean_duration_replicates(steady, rng()))
    assert low == high == pytest.approx(100.0)
    low, high = statistics.interval(statistics.mean_duration_replicates(drifting(10, 10, 100.0, 5), rng()))
    assert high - low > 10


def test_the_interval_of_the_mean_covers_the_truth():
    covered = 0
    for seed in range(200):
        source = np.random.default_rng(seed)
        slices = [source.gamma(4.0, 25.0, 10) * (1 + 0.05 * source.standard_normal()) for _ in range(20)]
        low, high = statistics.interval(statistics.mean_duration_replicates(slices, rng(), count=200))
        covered += low <= 100.0 <= high
    assert 0.88 <= covered / 200 <= 1.0


def test_one_slice_is_enough():
    estimate = statistics.paired_ratio([np.array([4.0])], [np.array([2.0])], rng())
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)
