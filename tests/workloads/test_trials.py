"""Inputs on which engines have to prove themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.trials import KINDS, draw

SPECS = (
    TensorSpec("numbers", "float32", (BATCH, 3)),
    TensorSpec("half", "float16", (BATCH,)),
    TensorSpec("tokens", "int32", (BATCH, 5), 2, 90),
    TensorSpec("mask", "bool", (BATCH, 5)),
    TensorSpec("scale", "float32", ()),
    TensorSpec("count", "int64", (), 1, 7),
    TensorSpec("switch", "bool", ()),
    TensorSpec("nothing", "float32", (0, 2)),
)


@pytest.mark.parametrize("number", range(2 * len(KINDS)))
def test_every_trial_has_arrays_of_the_types_and_shapes_of_the_inputs_and_integers_within_their_range(
    number: int,
) -> None:
    rng = np.random.default_rng(number)
    example = [spec.random(4, rng) for spec in SPECS]
    kind, drawn = draw(SPECS, 4, 0, number, example)
    assert kind == KINDS[number % len(KINDS)]
    for spec, array in zip(SPECS, drawn, strict=True):
        assert isinstance(array, np.ndarray), spec.name  # no runtime takes NumPy's numbers
        assert (array.dtype, array.shape) == (np.dtype(spec.dtype), spec.resolve(4))
        if array.dtype.kind == "i":
            assert spec.low <= array.min() <= array.max() < spec.high
        assert np.isfinite(array).all()
    again = draw(SPECS, 4, 0, number, example)[1]
    assert all(np.array_equal(one, other) for one, other in zip(drawn, again, strict=True))


@pytest.mark.parametrize("number", range(2 * len(KINDS)))
def test_no_row_of_a_mask_is_empty(number: int) -> None:
    mask = TensorSpec("mask", "int64", (BATCH, 7))
    _, (drawn,) = draw([mask], 16, 0, number, [np.ones((16, 7), np.int64)])
    assert drawn[:, 0].all()


def test_what_a_user_gave_as_a_setting_stays_unless_there_is_nothing_else() -> None:
    image, scales = TensorSpec("image", "float32", (1, 1, 4, 4)), TensorSpec("scales", "float32", (4,))
    sizes, row = TensorSpec("sizes", "int64", (2,)), TensorSpec("row", "float32", (BATCH,))
    given = [
        np.ones((1, 1, 4, 4), np.float32),
        np.array([1, 1, 2, 2], np.float32),
        np.array([8, 8]),
        np.ones(4, np.float32),
    ]
    for number in range(len(KINDS)):
        drawn = draw([image, scales, sizes, row], 4, 0, number, given, given=given)[1]
        assert drawn[1] is given[1]
        assert drawn[2] is given[2]
        assert not np.array_equal(drawn[0], given[0])
        assert not np.array_equal(drawn[3], given[3])
        alone = draw([scales, sizes], 4, 0, number, given[1:3], given=given[1:3])[1]
        assert not np.array_equal(alone[0], given[1])
        assert alone[1] is given[2]
        seeded = draw([image, scales], 4, 0, number, given[:2])[1]
        assert seeded[1] is not given[1]


@pytest.mark.parametrize(("dtype", "shape"), [("bool", (1,)), ("bool", (BATCH, 1)), ("int64", (BATCH, 1))])
def test_a_flag_is_true_and_false(dtype: str, shape: tuple[Any, ...]) -> None:
    spec = TensorSpec("flag", dtype, shape, low=0, high=2)
    example = np.ones(spec.resolve(1), dtype)
    drawn = {bool(draw([spec], 1, 0, number, [example])[1][0].any()) for number in range(24)}
    assert drawn == {True, False}
