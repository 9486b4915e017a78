"""The columns of the tidy table with their types, whatever wrote them. Light: verbs that only read begin with it."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.metrics import (
    CELL_METRICS,
    ESTIMATES,
    INTEGER_COLUMNS,
    RUN_COLUMNS,
    TABLE,
    TEXT_COLUMNS,
    TIME_COLUMNS,
)

NUMBERS = frozenset((*TIME_COLUMNS, *CELL_METRICS, *ESTIMATES))
"""Columns of floating-point numbers."""


def typed(frame: pd.DataFrame, columns: Collection[str]) -> pd.DataFrame:
    """The documented columns that are asked for, in their order and with their types, whatever the rows had."""
    known = [name for name in TABLE if name in columns]
    others = [name for name in frame.columns if name not in known]
    frame = frame.reindex(columns=[*known, *others])
    types: dict[str, str] = dict.fromkeys([*TEXT_COLUMNS, *RUN_COLUMNS], "string")
    types.update(dict.fromkeys(INTEGER_COLUMNS, "Int64"))
    types.update(dict.fromkeys(NUMBERS, "float64"))
    whole: pd.DataFrame = frame.astype({name: types[name] for name in known})
    return whole


def cast(table: pa.Table) -> pa.Table:
    """A table with the types of the documented columns, so that tables of many versions fit together."""
    types = [_arrow(field) for field in table.schema]
    schema = pa.schema([field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)])
    return table.cast(schema.remove_metadata())


def _arrow(field: pa.Field) -> pa.DataType:
    if field.name in TEXT_COLUMNS or field.name in RUN_COLUMNS or pa.types.is_string(field.type):
        return pa.large_string()
    if field.name in INTEGER_COLUMNS:
        return pa.int64()
    if field.name in NUMBERS or pa.types.is_null(field.type):
        return pa.float64()
    return field.type
