"""What can be told of processors from clocks that tick."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.measure.cpu_shares import COARSEST, TICK_S, Window, foreign, own_processors, sampling_error

TICKED = 0.1 + TICK_S


def miscounted(rng: np.random.Generator, seconds: float, slices: int, use: float, burst_s: float) -> float:
    """By how much ticks miss the share of a processor that is used in bursts, over the windows of a cell."""
    counted = used = 0.0
    for _ in range(slices):
        bursts = 20 + int(3 * seconds / burst_s)
        lengths = np.empty(2 * bursts)
        lengths[0::2] = rng.exponential(burst_s, bursts)
        lengths[1::2] = rng.exponential(burst_s * (1 / use - 1), bursts)
        edges = np.cumsum(lengths) - rng.uniform(0, 5 * burst_s)
        moments = np.arange(rng.uniform(0, TICK_S), seconds, TICK_S)
        counted += TICK_S * np.count_nonzero(np.searchsorted(edges, moments) % 2 == 0)
        begins, ends = np.clip(np.append(edges[1::2], seconds), 0, seconds), np.clip(edges[0::2], 0, seconds)
        used += ends[0] + (ends[1:] - begins[: ends.size - 1]).clip(0).sum()
    return (counted - used) / (slices * seconds)


@pytest.mark.parametrize("seconds", [0.005, 0.05, 0.1, 1.0])
@pytest.mark.parametrize("slices", [1, 3, 10])
@pytest.mark.parametrize(("use", "burst_s"), [(0.1, 0.0007), (0.5, 0.0013), (0.5, 0.037), (0.9, 0.3)])
def test_ticks_miss_no_more_than_is_said(seconds: float, slices: int, use: float, burst_s: float) -> None:
    rng = np.random.default_rng(3)
    errors = [miscounted(rng, seconds, slices, use, burst_s) for _ in range(300)]
    assert np.std(errors) <= 1.1 * sampling_error([seconds] * slices)
    assert abs(np.mean(errors)) < 5 * np.std(errors) / math.sqrt(len(errors)) + 1e-9


def test_a_single_tick_in_a_slice_of_microseconds_is_no_share() -> None:
    """Ten repetitions of 20 µs: a tick looks like fifty times the machine."""
    slices = [Window(0.0002, 0.0002, 0.01)] * 10
    assert foreign(slices, 2) is None
    assert own_processors([Window(0.0002, 0.004, 0.01)], 2) is None
    assert own_processors([Window(0.0002, 0.0002, 0.01)], 1) == 1.0, "the only thread that can run is read exactly"


def test_watched_long_enough_a_neighbour_is_seen() -> None:
    found = foreign([Window(TICKED, 0.5 * TICKED, 1.5 * TICKED)] * 8, 2)
    assert found is not None
    assert found.share == pytest.approx(0.5)
    assert 0.3 < found.certain < 0.45
    assert found.stolen == 0


def test_more_windows_and_longer_ones_make_it_surer() -> None:
    errors = [sampling_error(windows) for windows in ([0.1], [0.1] * 3, [0.1] * 10, [1.0] * 10, [10.0] * 10)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > COARSEST > errors[1]
    assert errors[-1] < 0.01


def test_a_machine_that_does_not_tell_accuses_nobody() -> None:
    assert foreign([Window(1.0, 0.5, None)] * 10, 2) is None
    assert foreign([], 2) is None
    assert own_processors([], 2) is None
    assert Window.of(None) is None
    assert Window.of({"seconds": 1.0, "counted": {}}) is None


def test_what_was_stolen_is_a_part_of_what_others_used() -> None:
    found = foreign([Window(1.0, 1.0, 1.5, 0.4)] * 4, 2)
    assert found is not None
    assert found.stolen == pytest.approx(0.8)
    every = foreign([Window(1.0, 1.0, 1.2, 0.5)] * 4, 2)
    assert every is not None
    assert every.stolen == 1.0


WINDOWS = st.lists(
    st.builds(
        Window,
        st.floats(1e-5, 100),
        st.floats(0, 1e4),
        st.one_of(st.none(), st.floats(0, 1e4)),
        st.floats(0, 1e4),
    ),
    max_size=30,
)


@given(WINDOWS, st.integers(1, 512))
def test_no_share_is_ever_more_than_there_is(windows: list[Window], processors: int) -> None:
    own, found = own_processors(windows, processors), foreign(windows, processors)
    assert own is None or 0 <= own <= processors
    if found is not None:
        assert 0 <= found.certain <= found.share <= 1
        assert 0 < found.error <= COARSEST
        assert 0 <= found.stolen <= 1
        told = [window for window in windows if window.machine_busy_s is not None]
        used = own_processors(told, processors)
        assert used is None or found.share + used / processors <= 1 + 1e-9
