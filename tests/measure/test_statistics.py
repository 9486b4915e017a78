import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlflow_ngraph import estimates
from mlflow_ngraph.estimates import Estimate, exactly
from mlflow_ngraph.measure import statistics

positive = st.floats(1e-3, 1e6)
rounds = st.lists(positive, min_size=2, max_size=12).map(np.array)


def drifting(count, repetitions, level, seed):
    """Slices whose level drifts by a third, as on a machine that somebody else uses."""
    source = np.random.default_rng(seed)
    drift = 1 + 0.3 * np.sin(np.arange(count))
    return [level * factor * (1 + 0.02 * source.standard_normal(repetitions)) for factor in drift]


def together(parts):
    """Estimates as the arrays of one."""
    return Estimate(*(np.array([getattr(part, name) for part in parts]) for name in ("log", "error", "freedom")))


def medians(*args):
    return statistics.slice_medians(drifting(*args))


def test_paired_ratio_is_immune_to_drift_that_hits_both():
    estimate = statistics.paired_ratio(medians(12, 10, 300.0, 1), medians(12, 10, 100.0, 2))
    low, high = estimate.interval()
    assert estimate.value == pytest.approx(3.0, rel=0.02)
    assert high - low < 0.15
    assert low <= 3.0 <= high


def test_unpaired_the_same_drift_widens_the_interval():
    paired = statistics.paired_ratio(medians(12, 10, 300.0, 1), medians(12, 10, 100.0, 2))
    apart = statistics.typical(medians(12, 10, 300.0, 1)).over(statistics.typical(medians(12, 10, 100.0, 2)))
    assert apart.value == pytest.approx(paired.value, rel=0.02)
    assert apart.error > 5 * paired.error


@pytest.mark.parametrize("count", [2, 3, 8, 10, 40])
def test_the_interval_of_a_paired_ratio_covers_the_truth_however_few_rounds(count):
    hits = 0
    for seed in range(400):
        low, high = statistics.paired_ratio(
            medians(count, 5, 50.0, seed), medians(count, 5, 50.0, seed + 9000)
        ).interval()
        hits += bool(low <= 1.0 <= high)
    assert 0.92 <= hits / 400 <= 0.98


def test_the_interval_of_the_mean_covers_the_truth():
    hits = 0
    for seed in range(400):
        source = np.random.default_rng(seed)
        slices = [source.gamma(4.0, 25.0, 10) * (1 + 0.05 * source.standard_normal()) for _ in range(10)]
        low, high = statistics.mean_duration(slices).interval()
        hits += bool(low <= 100.0 <= high)
    assert 0.92 <= hits / 400 <= 0.98


def test_the_mean_counts_repetitions_and_its_error_counts_rounds():
    slices = [np.full(30, 100.0), np.full(10, 200.0)]
    estimate = statistics.mean_duration(slices)
    assert estimate.value == pytest.approx(125.0)
    assert estimate.freedom == 1
    repeated = statistics.mean_duration([np.repeat(part, 50) for part in slices])
    assert repeated.error == pytest.approx(estimate.error), "more repetitions of the same round say nothing new"


@given(st.lists(st.lists(positive, min_size=3, max_size=3), min_size=2, max_size=8))
def test_with_equal_slices_the_error_is_that_of_their_means(slices):
    arrays = [np.array(part) for part in slices]
    means = np.array([part.mean() for part in arrays])
    estimate = statistics.mean_duration(arrays)
    assert estimate.value == pytest.approx(means.mean())
    assert estimate.error == pytest.approx(means.std(ddof=1) / np.sqrt(means.size) / means.mean(), abs=1e-9)


@given(rounds, st.floats(0.01, 100))
def test_a_paired_ratio_scales_and_inverts(values, factor):
    other = np.arange(1.0, values.size + 1)
    plain, scaled = statistics.paired_ratio(values, other), statistics.paired_ratio(factor * values, other)
    inverse = statistics.paired_ratio(other, values)
    assert scaled.value == pytest.approx(factor * plain.value)
    assert plain.times(factor).ends == pytest.approx(scaled.ends)
    assert inverse.value == pytest.approx(1 / plain.value)
    assert inverse.ends == pytest.approx(tuple(1 / end for end in reversed(plain.ends)))


@given(st.lists(st.floats(0.5, 2.0), min_size=8, max_size=60), st.integers(0, 10))
def test_rounds_in_which_one_side_was_disturbed_are_left_out(ratios, seed):
    ratios = np.array(ratios)
    cut = statistics.trimmed(ratios.size)
    assert 2 * cut <= 0.4 * ratios.size
    disturbed = np.sort(ratios)
    disturbed[-cut:] *= 50
    np.random.default_rng(seed).shuffle(disturbed)
    calm, rough = (statistics.paired_ratio(values, np.ones(ratios.size)) for values in (ratios, disturbed))
    assert rough.value == pytest.approx(calm.value)
    assert rough.interval() == pytest.approx(calm.interval())


def test_the_trimmed_mean_is_that_of_scipy():
    values = np.random.default_rng(0).lognormal(0, 0.1, 23)
    found = statistics.paired_ratio(values, np.ones(23))
    winsorized = stats.mstats.winsorize(np.log(values), (4 / 23, 4 / 23))
    assert found.log == pytest.approx(stats.trim_mean(np.log(values), statistics.TRIMMED))
    assert found.error == pytest.approx(winsorized.std(ddof=1) * np.sqrt(22 / 15 / 14))
    assert found.freedom == 23 - 2 * 4 - 1


@given(st.lists(positive, min_size=2, max_size=7).map(np.array))
def test_a_ratio_of_geometric_means_is_the_mean_of_paired_ratios(values):
    other = np.linspace(1.0, 2.0, values.size)
    paired = statistics.paired_ratio(values, other)
    apart = statistics.typical(values).over(statistics.typical(other))
    assert paired.log == pytest.approx(apart.log, abs=1e-9)


@given(rounds, rounds)
def test_satterthwaite_is_between_the_smaller_freedom_and_the_sum(one, two):
    a, b = statistics.typical(one), statistics.typical(two)
    freedom = a.over(b).freedom
    assert min(a.freedom, b.freedom) - 1e-6 <= freedom <= a.freedom + b.freedom + 1e-6


@given(rounds)
@settings(max_examples=30)
def test_an_exact_figure_adds_no_uncertainty(values):
    measured, exact = statistics.typical(values), exactly(2.0)
    found = measured.over(exact)
    assert (found.error, found.freedom) == pytest.approx((measured.error, measured.freedom))
    assert exact.interval() == pytest.approx((2.0, 2.0))


def test_one_round_has_a_figure_but_no_interval():
    for estimate in (
        statistics.paired_ratio(np.array([4.0]), np.array([2.0])),
        statistics.typical(np.array([4.0])).over(statistics.typical(np.array([2.0, 2.0]))),
    ):
        assert estimate.value == pytest.approx(2.0)
        assert np.isnan(estimate.interval()).all()
    mean = statistics.mean_duration([np.array([3.0, 5.0])])
    assert mean.value == pytest.approx(4.0)
    assert not mean.known
    assert np.isnan(mean.freedom)


def test_a_slope_is_a_weighted_sum():
    source = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        points = [statistics.typical(np.exp(np.log(level) + 0.02 * source.standard_normal(6))) for level in (1, 2, 3)]
        value, low, high = estimates.weighted_sum([-0.5, 0.0, 0.5], together(points))
        assert value == pytest.approx(1.0, abs=0.1)
        hits += bool(low <= 1.0 <= high)
    assert 0.92 <= hits / 400 <= 0.98
    value, low, high = estimates.weighted_sum([1.0], together([statistics.typical(np.array([3.0]))]))
    assert value == pytest.approx(3.0)
    assert np.isnan([low, high]).all()


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(ValueError, match=r"^a paired ratio needs the same rounds"):
        statistics.paired_ratio(np.ones(3), np.ones(2))
    for wrong in ([0.0, 1.0], [-1.0, -2.0], []):
        for sides in ((wrong, np.ones(len(wrong))), (np.ones(len(wrong)), wrong)):
            with pytest.raises(ValueError, match=r"^a paired ratio needs at least one round, and positive figures$"):
                statistics.paired_ratio(*map(np.array, sides))
    with pytest.raises(ValueError, match=r"^a typical figure needs at least one round"):
        statistics.typical(np.array([]))
    with pytest.raises(ValueError, match="positive"):
        statistics.typical(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"^a mean needs at least one repetition$"):
        statistics.mean_duration([])


@given(st.integers(1, 5), st.integers(2, 20), st.integers(0, 2**32 - 1))
def test_many_pairs_at_once_are_what_each_is_by_itself(pairs, count, seed):
    logs = np.random.default_rng(seed).standard_normal((pairs, count))
    several = statistics.trimmed_mean(logs)
    for place, row in enumerate(logs):
        alone = statistics.paired_ratio(np.exp(row), np.ones(count))
        assert (several.log[place], several.error[place]) == (pytest.approx(alone.log), pytest.approx(alone.error))
        assert several.freedom[place] == alone.freedom


def _autoregressive(rng, count, alike):
    walk = np.empty(count)
    walk[0] = rng.standard_normal()
    for place in range(1, count):
        walk[place] = alike * walk[place - 1] + np.sqrt(1 - alike**2) * rng.standard_normal()
    return 0.1 * walk


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_noise_that_outlives_a_round_is_in_the_interval_of_an_absolute_figure(alike):
    naive = disturbed = 0
    for seed in range(400):
        logs = _autoregressive(np.random.default_rng(seed), 16, alike)
        estimate = statistics.typical(np.exp(logs))
        wider = statistics.persistent(estimate, logs)
        assert wider.error >= estimate.error
        assert 3 <= wider.freedom <= estimate.freedom
        for one in (estimate, wider):
            low, high = one.interval()
            hit = bool(low <= 1 <= high)
            naive, disturbed = naive + (hit and one is estimate), disturbed + (hit and one is wider)
    assert disturbed >= 0.93 * 400
    assert naive <= disturbed
    if alike == 0.8:
        assert naive <= 0.65 * 400, "what it is for"


@pytest.mark.parametrize("rounds", [3, 5, 7])
@pytest.mark.parametrize("alike", [0.0, 0.8])
def test_few_rounds_are_taken_to_be_as_alike_as_any(rounds, alike):
    covered = 0
    for seed in range(400):
        logs = _autoregressive(np.random.default_rng([seed, rounds]), rounds, alike)
        low, high = statistics.persistent(statistics.typical(np.exp(logs)), logs).ends
        covered += bool(low <= 1 <= high)
    assert covered >= 0.92 * 400
    if alike == 0.8:
        assert covered <= 0.98 * 400, "no wider than need be"


def _inflated(alike, count):
    """How much larger the error of a mean is, from the matrix of all correlations between rounds."""
    places = np.arange(count)
    of_mean = (float(alike) ** abs(places[:, None] - places)).mean()
    return np.sqrt((count - 1) * of_mean / (1 - of_mean))


def _persistent(logs):
    """Autocorrelation, error and freedom by the formulas of the documentation, for eight rounds or more."""
    count, cut = len(logs), len(logs) // 5
    inner = np.clip(logs, *np.sort(logs)[[cut, -cut - 1]])
    centred, kept = inner - np.mean(inner), count - 2 * cut
    raw = np.sum(centred[1:] * centred[:-1]) / np.sum(centred**2) if np.ptp(logs) else 0.0
    alike = np.clip((count * raw + 1) / (count - 4) + 7 / count, 0, 0.8)
    error = inner.std(ddof=1) * np.sqrt((count - 1) / kept / (kept - 1))
    return error * _inflated(alike, count), max((kept - 1) * (1 - alike) / (1 + alike), 3)


@pytest.mark.parametrize(
    "logs",
    [
        [0.0, 0.1, -0.1, 0.05, 0.02, 0.08, 0.01, -0.03],  # as few as can tell anything
        [0.0, 0.1, -0.1, 0.05, 0.02, 0.08, 0.01, -0.03, 0.04],
        [0.0, 0.02, 0.03, -0.01, -0.02, 0.01, 0.02, 0.0, 0.03, -0.03, -0.02, 0.01],  # a little alike
        [0.1, -0.1] * 12,  # turns round each time: not alike
        list(np.linspace(-0.2, 0.2, 12)),  # a drift: few rounds' worth
        [0.3] * 8,
        [0.3] * 24,
    ],
    ids=["eight", "nine", "a little", "alternating", "drift", "equal", "many equal"],
)
def test_rounds_that_are_alike_count_as_fewer(logs):
    logs = np.array(logs)
    wider = statistics.persistent(statistics.typical(np.exp(logs)), logs)
    error, freedom = _persistent(logs)
    assert wider.error == pytest.approx(error, abs=1e-12)
    assert wider.freedom == pytest.approx(freedom)


@pytest.mark.parametrize("burst", [0.5, 3.0, 7.0])
def test_one_burst_makes_no_autocorrelation(burst):
    logs = 0.02 * np.random.default_rng(0).standard_normal(20)
    disturbed = logs.copy()
    disturbed[9:11] += burst
    quiet, wider = (statistics.persistent(statistics.typical(np.exp(one)), one) for one in (logs, disturbed))
    assert wider.error <= 2 * quiet.error
    assert wider.interval()[1] / wider.interval()[0] < 1.2


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=60))
def test_no_twenty_rounds_count_as_one(values):
    logs = np.array(values)
    estimate = statistics.typical(np.exp(logs))
    wider = statistics.persistent(estimate, logs)
    assert wider.log == estimate.log
    assert estimate.error * (1 - 1e-12) <= wider.error <= 3.28 * estimate.error
    assert wider.freedom >= min(3, logs.size - 1)


def test_two_rounds_and_seven_tell_nothing_of_it_and_a_single_one_stays_without_an_interval():
    for logs in (np.array([0.0, 0.1]), np.array([0.0, 0.1, 0.3, 0.2, 0.1, 0.0, -0.1])):
        wider = statistics.persistent(statistics.typical(np.exp(logs)), logs)
        assert wider.error == pytest.approx(_inflated(0.8, logs.size) * logs.std(ddof=1) / np.sqrt(logs.size))
        assert wider.freedom == logs.size - 1
    alone = statistics.typical(np.array([3.0]))
    assert statistics.persistent(alone, alone.log[None]) is alone


def test_single_rounds_of_many_pairs_have_figures_and_no_intervals():
    assert statistics.paired_ratio(np.ones(1), np.ones(1)).error.shape == ()
    several = statistics.trimmed_mean(np.array([[0.1], [0.2], [0.4]]))
    assert several.log.tolist() == [0.1, 0.2, 0.4]
    assert np.isnan(several.error).tolist() == np.isnan(several.freedom).tolist() == [True] * 3


def test_whole_numbers_are_figures_too():
    slices = [np.array([3, 5]), np.array([4, 4, 7])]
    assert statistics.mean_duration(slices).value == pytest.approx(23 / 5)
    for estimate in (statistics.mean_duration(slices[:1]), statistics.typical(np.array([4]))):
        assert estimate.error.dtype == estimate.freedom.dtype == float
        assert np.isnan([estimate.error, estimate.freedom]).all()
