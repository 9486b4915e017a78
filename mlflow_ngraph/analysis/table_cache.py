"""Fetch results tables of study runs concurrently from a server, and cache tables and refusals on disk.

The key is the run and the sha256 of its file, which the run's tags carry. So a study recorded again gets another key,
and deleted ones are never looked up. Several processes may share the directory: files are written aside and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyarrow import ipc

from mlflow_ngraph import user_cache
from mlflow_ngraph.analysis.listing import PARALLEL, ListedRun, Server
from mlflow_ngraph.analysis.table_checks import PASSING_S, BadTableError, parsed
from mlflow_ngraph.text import counted, harmless
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.version import __version__

_ACCEPTED, _REFUSED = ".arrow", ".refused"
"""Endings of files in the cache: tables, and reasons why one is refused."""
_OTHER_FILE = "is not the file whose digest the run's tags tell"
_NAMED = 3
"""Most invalid tables that are named."""
_ATTEMPTS = 3
"""Attempts at reading a table that does not match its digest. Another process may be replacing both."""
_LONGEST_RECORDING = 50
_BETWEEN_S = 0.2
_Read: TypeAlias = pa.Table | BadTableError | None


class TableCache:
    """Cached tables of one tracking server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def of(cls, uri: str) -> TableCache:
        """Cache of a server, in the user's cache directory."""
        place = hashlib.sha256(uri.encode()).hexdigest()[:16]
        return cls(user_cache.directory("results") / place)

    def get(self, run: ListedRun, columns: Collection[str] | None) -> pa.Table | None:
        """Current table of a run; None if it is missing or damaged."""
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

    def put(self, run: ListedRun, table: pa.Table) -> None:
        """Keep a table, replacing an earlier one of the run. Failures are ignored: a full or read-only disk only makes
        it slower.
        """
        content = pa.BufferOutputStream()
        with ipc.new_file(content, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as sink:
            sink.write_table(table)
        user_cache.keep(self._path(run), memoryview(content.getvalue()))

    def look_up(self, run: ListedRun, columns: Collection[str] | None) -> _Read:
        """Current table of a run, or its refusal; None if this machine knows neither."""
        table = self.get(run, columns)
        return self._refused(run) if table is None else table

    def _refused(self, run: ListedRun) -> BadTableError | None:
        """Refusal of the current table of a run, if this version has refused it."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path(run).with_suffix(_REFUSED).read_bytes())
            if run.digest and kept["version"] == __version__ and time.time() < kept["until"]:
                return BadTableError(run, str(kept["why"]), str(kept["remedy"]), holds_s=0.0)
        return None

    def refuse(self, run: ListedRun, error: BadTableError) -> None:
        """Remember that the table of a run is invalid."""
        said = {"version": __version__, "why": error.why, "remedy": error.remedy, "until": time.time() + error.holds_s}
        user_cache.keep(self._path(run).with_suffix(_REFUSED), json.dumps(said).encode())

    def keep_only(self, runs: Sequence[ListedRun]) -> None:
        """Remove tables of other runs, and earlier tables of these."""
        current = {self._path(run).with_suffix(ending).name for run in runs for ending in (_ACCEPTED, _REFUSED)}
        with suppress(OSError):
            for entry in os.scandir(self._directory):
                if entry.name not in current and not entry.name.startswith("."):
                    Path(entry.path).unlink(missing_ok=True)

    def _path(self, run: ListedRun) -> Path:
        return self._directory / f"{run.run_id}-{run.digest[:32]}{_ACCEPTED}"


def read(
    server: Server,
    runs: Sequence[ListedRun],
    columns: Collection[str] | None,
    cache: TableCache | None,
    refused: Callable[[str], None],
    *,
    patient: bool = True,
) -> list[tuple[ListedRun, pa.Table]]:
    """Tables of study runs, in order. Runs without a valid table are left out.

    ``columns`` are those to read, where a table has them; all when left out. Without a cache everything is read from
    the server. ``refused`` is called with a message for each of the first invalid tables, and with the number of the
    others. ``patient``: wait for tables that are recorded at this moment. Raises `TrackingError` if the server cannot
    be reached.
    """
    by_run: dict[str, _Read] = {run.run_id: cache.look_up(run, columns) if cache else None for run in runs}
    missing = [run for run in runs if by_run[run.run_id] is None]
    with ThreadPoolExecutor(PARALLEL) as pool:
        _fill(by_run, missing, pool.map(lambda run: _attempt(_quickly, server, run, cache), missing), columns)
        missing = [run for run in missing if by_run[run.run_id] is None]
        if missing and patient:
            with server.talking():
                _fill(by_run, missing, _patiently(server, missing, cache, pool), columns)
    if not patient:
        by_run.update((run.run_id, BadTableError(run, _OTHER_FILE, holds_s=PASSING_S)) for run in missing)
    bad = [(run, error) for run in runs if isinstance(error := by_run[run.run_id], BadTableError)]
    for run, error in bad:
        if cache is not None and run.digest and error.holds_s:
            cache.refuse(run, error)
    for text in _listed([str(error) for _, error in bad]):
        refused(text)
    tables = ((run, by_run[run.run_id]) for run in runs)
    return [(run, table) for run, table in tables if isinstance(table, pa.Table) and table.num_rows]


def _fill(
    by_run: dict[str, _Read], runs: Sequence[ListedRun], tables: Iterable[_Read], columns: Collection[str] | None
) -> None:
    """Store tables, reduced to the wanted columns at once, because all columns of all tables need much memory."""
    for run, table in zip(runs, tables, strict=True):
        if isinstance(table, pa.Table) and columns is not None:
            table = table.select([name for name in table.column_names if name in columns])  # noqa: PLW2901
        by_run[run.run_id] = table


def _attempt(
    how: Callable[[Server, ListedRun, TableCache | None], pa.Table | None],
    server: Server,
    run: ListedRun,
    cache: TableCache | None,
) -> _Read:
    """Table of a run, or its error. One bad table must not prevent reading others."""
    try:
        return how(server, run, cache)
    except BadTableError as error:
        return error
    except Exception as error:  # noqa: BLE001 - whatever a store raises that one run names as its own
        why = harmless(connection.one_line(error, server.uri)) or type(error).__name__
        return BadTableError(run, f"cannot be fetched ({why})", holds_s=0.0)


def _quickly(server: Server, run: ListedRun, cache: TableCache | None) -> pa.Table | None:
    """Read the table without MLflow's client; None if that is impossible."""
    content = server.results_without_mlflow(run)
    if content is None or _digest(content) != run.digest:
        return None
    return _kept(run, content, cache)


def _patiently(
    server: Server, runs: Sequence[ListedRun], cache: TableCache | None, pool: ThreadPoolExecutor
) -> list[_Read]:
    """Read tables that may be recorded at this moment. All wait together, so that one holds up no other."""
    current, found = {run.run_id: run for run in runs}, dict[str, _Read]()
    attempts = dict.fromkeys(current, 0)

    def look(server: Server, run: ListedRun, cache: TableCache | None) -> pa.Table | None:
        content = server.results(run)
        if content is None:
            return None
        if run.digest and _digest(content) == run.digest:
            return _kept(run, content, cache)
        # Recording a study replaces the table first, and then the tag.
        current[run.run_id] = now = server.reload(run)
        attempts[run.run_id] = attempts[run.run_id] + 1 if now.digest == run.digest else 0
        raise BadTableError(now, _OTHER_FILE, holds_s=PASSING_S)

    waiting = [*runs]
    for _ in range(_LONGEST_RECORDING):
        tables = pool.map(lambda run: _attempt(look, server, run, cache), waiting)
        found.update(zip([run.run_id for run in waiting], tables, strict=True))
        waiting = [current[name] for name, tried in attempts.items() if _open(found[name]) and tried < _ATTEMPTS]
        if not waiting:
            break
        time.sleep(_BETWEEN_S)
    return [found[run.run_id] for run in runs]


def _open(table: _Read) -> bool:
    """True if a table is not the one of its tag yet."""
    return isinstance(table, BadTableError) and table.why == _OTHER_FILE


def _kept(run: ListedRun, content: bytes, cache: TableCache | None) -> pa.Table:
    table = parsed(content, run)
    if cache is not None:
        cache.put(run, table)
    return table


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _listed(refusals: Sequence[str]) -> Iterator[str]:
    """First refusals, and the number of the others."""
    yield from refusals[:_NAMED]
    if len(refusals) > _NAMED:
        more = counted(len(refusals) - _NAMED, "more table is", "more tables are")
        yield f"{more} left out as invalid; --experiment reads the runs of some experiments alone"
