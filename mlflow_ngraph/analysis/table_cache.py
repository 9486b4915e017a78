"""The results tables of many study runs, each read once: fetched in parallel, kept on this machine by their digest.

A kept table is named by its run and by the sha256 of the file that the run carries, which the run's tags tell. So a
study that was recorded again has another name, whoever wrote it, and one that was deleted is not asked for any more.
Several processes may use the same directory: files are written beside their place and renamed into it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc
from pyarrow import parquet as pq

from mlflow_ngraph import user_cache
from mlflow_ngraph.analysis.listing import PARALLEL, Listed, Server
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking.schema import Artifact

_ATTEMPTS = 3
"""How often a table is read that somebody is replacing at this moment."""


class TableCache:
    """Tables of one tracking server on this machine.

    Parameters
    ----------
    directory : Path
        Made when something is kept in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def of(cls, uri: str) -> TableCache:
        """The cache of a server, below the user's cache directory."""
        place = hashlib.sha256(uri.encode()).hexdigest()[:16]
        return cls(user_cache.directory("results") / place)

    def get(self, run: Listed, columns: Collection[str] | None) -> pa.Table | None:
        """The table of a run as it is now, if it is here and whole."""
        if not run.digest:
            return None
        try:
            with pa.memory_map(str(self._path(run))) as source:
                if columns is None:
                    return ipc.open_file(source).read_all()
                names = ipc.open_file(source).schema.names
                wanted = [index for index, name in enumerate(names) if name in columns]
                source.seek(0)
                return ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=wanted)).read_all()
        except (OSError, pa.ArrowException):
            return None

    def put(self, run: Listed, table: pa.Table) -> None:
        """Keep a table in place of an earlier one of the run; a full or read-only disk only makes it slower."""
        content = pa.BufferOutputStream()
        with ipc.new_file(content, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as sink:
            sink.write_table(table)
        user_cache.keep(self._path(run), memoryview(content.getvalue()))

    def keep_only(self, runs: Sequence[Listed]) -> None:
        """Remove the tables of runs that are gone, and earlier ones of those that are not."""
        current = {self._path(run).name for run in runs}
        with suppress(OSError):
            for entry in os.scandir(self._directory):
                if entry.name not in current and not entry.name.startswith("."):
                    Path(entry.path).unlink(missing_ok=True)

    def _path(self, run: Listed) -> Path:
        return self._directory / f"{run.run_id}-{run.digest[:32]}.arrow"


def read(
    server: Server, runs: Sequence[Listed], columns: Collection[str] | None, cache: TableCache | None
) -> list[tuple[Listed, pa.Table]]:
    """The tables of study runs, in the order of ``runs``; a run without one is left out.

    Parameters
    ----------
    columns : Collection[str] | None
        Read only these, where a table has them; all when left out.
    cache : TableCache | None
        None reads everything from the server.

    Raises
    ------
    TrackingError
        The server cannot be reached, or a table cannot be read.
    """
    found = {run.run_id: cache.get(run, columns) if cache else None for run in runs}
    missing = [run for run in runs if found[run.run_id] is None]
    with ThreadPoolExecutor(PARALLEL) as pool:
        _fill(found, missing, pool.map(lambda run: _quickly(server, run, cache), missing), columns)
        missing = [run for run in missing if found[run.run_id] is None]
        if missing:
            with server.talking():
                _fill(found, missing, pool.map(lambda run: _patiently(server, run, cache), missing), columns)
    return [(run, table) for run in runs if (table := found[run.run_id]) is not None and table.num_rows]


def _fill(
    found: dict[str, pa.Table | None],
    runs: Sequence[Listed],
    tables: Iterable[pa.Table | None],
    columns: Collection[str] | None,
) -> None:
    """Put tables in their places, cut down to the wanted columns at once: all of them together are large."""
    for run, table in zip(runs, tables, strict=True):
        if table is not None and columns is not None:
            table = table.select([name for name in table.column_names if name in columns])  # noqa: PLW2901
        found[run.run_id] = table


def _quickly(server: Server, run: Listed, cache: TableCache | None) -> pa.Table | None:
    """The table that the run's tags speak of, or None if it is not to be had without MLflow's client."""
    content = server.quick_results(run)
    if content is None or _digest(content) != run.digest:
        return None
    table = _parsed(run, content)
    if cache is not None:
        cache.put(run, table)
    return table


def _patiently(server: Server, run: Listed, cache: TableCache | None) -> pa.Table | None:
    """The table by way of MLflow's client; kept only if it is the one that the run's tags speak of."""
    content = server.results(run)
    for _ in range(_ATTEMPTS):
        if content is None or not run.digest or _digest(content) == run.digest:
            break
        run = server.again(run)
        content = server.results(run)
    if content is None:
        return None
    table = _parsed(run, content)
    if cache is not None and _digest(content) == run.digest:
        cache.put(run, table)
    return table


def _parsed(run: Listed, content: bytes) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(content), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        why = f"{Artifact.RESULTS} is not readable ({error}); sync the study again"
        raise TrackingError(f"run {run.run_id}: {why}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
