"""Parsers of option values: lists, numbers, quantities with units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mlflow_ngraph.errors import StudyError, UsageError

SECONDS = {"": 86400.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""Seconds of the units of an age; days without one."""
BYTES = {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}


class FiniteRange(click.FloatRange):
    """A range without NaN, which no bound excludes, and without infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a finite number, found {value}", param, ctx)
        return number


def items(text: Sequence[str] | str | None) -> list[str]:
    """The parts between commas, of one text or of several."""
    texts = [text] if isinstance(text, str) else list(text or ())
    return [part.strip() for whole in texts for part in whole.split(",") if part.strip()]


def whole(key: str, text: str) -> int:
    """The whole number that ``text`` is, else raise `StudyError` with ``key``."""
    try:
        return int(text)
    except ValueError:
        raise StudyError(f"command line: {key}: expected a whole number, found {text[:40]!r}") from None


def quantity(option: str, text: str, units: Mapping[str, float]) -> float:
    """A number with a unit, such as ``30d`` or ``20GB``, else raise `UsageError` with the ``option``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in units:
        allowed = ", ".join(unit if unit in ("h", "d", "w") else unit.upper() for unit in units if unit)
        raise UsageError(f"{option}: expected a number with one of the units {allowed}, found {text!r}")
    return float(match[1]) * units[match[2]]
