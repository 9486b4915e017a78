"""Figures that claims are judged by, of the paper's tables and of measurements alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlflow_ngraph.estimates import Array, Estimate, exactly, geometric_mean, quantile

_CELL = ("device", "machine", "compiler", "label", "batches", "block", "width", "depth")


def linear(value: Array) -> Array:
    """Scale of figures that may be negative, such as slopes."""
    return value


def certain(value: float) -> Estimate:
    """A number without error, on a linear scale."""
    return Estimate(np.array(value), np.array(0.0), np.array(np.inf))


@dataclass(frozen=True)
class Figure:
    """A number with its error, and the cell that it belongs to."""

    quantity: str
    part: Estimate
    """One figure, on a scale where its error is symmetric."""
    device: str = ""
    """In the words of the paper: ``xeon``, ``gpu`` or ``orin``."""
    machine: str = ""
    """The machine that it was measured on; empty for the paper's."""
    compiler: str = ""
    label: str = ""
    family: str = ""
    batches: tuple[int, ...] = ()
    """Several where the paper gives their mean."""
    block: str = ""
    """``conv`` or ``mha``; empty for models."""
    width: int = 0
    depth: int = 0
    study: str = ""
    """The study that measured it."""
    scale: Callable[[Array], Array] = np.exp
    """From the scale of the error to that of the figure."""

    @property
    def value(self) -> float:
        return float(self.scale(self.part.log))

    def ends(self, level: float) -> tuple[float, float]:
        """Ends of the interval at a confidence level; NaN without an error."""
        reach = quantile(self.part.freedom, level) * self.part.error
        with np.errstate(over="ignore"):
            return float(self.scale(self.part.log - reach)), float(self.scale(self.part.log + reach))

    def key(self, *but: str) -> tuple[Any, ...]:
        """Fields that identify the cell, without some."""
        return tuple(getattr(self, name) for name in _CELL if name not in but)

    def over(self, other: Figure, **changes: Any) -> Figure:
        """Ratio to another figure, or difference on a linear scale."""
        return replace(self, part=self.part.over(other.part), **changes)

    def inverse(self) -> Figure:
        """One divided by the figure."""
        return replace(self, part=exactly(1.0).over(self.part))

    def where(self) -> str:
        """Name the cell."""
        parts = [self.machine or self.device, self.compiler, self.label]
        parts += [f"{self.block} of width {self.width}"] * bool(self.block) + [f"depth {self.depth}"] * bool(self.depth)
        parts += [f"batch {' and '.join(map(str, self.batches))}"] * bool(self.batches)
        return ", ".join(filter(None, parts))


def select(
    figures: Iterable[Figure],
    quantity: str,
    *,
    batch: Any = (),
    over: Mapping[str, Any] | None = None,
    mean: bool = False,
    **wanted: Any,
) -> list[Figure]:
    """Select figures by their fields: a value, or any of several. Without ``block``, those of models."""
    wanted = {"block": "", **wanted}
    found = [
        figure
        for figure in figures
        if figure.quantity == quantity
        and (not batch or set(_several(batch)) & set(figure.batches))
        and all(getattr(figure, name) in _several(values) for name, values in wanted.items())
    ]
    if over is not None:
        base = {one.key(*over): one for one in select(figures, quantity, batch=batch, **{**wanted, **over})}
        found = [one.over(base[one.key(*over)]) for one in found if one.key(*over) in base]
    return [average(found, "mean")] if mean and found else found


def average(figures: Sequence[Figure], label: str) -> Figure:
    """Geometric mean of at least one figure."""
    columns = zip(*((one.part.log, one.part.error, one.part.freedom) for one in figures), strict=True)
    whole = geometric_mean(Estimate(*(np.array(column, float) for column in columns)))
    same = {name: getattr(figures[0], name) for name in _CELL if len({getattr(one, name) for one in figures}) == 1}
    return replace(Figure(figures[0].quantity, whole, **same), label=label)


def _several(values: Any) -> tuple[Any, ...] | list[Any]:
    return values if isinstance(values, (tuple, list)) else (values,)
