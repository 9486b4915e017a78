"""Metrics that a study file declares: their names, formulas and constants, checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mlflow_ngraph.expressions import FUNCTIONS, Expression
from mlflow_ngraph.metrics import CELL_METRICS, MODEL_COLUMNS, TABLE, Better, is_uncertainty
from mlflow_ngraph.text import shortened

FACTS = ("batch", "threads", *MODEL_COLUMNS)
"""What a formula may name besides metrics and constants: known of a cell without measuring it."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class CustomMetric(BaseModel):
    """A metric of the study's own, computed from those that are measured. In YAML either the formula or a mapping."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    expression: str
    """A formula: metrics of a cell, ``batch``, ``threads``, ``parameters``, ``paper_macs``, ``true_macs``, constants,
    numbers, ``+ - * / **``, parentheses, and the functions ``sqrt``, ``exp``, ``log``, ``log2``, ``log10``, ``abs``,
    ``min``, ``max``."""
    unit: str = "1"
    """For people."""
    better: Better = "higher"
    """Whether ``higher`` or ``lower`` is better, or ``neither``."""
    constants: dict[str, float | dict[str, float]] = Field(default_factory=dict)
    """Numbers by name; one for all workloads, or one for each of them, by the workload as the study has it."""

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
        """The constants of a workload; one that it has no number for is left out.

        Parameters
        ----------
        names : Sequence[str]
            What the workload is called.
        """
        numbers = {}
        for name, value in self.constants.items():
            number = _of_workload(value, names) if isinstance(value, dict) else value
            if number is not None:
                numbers[name] = number
        return numbers


def check(metrics: Mapping[str, CustomMetric], workloads: Sequence[Sequence[str]]) -> None:
    """Complain about a name that is taken, and about a constant that a workload has no number for.

    Parameters
    ----------
    workloads : Sequence[Sequence[str]]
        What each workload is called.

    Raises
    ------
    ValueError
        Says which.
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
