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


@dataclass(frozen=True)
class Tolerance:
    """What parity an engine needs for its numbers to count."""

    cosine: float
    """Smallest allowed cosine similarity of a sample's outputs."""
    max_rel: float
    """Largest allowed absolute error relative to the largest reference value."""


TOLERANCES = {
    "fp32": Tolerance(cosine=0.9999, max_rel=1e-3),
    "tf32": Tolerance(cosine=0.9995, max_rel=1e-2),
    "fp16": Tolerance(cosine=0.999, max_rel=5e-2),
    "bf16": Tolerance(cosine=0.99, max_rel=1e-1),
}
"""By precision. fp32 engines differ from eager by rounding alone (about 1e-6); a dropped residual branch costs
far more than any of these."""


def compare(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> Parity:
    """Compare all outputs of a batch with the reference.

    Parameters
    ----------
    outputs, reference: arrays in the order of the model's outputs, batch axis first. Integer outputs are compared
        by value as well.

    Raises
    ------
    ValueError: the number of outputs or a shape differs.
    """
    if len(outputs) != len(reference):
        raise ValueError(f"the engine has {len(outputs)} outputs, the model {len(reference)}")
    worst = Parity(0.0, 0.0, 1.0, 1.0)
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        if ours.shape != theirs.shape:
            raise ValueError(f"output {index} has shape {ours.shape}, the model's has {theirs.shape}")
        worst = _worse(worst, _compare_one(_rows(ours), _rows(theirs)))
    return worst


def problem(parity: Parity, precision: str) -> str | None:
    """Why ``parity`` is not good enough for ``precision``, or None."""
    tolerance = TOLERANCES[precision]
    # Written so that NaN fails every comparison.
    if not parity.cosine >= tolerance.cosine:
        return f"cosine similarity {parity.cosine:.6f} is below {tolerance.cosine} for {precision}"
    if not parity.max_rel <= tolerance.max_rel:
        return f"relative error {parity.max_rel:.2e} is above {tolerance.max_rel:.0e} for {precision}"
    return None


def _rows(array: NDArray[Any]) -> NDArray[np.float64]:
    """A matrix with one row a sample; a scalar is one sample."""
    wide = np.asarray(array, dtype=np.float64)
    return wide.reshape(wide.shape[0], -1) if wide.ndim > 1 else wide.reshape(max(wide.size, 1), -1)


def _compare_one(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Parity:
    if not np.isfinite(ours).all():
        return Parity(float("nan"), float("nan"), float("nan"), 0.0)
    error = np.abs(ours - theirs).max()
    scale = np.abs(theirs).max()
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    both_zero = (np.linalg.norm(ours, axis=1) == 0) & (np.linalg.norm(theirs, axis=1) == 0)
    cosine = np.where(both_zero, 1.0, (ours * theirs).sum(axis=1) / np.where(norms == 0, np.inf, norms))
    relative = 0.0 if error == 0 else float(error / scale) if scale > 0 else float("inf")
    top1 = (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()
    return Parity(float(error), relative, float(cosine.min()), float(top1))


def _worse(one: Parity, other: Parity) -> Parity:
    """The worse figure of each kind; NaN is worst."""
    return Parity(
        float(np.maximum(one.max_abs, other.max_abs)),
        float(np.maximum(one.max_rel, other.max_rel)),
        float(np.minimum(one.cosine, other.cosine)),
        float(np.minimum(one.top1, other.top1)),
    )
