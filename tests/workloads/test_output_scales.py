"""Elements that are always smaller than the others of their output."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_ngraph import parity
from mlflow_ngraph.workloads.output_scales import MOST, WIDTH, bands, parts


def boxes_and_scores(rng: np.random.Generator, samples: int = 4) -> np.ndarray:
    return np.concatenate([640 * rng.standard_normal((samples, 4)), rng.random((samples, 10))], 1).astype(np.float32)


def test_scores_beside_boxes_are_a_band_of_their_own() -> None:
    rng = np.random.default_rng(0)
    (band,) = bands([[boxes_and_scores(rng)] for _ in range(4)])
    assert band is not None
    assert band[:4].tolist() == [0] * 4
    assert np.all(band[4:] >= 1)
    output = boxes_and_scores(rng)
    small = parts(output, band)
    assert sum(part.shape[1] for part in small) == 10
    assert np.array_equal(np.sort(np.concatenate(small, 1)), np.sort(output[:, 4:].astype(float)))


def test_what_shows_beside_the_boxes_only_by_itself() -> None:
    rng = np.random.default_rng(1)
    runs = [[boxes_and_scores(rng)] for _ in range(4)]
    (band,) = bands(runs)
    right, wrong = runs[0][0], runs[0][0].copy()
    wrong[:, 4:] *= 1.01
    assert parity.problem(parity.compare([wrong], [right]), "fp32") is None
    relative = max(
        parity.compare([ours], [theirs]).max_rel
        for ours, theirs in zip(parts(wrong, band), parts(right, band), strict=True)
    )
    assert relative == pytest.approx(0.01, rel=1e-3)


def test_elements_that_are_small_by_chance_are_none() -> None:
    rng = np.random.default_rng(2)
    assert bands([[rng.standard_normal((4, 1000))] for _ in range(5)]) == [None]


def test_every_band_is_as_wide_as_the_others_and_nothing_is_left_out() -> None:
    output = np.array([[1.0, 0.9 / WIDTH, 0.9 / WIDTH**2, 0.0]])
    (band,) = bands([[output]])
    assert band is not None
    assert band.tolist() == [0, 1, 2, MOST]
    assert [part.tolist() for part in parts(output, band)] == [[[0.9 / WIDTH]], [[0.9 / WIDTH**2]], [[0.0]]]


@pytest.mark.parametrize(
    "runs",
    [
        [[np.array([[1, 1000]])]],
        [[np.array([[True, False]])]],
        [[np.array([[1.0, 1e-3]])], [np.array([[1.0, 1e-3, 1e-3]])]],
        [[np.array([[1e-3], [1.0]])]],
        [[np.array([[np.nan, 1.0]])]],
        [[np.zeros((2, 3))]],
        [[np.zeros((0, 3))]],
        [[np.zeros((3, 0, 2))]],
        [[np.array(2.0)]],
    ],
    ids=["integers", "truths", "sizes", "samples", "not finite", "zeros", "no samples", "no elements", "number"],
)
def test_what_has_no_bands(runs: list[list[np.ndarray]]) -> None:
    assert bands(runs) == [None]
    assert parts(runs[0][0], None) == []


def test_an_output_of_another_size_has_no_parts() -> None:
    (band,) = bands([[np.array([[1.0, 1e-3]])]])
    assert len(parts(np.array([[2.0, 1e-3]]), band)) == 1
    assert parts(np.array([[2.0, 1e-3, 1.0]]), band) == []


def test_a_sample_that_is_not_finite_tells_nothing_of_the_others() -> None:
    (band,) = bands([[np.array([[1.0, 1e-3], [np.inf, 1.0]])]])
    assert band is not None
    assert band.tolist() == [0, 1]
