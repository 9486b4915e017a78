"""ResultStore: lists this server's study runs, and reads and caches the newest result of each of their cells."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.analysis import results, table_cache
from mlflow_ngraph.analysis.compare import latest
from mlflow_ngraph.analysis.listing import ListedRun, Server
from mlflow_ngraph.analysis.table_cache import TableCache
from mlflow_ngraph.tables import distinct
from mlflow_ngraph.tracking.schema import Artifact

Fetch = Callable[[str, str], "bytes | None"]
"""Reads a file of a run, by run id and path."""
_NOTES = 20
"""Most remarks of an answer."""
_KEPT = 8
"""Number of cached sets. Visitors may see different studies."""
_ORDER = pa.schema(
    [
        ("cell", pa.large_string()),
        ("verdict", pa.large_string()),
        ("started_at", pa.float64()),
        ("finished_at", pa.float64()),
        ("fingerprint", pa.large_string()),
        ("content", pa.large_string()),
    ]
)
"""Columns that decide which result is the newest."""


@dataclass(frozen=True)
class Newest:
    """Newest result of each cell."""

    cells: pd.DataFrame
    """The tidy table with the id of the experiment. Not to be modified."""
    notes: list[str]
    """Remarks for the visitor, such as runs left out."""
    studies: str
    """Identity of the set of studies."""


class ResultStore:
    """Reader of results from this server's tracking store."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._server = Server(uri)
        self._cache = TableCache.of(uri)
        self._frames: OrderedDict[frozenset[tuple[str, str]], Newest] = OrderedDict()
        self._lanes: dict[tuple[str, str], list[str]] = {}
        """Lane runs of each table, by run and digest."""
        self._lock = Lock()
        self._reading: dict[frozenset[tuple[str, str]], Lock] = {}
        """One lock for each set of runs, so that who waits for one holds up nobody else."""

    def studies(self) -> list[ListedRun]:
        """Study runs with results, visible to anyone."""
        return [run for run in self._server.study_runs() if run.digest]

    def newest(self, runs: Sequence[ListedRun], fetch: Fetch) -> Newest:
        """Newest result of each cell of these runs."""
        source = _Fetched(self._uri, fetch)
        asked = frozenset((run.run_id, run.digest) for run in runs)
        with self._lock:
            reading = self._reading.setdefault(asked, Lock())
        with reading:  # one at a time, so that waiting threads find the results in the cache
            try:
                deleted = self._deleted(source, runs)
                key = asked | {(run_id, "") for run_id in deleted}
                with self._lock:
                    known = self._frames.get(key)
                found = known or self._read(
                    source, runs, deleted, hashlib.sha256(repr(sorted(key)).encode()).hexdigest()
                )
                with self._lock:
                    self._frames[key] = found
                    self._frames.move_to_end(key)
                    while len(self._frames) > _KEPT:
                        self._frames.popitem(last=False)
            finally:
                with self._lock:
                    self._reading.pop(asked, None)
        return found

    def _deleted(self, source: Server, runs: Sequence[ListedRun]) -> frozenset[str]:
        new = [run for run in runs if (run.run_id, run.digest) not in self._lanes]
        tables = table_cache.read(source, new, [results.LANE_RUN], self._cache, lambda note: None, patient=False)
        named = {run.run_id: results.named_lanes([(run, table)]) for run, table in tables}
        self._lanes.update({(run.run_id, run.digest): named.get(run.run_id, []) for run in new})
        lanes = [lane for run in runs for lane in self._lanes[run.run_id, run.digest]]
        return source.deleted(lanes, {run.experiment_id for run in runs})

    def _read(self, source: Server, runs: Sequence[ListedRun], deleted: Collection[str], studies: str) -> Newest:
        """Find the studies with the newest results, then read only those in full. Most studies are history."""
        notes: list[str] = []
        wanted = [*_ORDER.names, results.LANE_RUN]
        known = results.without_lanes(
            deleted, table_cache.read(source, runs, wanted, self._cache, notes.append, patient=False)
        )
        notes += results.experiments_mixed(known)
        if not known:
            return Newest(results.joined([], None).assign(experiment_id=""), notes, studies)
        parts = [
            _ordering(table).append_column("place", pa.array([place] * table.num_rows, pa.int32()))
            for place, (_, table) in enumerate(known)
        ]
        newest = latest(pa.concat_tables(parts).to_pandas(), ("cell", "fingerprint", "content"))
        needed = [known[place][0] for place in sorted(newest["place"].unique())]
        read = results.without_lanes(
            deleted, table_cache.read(source, needed, None, self._cache, notes.append, patient=False)
        )
        whole = results.joined([(self._server.name, run, table) for run, table in read], None)
        frame = latest(whole)
        experiments = {run.run_id: run.experiment_id for run in runs}
        cells: pd.DataFrame = frame.assign(experiment_id=frame["run_id"].map(experiments).astype("string")).reset_index(
            drop=True
        )
        return Newest(cells, [*dict.fromkeys(notes), *distinct.notes(whole)][:_NOTES], studies)


def _ordering(table: pa.Table) -> pa.Table:
    """Columns that order results; tables of older versions lack the machine and the model."""
    for name in {"fingerprint", "content"} - set(table.column_names):
        table = table.append_column(name, pa.nulls(table.num_rows))
    return table.select(_ORDER.names).cast(_ORDER)


class _Fetched(Server):
    """This server, with files fetched in the name of a visitor."""

    def __init__(self, uri: str, fetch: Fetch) -> None:
        super().__init__(uri)
        self._fetch = fetch

    def results_without_mlflow(self, run: ListedRun) -> bytes | None:
        return self._fetch(run.run_id, Artifact.RESULTS)

    def results(self, run: ListedRun) -> bytes | None:
        return self._fetch(run.run_id, Artifact.RESULTS)

    def reload(self, run: ListedRun) -> ListedRun:
        return next((candidate for candidate in self.study_runs() if candidate.run_id == run.run_id), run)

    def talking(self) -> AbstractContextManager[None]:
        return nullcontext()
