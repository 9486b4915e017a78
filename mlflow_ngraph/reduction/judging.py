"""Whether an output is wrong: further from the truth than rounding explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.parity import UNIT_ROUNDOFF

_ROUNDINGS = 16.0
"""How many times the model's own error a correct engine may be off. One run without disturbances is one sample of rounding: it
has to be more than `mlflow_ngraph.parity.ROUNDINGS`."""
_FINEST = 1e-6
"""A share of the largest element that is never held against an engine in fp32."""


@dataclass(frozen=True)
class Wrong:
    """How an output is wrong."""

    error: float
    """Largest absolute error of its elements; of integers the share that differs. NaN where it has no such number."""
    allowed: float
    """What rounding explains of it."""
    what: str
    """In words, such as ``off by 0.31 where rounding explains 4e-07``."""


def judge(
    engine: NDArray[Any], exact: NDArray[Any], rounded: NDArray[Any] | None, precision: str = "fp32"
) -> Wrong | None:
    """How an engine's output is wrong; None where rounding may explain all that is between it and the truth.

    Parameters
    ----------
    exact : NDArray[Any]
        The output computed in float64.
    rounded : NDArray[Any] | None
        The output computed in the model's own element types without any optimisation; None where nothing computes it.
    precision : str
        What the engine computes in.
    """
    if engine.shape != exact.shape:
        return Wrong(float("nan"), 0.0, f"of shape {engine.shape} where {exact.shape} is right")
    if not exact.size:
        return None
    if exact.dtype.kind in "biu":
        return _of_integers(engine, exact, rounded)
    return _of_numbers(engine, exact, rounded, precision)


def _of_integers(engine: NDArray[Any], exact: NDArray[Any], rounded: NDArray[Any] | None) -> Wrong | None:
    """No rounding excuses an integer, unless it decides also without an engine what the integer is."""
    decided = np.ones(exact.shape, bool) if rounded is None else rounded == exact
    share = float((decided & (engine != exact)).mean())
    return Wrong(share, 0.0, f"{100 * share:.3g} % of its integers differ") if share else None


def _of_numbers(
    engine: NDArray[Any], exact: NDArray[Any], rounded: NDArray[Any] | None, precision: str
) -> Wrong | None:
    wide = np.asarray(engine, exact.dtype)
    own = exact if rounded is None else np.asarray(rounded, exact.dtype)
    # Where the model itself has no number in its own element type, as after an overflow, none can be asked of an engine.
    told = np.isfinite(exact) & np.isfinite(own)
    if not told.any():
        return None
    lost = told & ~np.isfinite(wide)
    largest = float(np.abs(exact[told]).max())
    finest = _FINEST if precision == "fp32" else _ROUNDINGS * UNIT_ROUNDOFF[precision]
    if engine.dtype == np.float16:
        finest = max(finest, _ROUNDINGS * UNIT_ROUNDOFF["fp16"])
    allowed = max(_ROUNDINGS * float(np.abs(own - exact)[told].max()), finest * largest)
    if lost.any():
        return Wrong(float("nan"), allowed, f"{lost.sum()} of its {lost.size} elements are no finite numbers")
    error = float(np.abs(wide - exact)[told].max())
    if error <= allowed:
        return None
    return Wrong(error, allowed, f"off by {error:.2g} where rounding explains {allowed:.2g}")
