"""Parse and validate results tables from servers: refuse impossible ones, and remove control characters.

Anyone who may write to an experiment may have put anything there. An impossible table is refused as a whole, with its
first error, and does not affect other tables.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from mlflow_ngraph.analysis.listing import ListedRun
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.estimates import Array
from mlflow_ngraph.metrics import (
    BEATEN_BY,
    FREEDOM,
    HIGH,
    LOG_ERROR,
    LOW,
    METRICS,
    MODEL_COLUMNS,
    ROUNDS,
    TEXT_COLUMNS,
    TIME_COLUMNS,
    Better,
)
from mlflow_ngraph.tables import results_file
from mlflow_ngraph.tables.columns import cast
from mlflow_ngraph.text import CONTROLS, REPLACEMENT
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.schema import Artifact, Tag
from mlflow_ngraph.verdicts import Verdict

_NAMED = (
    "study_id", "study", "cell", "lane", "workload", "label", "compiler", "compiler_label", "device", "precision", "mode",
    "verdict",
)  # fmt: skip
"""Text columns without missing values."""
_NEEDED = (*_NAMED, "batch", *TIME_COLUMNS)
_IDS = ("study_id", "cell", "lane", "run_id", "lane_run_id", "model_id", "engine", "engine_reused", BEATEN_BY)
_NEVER_NEGATIVE = frozenset(name for name, metric in METRICS.items() if metric.unit in ("samples/s", "ms", "s", "MB"))
_POSITIVE = {name for name in METRICS if name.startswith(("throughput", "latency", "speedup")) and "_std" not in name}
_POSITIVE |= {"rtr", "ase", "bsr"}
"""Metrics whose logarithms are compared."""
_ROUNDING = 1e-9
_LARGEST_ERROR, _LEAST_FREEDOM = 1e6, 1e-6
"""Bounds that no measurement reaches, and that keep results finite."""
_MAY_BE_INFINITE = re.compile(rf"parity_\w+|\w+{FREEDOM}")
_JSON = ("flags", "custom_metrics", ROUNDS)
_LONGEST, _LONGEST_JSON = 20_000, 1_000_000
"""Largest lengths of texts in characters."""
_MOST_ROWS, _MOST_COLUMNS, _MOST_VALUES, _MOST_BYTES = 1_000_000, 5_000, 20_000_000, 256 << 20
_MOST_BATCH = 10**9
_CLOCKS_DIFFER_S = 600.0
"""Tolerated lead of another machine's clock."""
PASSING_S, _LASTING_S = 60.0, 30 * 86_400.0
"""Seconds for which a refusal is remembered: one whose reason may pass, and any other."""
_TO_COME = ", which is yet to come"
_METRIC_NAME = re.compile(r"[\w.]{1,200}")


class BadTableError(TrackingError):
    """Invalid results table; the message names the run. The refusal is worth remembering for ``holds_s`` seconds."""

    def __init__(
        self,
        run: ListedRun,
        why: str,
        remedy: str = "sync the study again, or delete the run",
        *,
        holds_s: float = _LASTING_S,
    ) -> None:
        self.why, self.remedy, self.holds_s = why, remedy, holds_s
        who = f"run {run.run_id} of experiment {run.experiment!r}"
        super().__init__(f"{who}: {Artifact.RESULTS} {why}; its rows are left out: {remedy}")


class _ForeignError(Exception):
    """Table of a newer version; the message says which version reads it."""


def parsed(content: bytes, run: ListedRun) -> pa.Table:
    """Parse and validate the table of a run. Control characters are removed from texts.

    Raises `BadTableError` if it is not the file that the run's tags speak of, cannot be read, or holds what cannot be.
    """
    try:
        table = _read(content)
        wrong = next(_wrong(table, run), "")
    except _ForeignError as error:
        raise BadTableError(run, str(error), "read it with that one") from None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError, pa.ArrowException) as error:
        why = " ".join(CONTROLS.sub(REPLACEMENT, str(error)).split())[:200]
        raise BadTableError(run, f"is not readable ({type(error).__name__}: {why})") from error
    if wrong:
        raise BadTableError(run, wrong, holds_s=PASSING_S if wrong.endswith(_TO_COME) else _LASTING_S)
    return table


def _read(content: bytes) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(content))
    if other := results_file.foreign(file.schema_arrow.metadata):
        raise _ForeignError(other)
    metadata = file.metadata
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    rows, columns = metadata.num_rows, metadata.num_columns
    if rows > _MOST_ROWS or columns > _MOST_COLUMNS or rows * columns > _MOST_VALUES or size > _MOST_BYTES:
        raise ValueError(f"{rows} rows, {columns} columns and {size} bytes are too many")
    # A file may hold one text for a million rows. It is decoded only after its full size is known.
    texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    table = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts).read(use_threads=False)
    table.validate(full=True)  # refuses invalid texts and offsets, which nothing checks later
    if (size := sum(_text_bytes(column) for column in table.columns)) > _MOST_BYTES:
        raise ValueError(f"its texts unfold to {size} bytes")
    if len(set(table.column_names)) != table.num_columns:
        raise ValueError("two columns have one name")
    table = cast(table)
    for place, field in enumerate(table.schema):
        if pa.types.is_large_string(field.type):
            harmless = pc.replace_substring_regex(table.column(place), CONTROLS.pattern, REPLACEMENT)
            table = table.set_column(place, field.name, harmless)
    return table


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of a column's texts if each row had its own; 0 if it has."""
    if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
        return 0
    return sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0 for chunk in column.chunks
    )


def _wrong(table: pa.Table, run: ListedRun) -> Iterator[str]:
    names = set(table.column_names)
    if missing := [name for name in _NEEDED if name not in names]:
        yield f"has no column {missing[0]}"
    elif table.num_rows:
        yield from _wrong_texts(table, names, run.tags.get(Tag.STUDY_ID, ""))
        if "cell" in names and pc.count_distinct(table["cell"]).as_py() < table.num_rows:
            yield "has two rows of one cell"
        yield from _wrong_numbers(table, names)
        yield from _wrong_intervals(table, names)
        yield from _wrong_json(table, names)


def _wrong_texts(table: pa.Table, names: set[str], study: str) -> Iterator[str]:
    for name in _NEEDED:
        if table[name].null_count:
            yield f"has rows without {name}"
    for name in sorted(names & set(_IDS)):
        for text in filter(None, pc.unique(table[name]).to_pylist()):
            if not schema.ID.fullmatch(text):
                yield f"has {text[:40]!r} in column {name}, which is no id"
    if pc.unique(table["study_id"]).to_pylist() != [study]:
        yield f"is not of study {study!r}, which the run is of"
    for name in sorted(names & set(TEXT_COLUMNS)):
        longest = pc.max(pc.utf8_length(table[name])).as_py() or 0
        if longest > (_LONGEST_JSON if name in _JSON else _LONGEST):
            yield f"has a text of {longest} characters in column {name}"
    if unknown := set(pc.unique(table["verdict"]).to_pylist()) - {str(verdict) for verdict in Verdict}:
        yield f"has the verdict {unknown.pop()!r}"


def _wrong_numbers(table: pa.Table, names: set[str]) -> Iterator[str]:
    latest = time.time() + _CLOCKS_DIFFER_S
    for name, low, high in (
        ("batch", 1, _MOST_BATCH),
        ("threads", 0, 10**6),
        *((name, 0, 10**18) for name in MODEL_COLUMNS),
        *((name, 0.0, latest) for name in TIME_COLUMNS),
    ):
        if name in names and (extremes := pc.min_max(table[name]).as_py())["min"] is not None:
            least, most = extremes["min"], extremes["max"]
            if not (low <= least and most <= high):
                yield f"has {least} to {most} in column {name}" + (_TO_COME if high == latest else "")
    for field in table.schema:
        if not pa.types.is_floating(field.type) or field.name in TIME_COLUMNS:
            continue
        column = table[field.name]
        if not _MAY_BE_INFINITE.fullmatch(field.name) and pc.any(pc.is_inf(column)).as_py():
            yield f"has an infinite number in column {field.name}"
        extremes = pc.min_max(column.filter(pc.invert(pc.is_nan(column)))).as_py()
        if extremes["min"] is not None:
            yield from _wrong_extremes(field.name, extremes["min"], extremes["max"])


def _wrong_extremes(name: str, least: float, most: float) -> Iterator[str]:
    figure = name.removesuffix(LOW).removesuffix(HIGH)
    if (least < 0 and figure in _NEVER_NEGATIVE) or (least <= 0 and name in _POSITIVE):
        yield f"has {least} in column {name}"
    if name.endswith(LOG_ERROR) and not 0 <= least <= most <= _LARGEST_ERROR:
        yield f"has {least} to {most} in column {name}"
    if name.endswith(FREEDOM) and least < _LEAST_FREEDOM:
        yield f"has {least} in column {name}"


def _wrong_intervals(table: pa.Table, names: set[str]) -> Iterator[str]:
    ends = [
        field.name for field in table.schema if pa.types.is_floating(field.type) and field.name.endswith((LOW, HIGH))
    ]
    for metric in dict.fromkeys(name.removesuffix(LOW).removesuffix(HIGH) for name in ends):
        low, high = metric + LOW, metric + HIGH
        if low not in names or high not in names:
            there, lacking = (low, high) if low in names else (high, low)
            yield f"has column {there} and no {lacking}"
        elif not _unknown(table[low]).equals(_unknown(table[high])):
            yield f"has rows with {low} and without {high}, or the other way round"
        elif metric not in names:
            yield f"has column {low} and no {metric}"
        elif _outside(*(table[name].to_numpy() for name in (low, metric, high))):
            yield f"has an interval of {metric} that does not contain it"


def _outside(low: Array, value: Array, high: Array) -> bool:
    """True if a figure is missing or lies outside its interval."""
    spare = _ROUNDING * np.abs(value)
    return bool((~np.isnan(low) & ~((low - spare <= value) & (value <= high + spare))).any())


def _unknown(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_null(column, nan_is_null=True)


def _wrong_json(table: pa.Table, names: set[str]) -> Iterator[str]:
    for name in sorted(names & set(_JSON)):
        for text in filter(None, pc.unique(table[name]).to_pylist()):
            value = json.loads(text)
            if not isinstance(value, dict) or not _CHECKS[name](value):
                yield f"has {text[:40]!r} in column {name}"


def _is_declaration(declarations: dict[str, Any]) -> bool:
    return all(
        _METRIC_NAME.fullmatch(name)
        and all(isinstance(said[key], str) for key in ("unit", "better", "expression"))
        and said["better"] in get_args(Better)
        for name, said in declarations.items()
    )


def _has_numbers(numbers: dict[str, Any]) -> bool:
    return all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers.values())


_CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "flags": lambda flags: True,
    "custom_metrics": _is_declaration,
    ROUNDS: _has_numbers,
}
