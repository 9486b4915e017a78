import pytest

from mlflow_ngraph.measure.stability import SliceFacts, foreign_cpu_percent, problem, slice_spread


def facts(median_s=0.01, wall_s=1.0, cpu_s=1.9, foreign_s=0.0):
    return SliceFacts(median_s, wall_s, cpu_s, cpu_s + foreign_s)


def test_a_quiet_machine_is_no_problem():
    assert problem([facts()] * 5, 2, 10, 0.1) is None


def test_other_processes_are_named_with_a_remedy():
    found = problem([facts(foreign_s=0.5)] * 5, 2, 10, 0.1)
    assert found is not None
    assert found.startswith("other processes used 24 % of the machine")
    assert "--resume" in found


def test_clock_ticks_accuse_nobody():
    """A slice of 5 ms can see the whole of a 10 ms tick on each processor."""
    short = [facts(wall_s=0.005, cpu_s=0.005, foreign_s=0.02)] * 10
    assert foreign_cpu_percent(short, 2) == 0


def test_scatter_between_slices_is_unstable_and_one_outlier_is_not():
    scattered = [facts(median_s=value) for value in (0.010, 0.014, 0.009, 0.016, 0.011)]
    assert "scatter by" in (problem(scattered, 2, 10, 0.1) or "")
    assert problem([facts()] * 8 + [facts(median_s=0.1)], 2, 10, 0.1) is None


def test_spread_of_a_known_series():
    assert slice_spread([facts(median_s=value) for value in (9.0, 10.0, 11.0)]) == pytest.approx(0.14826)


def test_two_slices_have_no_spread():
    assert slice_spread([facts(), facts(median_s=1.0)]) is None
