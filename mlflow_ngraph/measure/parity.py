"""Whether an engine still computes the model's function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Parity:
    """How far an engine's outputs are from those of the baseline in fp32, on the same random inputs."""

    max_abs: float
    max_rel: float
    """Largest absolute error divided by the largest absolute value of the reference."""
    cosine: float
    """Smallest cosine similarity over the samples of the batch."""
    top1: float
    """Share of the samples whose largest output is at the same place."""
    integers: float = 1.0
    """Share of the elements of integer and boolean outputs that are equal; no rounding excuses others."""


@dataclass(frozen=True)
class Tolerance:
    """What parity an engine needs for its numbers to count."""

    cosine: float
    """Smallest allowed cosine similarity of a sample's outputs."""
    max_rel: float
    """Largest allowed absolute error relative to the largest reference value."""


TOLERANCES = {
    "fp32": Tolerance(cosine=0.99999999, max_rel=1e-4),
    "tf32": Tolerance(cosine=0.99997, max_rel=1e-2),
    "fp16": Tolerance(cosine=0.9999, max_rel=2e-2),
    "bf16": Tolerance(cosine=0.996, max_rel=1e-1),
}
"""By precision. docs/reference/parity.md derives them from what rounding and what missing parts do to real models: each
lets the rounding of its own precision pass, and that of fp32 catches every coarser one."""


def compare(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> Parity:
    """Compare all outputs of a batch with the reference.

    Parameters
    ----------
    outputs, reference: arrays in the order of the model's outputs, batch axis first.

    Raises
    ------
    ValueError: the number of outputs, a shape or an element type differs.
    """
    if len(outputs) != len(reference):
        raise ValueError(f"the engine has {len(outputs)} outputs, the model {len(reference)}")
    worst = Parity(0.0, 0.0, 1.0, 1.0)
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        if ours.shape != theirs.shape:
            raise ValueError(f"output {index} has shape {ours.shape}, the model's has {theirs.shape}")
        if ours.dtype != theirs.dtype:
            raise ValueError(f"output {index} is {ours.dtype}, the model's is {theirs.dtype}")
        compare_one = _compare_exactly if theirs.dtype.kind in "biu" else _compare_rounded
        worst = _worse(worst, compare_one(ours, theirs))
    return worst


def problem(parity: Parity, precision: str) -> str | None:
    """Why ``parity`` is not good enough for ``precision``, or None."""
    tolerance = TOLERANCES[precision]
    # Written so that NaN fails every comparison.
    if parity.integers != 1.0:
        return f"{100 * (1 - parity.integers):.3g} % of the integer outputs differ"
    if not parity.cosine >= tolerance.cosine:
        return f"cosine similarity {parity.cosine:.10f} is below {tolerance.cosine} for {precision}"
    if not parity.max_rel <= tolerance.max_rel:
        return f"relative error {parity.max_rel:.1e} is above {tolerance.max_rel:.1e} for {precision}"
    return None


def _compare_exactly(ours: NDArray[Any], theirs: NDArray[Any]) -> Parity:
    """Integers and truth values: a label, an index or a mask is the same or it is wrong."""
    equal = ours == theirs
    if equal.all():
        return Parity(0.0, 0.0, 1.0, 1.0)
    error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return Parity(float(error), float("inf"), 1.0, 1.0, float(equal.mean()))


def _compare_rounded(ours: NDArray[Any], theirs: NDArray[Any]) -> Parity:
    ours, theirs = _rows(ours), _rows(theirs)
    # An infinity that the model means, such as a masked score, is no error where both have it; all others are.
    meant = np.isinf(theirs) & (ours == theirs)
    ours, theirs = np.where(meant, 0.0, ours), np.where(meant, 0.0, theirs)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return Parity(float("nan"), float("nan"), float("nan"), 0.0)
    error = np.abs(ours - theirs).max(initial=0.0)
    scale = np.abs(theirs).max(initial=0.0)
    relative = 0.0 if error == 0 else float(error / scale) if scale > 0 else float("inf")
    top1 = (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()
    return Parity(float(error), relative, float(_cosines(ours, theirs).min()), float(top1))


def _cosines(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine similarity of each row. A single number has a sign and no direction: its error alone judges it."""
    if ours.shape[1] == 1:
        return np.ones(len(ours))
    lengths = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    product = lengths[0] * lengths[1]
    both_zero = (lengths[0] == 0) & (lengths[1] == 0)
    return np.where(both_zero, 1.0, (ours * theirs).sum(axis=1) / np.where(product == 0, np.inf, product))


def _rows(array: NDArray[Any]) -> NDArray[np.float64]:
    """A matrix with one row a sample; a scalar is one sample."""
    wide = np.asarray(array, dtype=np.float64)
    return wide.reshape(wide.shape[0], -1) if wide.ndim > 1 else wide.reshape(max(wide.size, 1), -1)


def _worse(one: Parity, other: Parity) -> Parity:
    """The worse figure of each kind; NaN is worst."""
    return Parity(
        float(np.maximum(one.max_abs, other.max_abs)),
        float(np.maximum(one.max_rel, other.max_rel)),
        float(np.minimum(one.cosine, other.cosine)),
        float(np.minimum(one.top1, other.top1)),
        float(np.minimum(one.integers, other.integers)),
    )
