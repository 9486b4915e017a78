"""Write the results table to Parquet with a format version, and check that of a file.

Readers start here, so it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet as pq

from mlflow_ngraph import formats
from mlflow_ngraph.version import __version__

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
_FORMAT, _WRITER = b"ngraph.format", b"ngraph.version"


def write(table: pd.DataFrame, path: Path) -> None:
    """Write the table of a study."""
    made = pa.Table.from_pandas(table, preserve_index=False)
    said = {_FORMAT: str(FORMAT).encode(), _WRITER: __version__.encode()}
    pq.write_table(made.replace_schema_metadata({**(made.schema.metadata or {}), **said}), path)


def foreign(metadata: Mapping[bytes, bytes] | None) -> str:
    """Reason that a table cannot be read; empty if it can. Files without a version are older than versions."""
    known = metadata or {}
    if _FORMAT not in known:
        return ""
    text, writer = (known.get(key, b"").decode(errors="replace") for key in (_FORMAT, _WRITER))
    return formats.version_mismatch(
        int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text, FORMAT, writer
    )
