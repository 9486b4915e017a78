import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph import metrics

positive = st.floats(1e-3, 1e6)
batches = st.integers(1, 512)


@given(positive, positive, batches)
def test_bsr_is_the_ratio_of_speedups(identity_1, compiled_1, batch):
    """BSR_c(b) = S_c(b) / S_c(1), whatever the throughputs are: the definitions must agree with each other."""
    identity_b, compiled_b = identity_1 * batch * 0.7, compiled_1 * batch * 0.9
    ase = metrics.absolute_scaling_efficiency(compiled_b, compiled_1, batch)
    ase_identity = metrics.absolute_scaling_efficiency(identity_b, identity_1, batch)
    expected = metrics.speedup(compiled_b, identity_b) / metrics.speedup(compiled_1, identity_1)
    assert metrics.batch_scaling_resilience(ase, ase_identity) == pytest.approx(expected)


@given(positive, batches)
def test_perfect_batch_parallelism_has_efficiency_one(at_batch_1, batch):
    assert metrics.absolute_scaling_efficiency(batch * at_batch_1, at_batch_1, batch) == pytest.approx(1.0)
    assert metrics.relative_throughput_rate(batch * at_batch_1, at_batch_1) == pytest.approx(batch)


@given(positive, positive)
def test_everything_is_one_at_batch_1_against_itself(throughput, cpu):
    assert metrics.speedup(throughput, throughput) == 1.0
    assert metrics.absolute_scaling_efficiency(throughput, throughput, 1) == 1.0
    assert metrics.cpu_reduction(cpu, cpu) == 0.0


def test_formulas_take_replicates():
    np.testing.assert_allclose(metrics.speedup(np.array([2.0, 3.0]), np.array([1.0, 2.0])), [2.0, 1.5])


@given(st.floats(-10, 10), st.floats(-100, 100), st.lists(st.integers(1, 30), min_size=2, unique=True))
def test_slope_of_a_line_is_its_slope(slope, offset, depths):
    line = [offset + slope * depth for depth in depths]
    assert metrics.depth_slope(depths, line) == pytest.approx(slope, abs=1e-6)


def test_slope_agrees_with_numpy():
    depths, speedups = [1, 2, 3, 6], [1.1, 1.9, 1.4, 2.8]
    assert metrics.depth_slope(depths, speedups) == pytest.approx(np.polyfit(depths, speedups, 1)[0])


def test_slope_needs_two_depths():
    with pytest.raises(ValueError, match="two different depths"):
        metrics.depth_slope([3, 3], [1.0, 2.0])


def test_retention_compares_the_deepest_with_depth_one():
    assert metrics.depth_retention([6, 1, 3], [0.9, 1.8, 1.2]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="depth one"):
        metrics.depth_retention([2, 3], [1.0, 1.0])
