"""Draw trials: inputs of other values, scales and patterns than the seeded example, on which engines are verified.

Standard normal numbers meet neither saturations nor rare branches, and an error may not show in a single sample. A
trial is one batch of inputs of a *kind*; equal seeds give equal trials in every process, so that the outputs of the
baseline are computed once for all compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.random_inputs import in_order, lengths, role
from mlflow_ngraph.workloads.samples import take_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = str
"""A name of `KINDS`, or `GIVEN`."""
GIVEN = "given"
"""Samples of the user."""
_MOST_OWN = 12
"""Trials that are samples of the user; those that are drawn find what samples do not show."""

_Draw = Callable[[np.random.Generator, tuple[int, ...]], "NDArray[np.float64]"]


def draw(
    inputs: Sequence[TensorSpec],
    batch: int,
    seed: int,
    number: int,
    example: Sequence[NDArray[Any]],
    *,
    given: Sequence[NDArray[Any]] | None = None,
) -> tuple[Kind, list[NDArray[Any]]]:
    """Inputs of one trial, and their kind.

    ``number`` counts from 0, the most telling trials first. Some trials are mutations of ``example``, whose samples are
    the first of those ``given`` by the user. The next given ones come first, unchanged. Later trials have the example's
    integers, because they may be shapes or indices, and also its inputs without a batch and with at most one axis, such
    as scales and thresholds, unless there are no others.
    """
    own = own_batches(inputs, batch, given)
    if given is not None and number < own:
        return GIVEN, [
            take_samples(spec, array, range((number + 1) * batch, (number + 2) * batch))
            for spec, array in zip(inputs, given, strict=True)
        ]
    number -= own
    kind = KINDS[number % len(KINDS)]
    rng = np.random.default_rng([seed, batch, 1 + number])
    settings = [given is not None and _is_setting(spec, array) for spec, array in zip(inputs, example, strict=True)]
    kept = [
        setting and (array.dtype.kind in "iub" or not all(settings))
        for setting, array in zip(settings, example, strict=True)
    ]
    return kind, [
        # What NumPy makes of arrays without axes are numbers, which no runtime takes.
        array if stays else np.asarray(_draw_one(kind, spec, batch, rng, array))
        for stays, spec, array in zip(kept, inputs, example, strict=True)
    ]


def own_batches(inputs: Sequence[TensorSpec], batch: int, given: Sequence[NDArray[Any]] | None) -> int:
    """Number of trials from the user's samples: those that are not in the example, up to a bound."""
    if given is None:
        return 0
    counts = (array.shape[spec.axis] for spec, array in zip(inputs, given, strict=True) if spec.axis is not None)
    return max(0, min(_MOST_OWN, -(-next(counts, 0) // batch) - 1))


def _is_setting(spec: TensorSpec, array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iub" or (BATCH not in spec.shape and array.ndim <= 1)


def is_extreme(kind: Kind) -> bool:
    """True if a kind of inputs is implausible, so that an overflow is no error."""
    return kind in _EXTREME


def _draw_one(
    kind: Kind, spec: TensorSpec, batch: int, rng: np.random.Generator, example: NDArray[Any]
) -> NDArray[Any]:
    if spec.axis:  # what is drawn for each sample is drawn along the first axis
        drawn = _draw_one(kind, spec.samples_first(), batch, rng, np.moveaxis(example, spec.axis, 0))
        return np.ascontiguousarray(np.moveaxis(drawn, 0, spec.axis))
    dtype, shape = np.dtype(spec.dtype), spec.resolve(batch)
    if dtype.kind in "iub":
        low, high = (0, 2) if dtype.kind == "b" else (spec.low, spec.high)
        match role(spec.name, spec.dtype, shape, low, high):
            case "positions":
                return in_order(shape, low, high, rng).astype(dtype)
            case "padding":
                return (1 - _prefixes(kind, shape, rng)).astype(dtype)
        return _integers(kind, low, high, shape, rng, example).astype(dtype)
    if kind == "mutated":
        return _mutated(example, rng)
    values = _FLOATS[kind](rng, shape)
    largest = float(np.finfo(dtype).max)
    return np.clip(values, -largest, largest).astype(dtype)


def _mixed(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Scale every sample of the batch by its own factor, from a hundredth to thirty."""
    scales = 10.0 ** rng.uniform(-2, 1.5, _rows(shape))
    return rng.standard_normal(shape) * (scales if shape else scales[0])


def _sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Zeros with a few spikes: each isolates the effect of one weight."""
    return np.where(rng.random(shape) < 0.02, rng.standard_normal(shape) * 100.0, 0.0)


def _constant(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Fill every sample with one number."""
    return np.array(np.broadcast_to(rng.uniform(-4, 4, _rows(shape)), shape or (1,))).reshape(shape)


def _mutated(example: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Negate, erase, or multiply by a hundred a part of the example."""
    changed = example.copy().reshape(-1)
    if changed.size:
        first = int(rng.integers(changed.size))
        last = first + 1 + int(rng.integers(max(1, changed.size // 4)))
        changed[first:last] *= changed.dtype.type(rng.choice([-1.0, 0.0, 100.0]))
    return np.array(changed.reshape(example.shape))


_FLOATS: dict[Kind, _Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "mixed scales": _mixed,
    "large": lambda rng, shape: rng.standard_normal(shape) * 30.0,
    "uniform": lambda rng, shape: rng.random(shape),
    "sparse": _sparse,
    "shifted": lambda rng, shape: rng.standard_normal(shape) + rng.choice([-8.0, 8.0]),
    "small": lambda rng, shape: rng.standard_normal(shape) * 1e-3,
    "constant": _constant,
    "bytes": lambda rng, shape: rng.integers(0, 256, shape).astype(np.float64),
    "huge": lambda rng, shape: rng.standard_normal(shape) * 1e4,
    "zero": lambda rng, shape: np.zeros(shape),
}
KINDS: tuple[Kind, ...] = (*list(_FLOATS)[:5], "mutated", *list(_FLOATS)[5:])
"""Kinds of trials in order; after the last the first comes again, drawn anew."""
_EXTREME = ("large", "sparse", "mutated", "shifted", "bytes", "huge", "zero", "constant")


def _integers(
    kind: Kind, low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator, example: NDArray[Any]
) -> NDArray[Any]:
    """Integers of the range, in patterns; inputs with two values may be masks, and begin with the upper one."""
    if high - low == len((False, True)):
        return low + _prefixes(kind, shape, rng)
    if kind == "mutated":
        return np.where(rng.random(shape) < _KEPT, example, rng.integers(low, high, shape, dtype=np.int64))
    return _INTEGERS.get(kind, _anywhere)(rng, shape, low, high)


def _anywhere(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    return rng.integers(low, high, shape, dtype=np.int64)


def _few(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    return low + np.minimum(rng.geometric(0.5, shape) - 1, high - low - 1)


def _ends(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    return np.where(rng.random(shape) < 1 / 2, low, high - 1)


def _repeated(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> NDArray[Any]:
    """Fill every sample with one integer."""
    drawn = rng.integers(low, high, _rows(shape), dtype=np.int64)
    return np.array(np.broadcast_to(drawn, shape or (1,))).reshape(shape)


_INTEGERS: dict[Kind, Callable[[np.random.Generator, tuple[int, ...], int, int], NDArray[Any]]] = {
    "zero": lambda _, shape, low, high: np.full(shape, low, dtype=np.int64),
    "large": lambda _, shape, low, high: np.full(shape, high - 1, dtype=np.int64),
    "sparse": _few,
    "small": _few,
    "constant": _repeated,
    "huge": _ends,
}
_KEPT = 0.9
"""Share of the example's integers that a mutation keeps."""


def _rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] if shape else 1, *[1] * (len(shape) - 1))


def _prefixes(kind: Kind, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Masks of different lengths, at least one long, as padding makes them; every other kind has gaps behind the first.

    No tokenizer makes an empty row, and implementations of attention differ on it.
    """
    if not shape or shape[-1] == 1:
        return rng.integers(0, 2, shape, dtype=np.int64)  # a flag, not a mask
    places = np.arange(shape[-1])
    if KINDS.index(kind) % 2 == 0:
        return np.asarray((rng.random(shape) < 1 / 2) | (places == 0), np.int64)
    return np.ones(shape, np.int64) if kind == "huge" else lengths(rng, shape)
