"""Where scatter comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.measure import variance
from mlflow_ngraph.measure.variance import slice_length


def components(*given: Any) -> Any:
    return variance.components(*given)


def drawn(rng: np.random.Generator, sizes: list[list[int]], process: float, between: float, own: float):
    """Repetitions of slices of processes, with deviations that are known."""
    logs: list[float] = []
    slices: list[int] = []
    processes: list[int] = []
    begun = 0
    for number, sizes_of_process in enumerate(sizes):
        level = process * rng.standard_normal()
        for size in sizes_of_process:
            moved = level + between * rng.standard_normal()
            logs += list(moved + own * rng.standard_normal(size))
            slices += [begun] * size
            begun += 1
            processes += [number] * size
    return np.exp(logs), np.array(slices), np.array(processes)


def test_unequal_slices_of_unequal_processes_give_back_what_was_put_in():
    rng = np.random.default_rng(0)
    sizes = [[3, 5, 2, 8], [4, 4], [9, 1, 3], [2, 6, 6, 2, 3], [7, 7, 1]]
    truth = {"process": 0.05, "slice": 0.03, "repetition": 0.02}
    found = [components(*drawn(rng, sizes, 0.05, 0.03, 0.02)) for _ in range(800)]
    for level, deviation in truth.items():
        mean = np.mean([one[level].deviation ** 2 for one in found])
        assert np.sqrt(mean) == pytest.approx(deviation, rel=0.08), level


def test_the_shares_are_those_of_the_variance_of_the_mean():
    sizes = [[5] * 4] * 6
    rng = np.random.default_rng(1)
    means = [np.log(drawn(rng, sizes, 0.04, 0.02, 0.03)[0]).mean() for _ in range(4000)]
    parts = {"process": 0.04**2 / 6, "slice": 0.02**2 / 24, "repetition": 0.03**2 / 120}
    assert np.var(means) == pytest.approx(sum(parts.values()), rel=0.08)
    many = components(*drawn(rng, [[5] * 4] * 3000, 0.04, 0.02, 0.03))
    expected = {level: part / sum(parts.values()) for level, part in parts.items()}
    assert {level: part.of_error for level, part in many.items()} == pytest.approx(expected, abs=0.05)


def test_the_shares_of_an_unequal_design_follow_from_its_components_and_numbers():
    sizes = [[3, 5, 2, 8], [4, 4], [9, 1, 3]]
    found = components(*drawn(np.random.default_rng(5), sizes, 0.1, 0.1, 0.05))
    total, of_slices, of_processes = 39, [3, 5, 2, 8, 4, 4, 9, 1, 3], [18, 8, 13]
    parts = {
        "repetition": found["repetition"].deviation ** 2 / total,
        "slice": found["slice"].deviation ** 2 * sum(n**2 for n in of_slices) / total**2,
        "process": found["process"].deviation ** 2 * sum(n**2 for n in of_processes) / total**2,
    }
    assert all(parts.values())
    expected = {level: part / sum(parts.values()) for level, part in parts.items()}
    assert {level: part.of_error for level, part in found.items()} == pytest.approx(expected)


def test_slices_of_one_repetition_scatter_as_they_do_together():
    logs = np.array([0.0, 0.2, 0.1, 0.4])
    found = components(np.exp(logs), np.arange(4), np.array([0, 0, 1, 1]))
    assert found["repetition"] is None
    assert found["slice"].deviation ** 2 == pytest.approx((0.02 + 0.045) / 2)
    two = components(np.exp([0.0, 0.2]), np.array([0, 0]), np.array([0, 0]))
    assert two["repetition"].deviation ** 2 == pytest.approx(0.02)
    equal = components(np.full(4, 2.0), np.arange(4), np.array([0, 0, 1, 1]))
    assert {part.of_error for part in equal.values() if part} == {0.0}


def test_a_balanced_design_agrees_with_the_textbook():
    rng = np.random.default_rng(2)
    durations, slices, processes = drawn(rng, [[4] * 3] * 5, 0.1, 0.05, 0.02)
    logs = np.log(durations).reshape(5, 3, 4)
    within = logs.var(axis=2, ddof=1).mean()
    between = logs.mean(axis=2).var(axis=1, ddof=1).mean()
    over = logs.mean(axis=(1, 2)).var(ddof=1)
    found = components(durations, slices, processes)
    assert found["repetition"].deviation ** 2 == pytest.approx(within)
    assert found["slice"].deviation ** 2 == pytest.approx(max(0, between - within / 4))
    assert found["process"].deviation ** 2 == pytest.approx(max(0, over - between / 3))
    assert [part.units for part in found.values()] == [60, 15, 5]


def test_what_cannot_be_told_apart_is_not_told():
    rng = np.random.default_rng(3)
    each_its_own = components(*drawn(rng, [[4]] * 10, 0.1, 0.1, 0.01))
    assert each_its_own["slice"] is None
    assert each_its_own["process"].deviation == pytest.approx(0.14, rel=0.5)
    one_process = components(*drawn(rng, [[4] * 10], 0.1, 0.05, 0.01))
    assert one_process["process"] is None
    assert one_process["slice"].deviation == pytest.approx(0.05, rel=0.5)
    one_slice = components(*drawn(rng, [[10]], 0.1, 0.05, 0.01))
    assert (one_slice["slice"], one_slice["process"]) == (None, None)
    assert one_slice["repetition"].of_error == 1
    one_repetition = components(np.array([2.0]), np.array([0]), np.array([0]))
    assert set(one_repetition.values()) == {None}
    for wrong in (np.array([]), np.array([1.0, 0.0])):
        with pytest.raises(ValueError, match=r"^components of a variance need repetitions, and positive durations$"):
            components(wrong, np.zeros(wrong.size, int), np.zeros(wrong.size, int))


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_units_names_and_order_do_not_matter(seed, unit):
    rng = np.random.default_rng(seed)
    durations, slices, processes = drawn(rng, [[3, 1, 4], [2], [2, 5]], 0.1, 0.2, 0.1)
    turn = rng.permutation(durations.size)
    found = components(durations, slices, processes)
    again = components(unit * durations[turn], 7 - slices[turn], 100 + 3 * processes[turn])
    for level, part in found.items():
        assert part.deviation == pytest.approx(again[level].deviation, rel=1e-6, abs=1e-9), level
        assert part.of_error == pytest.approx(again[level].of_error, rel=1e-6, abs=1e-9), level


def test_the_length_of_a_slice_follows_from_what_it_costs():
    # 100 ms beside repetitions of 10 ms that scatter half as much as slices do: sqrt(10) / 2.
    assert slice_length(0.01, 0.02, 0.1, 0.01) == pytest.approx(10**0.5 / 2)
    assert slice_length(0.001, 0.02, 0.001, 0.01) == 1
    assert slice_length(0.01, 0.0, 0.1, 0.01) == float("inf")
    # No other length tells more in the same time.
    best = slice_length(0.02, 0.01, 0.2, 0.01)
    cost = [(0.2 + 0.01 * n) * (0.01**2 + 0.02**2 / n) for n in (best / 1.5, best, best * 1.5)]
    assert cost[1] == min(cost)
