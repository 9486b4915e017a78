"""Costs of choosing another engine than the best, in everyday words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlflow_ngraph.text import decimals, rounded

_TWICE = 2.0
"""Factors below this one are shown in percent."""
_SPEEDS = ("throughput", "speedup", "latency")
"""Prefixes of metrics whose better figures are faster."""


def said(row: Any, told: Mapping[Any, Any]) -> tuple[str, str]:
    """``12 % slower`` or ``18.7 times slower``, and its interval; the latter empty where there is none.

    ``row`` is one of a recommendation, with ``loss`` and its interval; ``told`` are the facts about all of it.
    """
    # Performance of a fleet is relative to the best one, of which more is better.
    lower = told["better"] == "lower" and not told["fleet"]
    times = _factor(row["loss"], lower=lower) >= _TWICE
    worse, better = _words(told)
    unit = "times" if times else "%"

    def figure(loss: float) -> str:
        return rounded(_factor(loss, lower=lower), 3) if times else decimals(100 * loss, 1)

    text = f"{figure(abs(row['loss']))} {unit} {worse if row['loss'] >= 0 else better}"
    low, high = row["loss_ci_low"], row["loss_ci_high"]
    if any(math.isnan(end) for end in (low, high)):
        return text, ""
    return text, f"{figure(low)} to {figure(high)} {unit}"


def _factor(loss: float, *, lower: bool) -> float:
    """Ratio of the best to the other."""
    if lower:
        return 1 + loss
    return 1 / (1 - loss) if loss < 1 else math.inf


def _words(told: Mapping[Any, Any]) -> tuple[str, str]:
    """Words for worse and better."""
    if told["fleet"]:
        return "worse", "better"
    if str(told["metric"]).startswith(_SPEEDS):
        return "slower", "faster"
    return ("more", "less") if told["better"] == "lower" else ("less", "more")
