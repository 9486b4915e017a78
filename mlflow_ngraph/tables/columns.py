"""Cast tidy tables to the documented column types, and list their metrics.

Verbs that only read start here, so it imports little.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.expressions import Expression
from mlflow_ngraph.metrics import (
    BASELINE_COLUMN,
    CELL_METRICS,
    EAGER,
    ESTIMATES,
    INTEGER_COLUMNS,
    PROFILE,
    RUN_COLUMNS,
    TABLE,
    TEXT_COLUMNS,
    TIME_COLUMNS,
    Interval,
    Metric,
)

NUMBERS = frozenset((*TIME_COLUMNS, *CELL_METRICS, *ESTIMATES))
"""Columns of floating-point numbers."""
_TYPES: dict[str, Any] = {
    **dict.fromkeys([*TEXT_COLUMNS, *RUN_COLUMNS, PROFILE], "string"),
    **dict.fromkeys(INTEGER_COLUMNS, "Int64"),
    **dict.fromkeys(NUMBERS, "float64"),
}
_KINDS = sorted(set(_TYPES.values()))
_DECLARED = "custom_metrics"


def typed(frame: pd.DataFrame, columns: Collection[str]) -> pd.DataFrame:
    """Select the documented columns with their types."""
    known = [name for name in TABLE if name in columns]
    others = [name for name in frame.columns if name not in known]
    # Missing columns share their values: making each of them would take longest of all.
    missing = {kind: pd.Series(pd.array([None] * len(frame), kind), frame.index) for kind in _KINDS}
    documented = {
        name: frame[name].astype(_TYPES[name]) if name in frame.columns else missing[_TYPES[name]] for name in known
    }
    if BASELINE_COLUMN in documented:  # older versions had no choice, and did not record it
        documented[BASELINE_COLUMN] = documented[BASELINE_COLUMN].replace("", None).fillna(EAGER)
    whole: pd.DataFrame = pd.DataFrame({**documented, **{name: frame[name] for name in others}}, frame.index)
    return whole


def cast(table: pa.Table) -> pa.Table:
    """Cast the documented columns, so that tables of all versions can be joined."""
    types = [_arrow(field) for field in table.schema]
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(field.type.value_type))
    schema = pa.schema([field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)])
    return table.cast(schema.remove_metadata())


def _arrow(field: pa.Field) -> pa.DataType:
    # The documented type comes first: text where numbers belong is refused, not kept.
    if field.name in TEXT_COLUMNS or field.name in RUN_COLUMNS:
        return pa.large_string()
    if field.name in INTEGER_COLUMNS:
        return pa.int64()
    if field.name in NUMBERS or pa.types.is_null(field.type):
        return pa.float64()
    return pa.large_string() if pa.types.is_string(field.type) else field.type


def metrics_of(frame: pd.DataFrame) -> dict[str, Metric]:
    """Every metric of the table by name. The latest of several declarations counts."""
    metrics = {name: metric for name, metric in CELL_METRICS.items() if name in frame.columns}
    if _DECLARED not in frame.columns:
        return metrics
    rows = frame[frame[_DECLARED].fillna("") != ""]
    if "started_at" in rows.columns:
        rows = rows.sort_values("started_at", kind="stable")
    for text in rows[_DECLARED].drop_duplicates(keep="last"):
        declared: dict[str, dict[str, Any]] = json.loads(text)
        for name, said in declared.items():
            if name in frame.columns:
                metrics[name] = _declared(name, said)
    return metrics


def _declared(name: str, said: dict[str, Any]) -> Metric:
    """A metric of a study's own; of a single measured figure it has an interval where that has one."""
    try:
        operands = Expression(said["expression"]).names
    except ValueError:  # written by a later release
        operands = frozenset[str]()
    estimated = [CELL_METRICS[operand].estimated for operand in operands if operand in CELL_METRICS]
    interval: Interval = "own" if estimated == [True] else "none"
    return Metric(name, said["unit"], said["better"], said["expression"], interval)
