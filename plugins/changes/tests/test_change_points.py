"""Changes of level are found where they are, and seldom where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph_changes.change_points import change_points, levels, scatter

ROUNDS = 10
ERROR = 0.004


def series(
    rng: np.random.Generator, truth: np.ndarray, between: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means of rounds with their errors, around a truth that scatters between studies."""
    centres = truth + rng.normal(0, between, len(truth))
    rounds = centres[:, None] + rng.normal(0, ERROR * np.sqrt(ROUNDS), (len(truth), ROUNDS))
    error = rounds.std(axis=1, ddof=1) / np.sqrt(ROUNDS)
    return rounds.mean(axis=1), error, np.full(len(truth), ROUNDS - 1.0)


@pytest.mark.parametrize(
    ("count", "between"), [(2, 0.0), (4, 0.0), (8, 0.0), (25, 0.0), (12, 0.01), (25, 0.01), (60, 0.02)]
)
def test_where_nothing_changes_alarms_are_rare(count: int, between: float) -> None:
    draws = 300
    rng = np.random.default_rng([count, int(1e4 * between)])
    alarms = sum(bool(change_points(*series(rng, np.zeros(count), between))) for _ in range(draws))
    # 5 % of 300 with three standard errors of counting.
    assert alarms <= 15 + 3 * np.sqrt(15)


@given(place=st.integers(3, 17), size=st.floats(0.04, 0.5), up=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_planted_change_is_found(place: int, size: float, up: bool, seed: int) -> None:
    truth = np.where(np.arange(20) < place, 0.0, size if up else -size)
    found = change_points(*series(np.random.default_rng(seed), truth))
    assert place in found
    assert all(abs(one - place) > 0 for one in found if one != place)
    assert len(found) <= 3


def test_several_changes() -> None:
    truth = np.repeat([0.0, -0.05, 0.1, 0.1, -0.2], 8)
    hits = [change_points(*series(np.random.default_rng(seed), truth)) for seed in range(30)]
    assert all({8, 16, 32} <= set(found) for found in hits)
    assert sum(found == [8, 16, 32] for found in hits) >= 25


def test_two_studies_are_enough_where_errors_are_known() -> None:
    logs, errors, freedom = np.array([0.0, 0.1]), np.array([0.003, 0.003]), np.array([9.0, 9.0])
    assert change_points(logs, errors, freedom) == [1]
    assert change_points(logs[:1], errors[:1], freedom[:1]) == []
    assert change_points(logs, np.full(2, np.nan), np.full(2, np.nan)) == []


def test_without_errors_the_scatter_tells() -> None:
    rng = np.random.default_rng(5)
    logs = np.r_[rng.normal(0, 0.01, 12), rng.normal(0.2, 0.01, 12)]
    missing = np.full(24, np.nan)
    assert change_points(logs, missing, missing) == [12]
    assert change_points(logs[:12], missing[:12], missing[:12]) == []


def test_without_any_error_a_difference_is_certain() -> None:
    exact, known = np.zeros(4), np.full(4, np.inf)
    assert change_points(np.array([1.0, 1.0, 2.0, 2.0]), exact, known) == [2]
    assert change_points(np.ones(4), exact, known) == []


def test_scatter_between_studies() -> None:
    rng = np.random.default_rng(6)
    logs, errors, _ = series(rng, np.r_[np.zeros(150), np.full(150, 0.5)], 0.02)
    assert scatter(logs, errors) == pytest.approx(0.02**2, rel=0.35)
    assert scatter(logs[:5], errors[:5]) is None


def test_levels() -> None:
    assert levels([1.0, 3.0, 5.0], [2]).tolist() == [2.0, 2.0, 5.0]
    assert levels([1.0, 3.0], []).tolist() == [2.0, 2.0]
