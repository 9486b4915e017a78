"""Load the tidy table from tracking servers: one row per cell."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc

from mlflow_ngraph.analysis import listing, table_cache
from mlflow_ngraph.analysis.listing import FoundRuns, ListedRun
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, Selection
from mlflow_ngraph.analysis.table_cache import TableCache
from mlflow_ngraph.metrics import RUN_COLUMNS, TABLE
from mlflow_ngraph.tables import distinct
from mlflow_ngraph.tables.columns import cast, typed
from mlflow_ngraph.text import counted
from mlflow_ngraph.tracking.schema import Tag

LANE_RUN = "lane_run_id"
"""Column with the lane run of a row."""
_NEEDED = (LANE_RUN, *distinct.NEEDED, *FILTER_COLUMNS)
"""Columns needed for names and filters."""
_NAMED = 3
"""Most experiments named in a sentence."""
_log = logging.getLogger(__name__)
_PANDAS = {pa.large_string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype()}


def load(
    tracking_uri: str | Sequence[str] | None = None,
    experiments: Sequence[str] | None = None,
    *,
    devices: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    compilers: Sequence[str] | None = None,
    precisions: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    studies: Sequence[str] | None = None,
    git_commits: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    run: str | None = None,
    columns: Sequence[str] | None = None,
    cache: bool = True,
) -> pd.DataFrame:
    """Load the results of all studies from one or several tracking servers: one row per cell.

    Every study keeps its rows; `compare.latest` selects the newest ones. Study runs that another run took over are left
    out. A study on several servers counts once.

    Parameters
    ----------
    tracking_uri : str | Sequence[str] | None
        Servers to read; MLflow's default when left out.
    experiments : Sequence[str] | None
        Names of experiments; all when left out.
    devices, workloads, families, compilers, precisions, batch_sizes, studies, git_commits, baselines, tags, since, until : Sequence[str] | None, Sequence[int] | None, Mapping[str, str] | None, datetime | str | None
        Keep what fits all of them; see `selection.Selection`.
    run : str | None
        Id of a study run or lane run to read alone.
    columns : Sequence[str] | None
        Columns to read; all when left out (docs/reference/results.md).
    cache : bool
        Keep tables on this machine and reuse them. Tables recorded again or deleted are noticed either way.

    Raises
    ------
    UnknownNameError
        An experiment does not exist, or no result has a name that a filter asks for.
    UsageError
        A time is none, or a name may mean several workloads.
    TrackingError
        A server cannot be reached.

    Notes
    -----
    A table that is none of a study costs its own rows, and a warning in the log that names its run.
    """
    asked = Selection(
        devices=tuple(devices or ()),
        workloads=tuple(workloads or ()),
        families=tuple(families or ()),
        compilers=tuple(compilers or ()),
        precisions=tuple(precisions or ()),
        batch_sizes=tuple(batch_sizes or ()),
        studies=tuple(studies or ()),
        git_commits=tuple(git_commits or ()),
        baselines=tuple(baselines or ()),
        tags=tags or {},
        since=since,
        until=until,
    )
    found = listing.find(tracking_uri, experiments, run)
    needed = None if columns is None else list(dict.fromkeys([*columns, *FILTER_COLUMNS, "started_at"]))
    every = select(Selection(tags=asked.tags), columns=needed, cache=cache, found=found)
    for note in found.notes:
        _log.warning("%s", note)
    asked.check_names(every)
    frame: pd.DataFrame = asked.of(every).reset_index(drop=True)
    chosen: pd.DataFrame = frame if columns is None else frame.loc[:, list(columns)]
    return chosen


def select(
    selection: Selection,
    tracking_uri: str | Sequence[str] | None = None,
    experiments: Sequence[str] | None = None,
    *,
    run: str | None = None,
    columns: Sequence[str] | None = None,
    cache: bool = True,
    found: FoundRuns | None = None,
) -> pd.DataFrame:
    """As `load`, with the filters as one object.

    ``found`` are study runs that are listed already; they replace servers, experiments and run. Remarks are added to
    its notes; without it, they are logged.
    """
    known, found = found, listing.find(tracking_uri, experiments, run) if found is None else found
    needed = None if columns is None else {*columns, *_NEEDED}
    read: list[tuple[str, ListedRun, pa.Table]] = []
    studies: set[str] = set()
    for server in found.servers:
        listed = found.runs[server.uri]
        runs = [study_run for study_run in selection.of_runs(listed) if study_run.tags.get(Tag.STUDY_ID) not in studies]
        studies.update(study_run.tags.get(Tag.STUDY_ID, "") for study_run in runs)
        kept = TableCache.of(server.uri) if cache else None
        if kept is not None and server.uri in found.every:
            kept.keep_only(found.every[server.uri])
        tables = table_cache.read(server, runs, needed, kept, found.notes.append)
        found.lanes[server.name] = named_lanes(tables)
        found.withdrawn.update(found.deleted({server.name: found.lanes[server.name]}))
        kept_rows = without_lanes(found.withdrawn.get(server.name, ()), tables)
        read += [(server.name, study_run, table) for study_run, table in kept_rows]
    found.notes.extend(experiments_mixed([(study_run, table) for _, study_run, table in read]))
    fitting: pd.DataFrame = selection.of(joined(read, needed)).reset_index(drop=True)
    if known is None:
        for note in found.notes:
            _log.warning("%s", note)
    else:  # readers of some results need no repeated remarks about device names
        found.notes.extend(distinct.notes(fitting))
    return fitting if columns is None else fitting.loc[:, list(columns)]


def named_lanes(tables: Sequence[tuple[ListedRun, pa.Table]]) -> list[str]:
    """Lane runs that the rows belong to."""
    named = {run_id for _, table in tables for run_id in _lane_runs(table).unique().to_pylist()}
    return sorted(named - {None, ""})


def without_lanes(
    deleted: Collection[str], tables: Sequence[tuple[ListedRun, pa.Table]]
) -> list[tuple[ListedRun, pa.Table]]:
    """Remove the rows of deleted lane runs."""
    gone = pa.array(sorted(deleted), pa.large_string())
    left = [(run, table.filter(pc.invert(pc.is_in(_lane_runs(table), gone)))) for run, table in tables]
    return [(run, table) for run, table in left if table.num_rows]


def _lane_runs(table: pa.Table) -> pa.ChunkedArray:
    if LANE_RUN in table.column_names:
        return table[LANE_RUN]
    return pa.chunked_array([pa.nulls(table.num_rows, pa.large_string())])


def experiments_mixed(read: Sequence[tuple[ListedRun, pa.Table]]) -> list[str]:
    """Sentence about cells whose newest results are in another experiment than earlier ones."""
    if len({run.experiment for run, _ in read}) < 2:
        return []
    newest: dict[str, tuple[float, str]] = {}
    known: dict[str, set[str]] = defaultdict(set)
    for run, table in read:
        for cell, at in zip(table["cell"].to_pylist(), table["started_at"].to_pylist(), strict=True):
            known[cell].add(run.experiment)
            newest[cell] = max(newest.get(cell, (at, run.experiment)), (at, run.experiment))
    several = [cell for cell, experiments in known.items() if len(experiments) > 1]
    if not several:
        return []
    counts = Counter(newest[cell][1] for cell in several).most_common(_NAMED)
    of = ", ".join(f"{count} of {experiment!r}" for experiment, count in counts)
    many = counted(len(several), "cell has", "cells have")
    return [f"{many} results in several experiments; where the newest alone counts, that is {of}: --experiment chooses"]


def joined(read: Sequence[tuple[str, ListedRun, pa.Table]], columns: Collection[str] | None) -> pd.DataFrame:
    """Join tables into one frame, with columns of their runs and with distinct names."""
    parts = []
    for server, run, table in read:
        # A table may name any run: its rows belong to the one in which it lies.
        known = (server, run.experiment, run.tags.get(listing.GIT_COMMIT), run.tags.get(listing.USER))
        values = {"run_id": run.run_id, **dict(zip(RUN_COLUMNS, known, strict=True))}
        table = table.drop_columns([name for name in values if name in table.column_names])  # noqa: PLW2901
        for name, value in values.items():
            table = table.append_column(name, pa.array([value] * table.num_rows, pa.large_string()))  # noqa: PLW2901
        parts.append(cast(table))
    if not parts:
        return typed(pd.DataFrame(), columns or TABLE)
    whole = pa.concat_tables(parts, promote_options="permissive")
    del parts
    frame = whole.to_pandas(types_mapper=_PANDAS.get, split_blocks=True, self_destruct=True)
    return distinct.distinct(typed(frame, columns or TABLE))
