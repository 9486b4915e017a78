"""CustomMetric: declares and validates a metric of a study (formula, constants); `execute.formulas` computes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlflow_ngraph.expressions import FUNCTIONS, Expression
from mlflow_ngraph.metrics import CELL_METRICS, MODEL_COLUMNS, TABLE, Better, is_uncertainty
from mlflow_ngraph.text import shortened

FACTS = ("batch", "threads", *MODEL_COLUMNS)
"""Names in formulas besides metrics and constants: known about a cell without measuring it."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class CustomMetric(BaseModel):
    """A declared metric, computed from measured ones. In YAML either the formula or a mapping."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    expression: str
    """A formula: metrics of a cell, ``batch``, ``threads``, ``parameters``, ``paper_macs``, ``true_macs``, constants,
    numbers, ``+ - * / **``, parentheses, and the functions ``sqrt``, ``exp``, ``log``, ``log2``, ``log10``, ``abs``,
    ``min``, ``max``."""
    unit: str = "1"
    """Unit for display."""
    better: Better = "higher"
    """The better direction: ``higher``, ``lower`` or ``neither``."""
    constants: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    """Numbers by name; one for all workloads, or one for each of them by its name in the study."""

    @model_validator(mode="after")
    def _names_are_known(self) -> CustomMetric:
        known = {*CELL_METRICS, *FACTS}
        for name in self.constants:
            if name in known or name in FUNCTIONS or not _NAME.fullmatch(name):
                raise ValueError(
                    f"constant {shortened(name)}: choose a name of small letters, digits and _ that is not taken"
                )
        Expression(self.expression).check({*known, *self.constants})
        return self

    def constants_for(self, names: Sequence[str]) -> dict[str, float]:
        """Constants of a workload with these names, without those that it has no number for."""
        numbers = {}
        for name, value in self.constants.items():
            number = _of_workload(value, names) if isinstance(value, dict) else value
            if number is not None:
                numbers[name] = number
        return numbers


def check(metrics: Mapping[str, CustomMetric], workloads: Sequence[Sequence[str]]) -> None:
    """Refuse names that are taken, and constants that lack a number for one of the ``workloads``, given by their names.

    Raises `ValueError` with the metric or constant.
    """
    for name, metric in metrics.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"metric {shortened(name)}: a name has small letters, digits and _")
        if name in TABLE or name in FUNCTIONS or is_uncertainty(name):
            raise ValueError(f"metric {shortened(name)}: this name is taken, choose another one")
        for constant, numbers in metric.constants.items():
            missing = [names[0] for names in workloads if isinstance(numbers, dict) and not {*names} & {*numbers}]
            if missing and isinstance(numbers, dict):
                close = get_close_matches(missing[0], numbers, n=1)
                hint = f"; {close[0]!r} is no workload of the study as it is written there" if close else ""
                raise ValueError(f"metric {name!r}: constant {constant!r} has no number for {missing[0]!r}{hint}")


def _of_workload(numbers: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((numbers[name] for name in names if name in numbers), None)
