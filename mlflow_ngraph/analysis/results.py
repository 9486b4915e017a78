"""The tidy table, read back from tracking servers: one row a cell."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import pandas as pd
import pyarrow as pa
from pyarrow import compute as pc

from mlflow_ngraph.analysis import listing, table_cache
from mlflow_ngraph.analysis.listing import Found, Listed
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, Selection
from mlflow_ngraph.analysis.table_cache import TableCache
from mlflow_ngraph.metrics import RUN_COLUMNS, TABLE
from mlflow_ngraph.tables import distinct
from mlflow_ngraph.tables.columns import cast, typed
from mlflow_ngraph.text import counted
from mlflow_ngraph.tracking.schema import Tag

LANE_RUN = "lane_run_id"
"""The column with the run that a row's figures are those of."""
_NEEDED = (LANE_RUN, *distinct.NEEDED, *FILTER_COLUMNS)
"""Columns that names and filters look at."""
_NAMED = 3
"""Experiments that a sentence names."""
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
    """Read the results of all studies from one or several tracking servers: one row a cell.

    Every study has its own rows, also where it measured the same as another; `compare.latest` keeps the newest. A
    study run that another one took over is left out: the other has its cells. A study that several of the servers
    have counts once.

    Parameters
    ----------
    tracking_uri : str | Sequence[str] | None
        Where to read; MLflow's own default when left out.
    experiments : Sequence[str] | None
        Names of experiments; all of them when left out.
    devices, workloads, families, compilers, precisions, batch_sizes, studies, git_commits, baselines, tags, since, until : Sequence[str] | None, Sequence[int] | None, Mapping[str, str] | None, datetime | str | None
        Keep what fits all of them; see `selection.Selection`.
    run : str | None
        The id of a study run, or of one of its lane runs, to read alone.
    columns : Sequence[str] | None
        Read only these; all of docs/reference/results.md and whatever else there is when left out.
    cache : bool
        Whether to keep tables on this machine and use those that are there. A table that was recorded again or deleted
        since is noticed either way.

    Raises
    ------
    UnknownNameError
        An experiment does not exist.
    UsageError
        A time is none.
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
    frame = select(asked, columns=columns, cache=cache, found=found)
    for note in found.notes:
        _log.warning("%s", note)
    return frame


def select(
    selection: Selection,
    tracking_uri: str | Sequence[str] | None = None,
    experiments: Sequence[str] | None = None,
    *,
    run: str | None = None,
    columns: Sequence[str] | None = None,
    cache: bool = True,
    found: Found | None = None,
) -> pd.DataFrame:
    """As `load`, with filters that are one object.

    Parameters
    ----------
    found : Found | None
        The study runs, where they are known already; servers, experiments and run are those that they were found by.
        Its notes say what was left out and what names mean; without it the log says the former.
    """
    known, found = found, listing.find(tracking_uri, experiments, run) if found is None else found
    needed = None if columns is None else {*columns, *_NEEDED}
    read: list[tuple[str, Listed, pa.Table]] = []
    studies: set[str] = set()
    for server in found.servers:
        listed = found.runs[server.uri]
        runs = [study_run for study_run in selection.of_runs(listed) if study_run.tags.get(Tag.STUDY_ID) not in studies]
        studies.update(study_run.tags.get(Tag.STUDY_ID, "") for study_run in runs)
        kept = TableCache.of(server.uri) if cache else None
        if kept is not None and found.complete:
            kept.keep_only(listed)
        tables = table_cache.read(server, runs, needed, kept, found.notes.append)
        found.lanes[server.name] = named_lanes(tables)
        found.withdrawn.update(found.deleted({server.name: found.lanes[server.name]}))
        kept_rows = without(found.withdrawn.get(server.name, ()), tables)
        read += [(server.name, study_run, table) for study_run, table in kept_rows]
    found.notes.extend(displaced([(study_run, table) for _, study_run, table in read]))
    fitting: pd.DataFrame = selection.of(joined(read, needed)).reset_index(drop=True)
    if known is None:
        for note in found.notes:
            _log.warning("%s", note)
    else:  # a reader of a part of the results need not hear each time what devices are called
        found.notes.extend(distinct.notes(fitting))
    return fitting if columns is None else fitting.loc[:, list(columns)]


def named_lanes(tables: Sequence[tuple[Listed, pa.Table]]) -> list[str]:
    """The lane runs that rows of tables are of."""
    named = {run_id for _, table in tables for run_id in _lane_runs(table).unique().to_pylist()}
    return sorted(named - {None, ""})


def without(deleted: Collection[str], tables: Sequence[tuple[Listed, pa.Table]]) -> list[tuple[Listed, pa.Table]]:
    """The tables without the rows of lane runs that are deleted."""
    gone = pa.array(sorted(deleted), pa.large_string())
    left = [(run, table.filter(pc.invert(pc.is_in(_lane_runs(table), gone)))) for run, table in tables]
    return [(run, table) for run, table in left if table.num_rows]


def _lane_runs(table: pa.Table) -> pa.ChunkedArray:
    """The lane run of each row; null in a table that does not say it."""
    if LANE_RUN in table.column_names:
        return table[LANE_RUN]
    return pa.chunked_array([pa.nulls(table.num_rows, pa.large_string())])


def displaced(read: Sequence[tuple[Listed, pa.Table]]) -> list[str]:
    """Whether the newest results of cells are of another experiment than earlier ones of the same cells, in a sentence.

    Parameters
    ----------
    read : Sequence[tuple[Listed, pa.Table]]
        Study runs with their tables, which have the columns ``cell`` and ``started_at``.
    """
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


def joined(read: Sequence[tuple[str, Listed, pa.Table]], columns: Collection[str] | None) -> pd.DataFrame:
    """One frame of many tables, each row with what its run says, and with names that `distinct` has made."""
    parts = []
    for server, run, table in read:
        values = (server, run.experiment, run.tags.get(listing.GIT_COMMIT))
        for name, value in zip(RUN_COLUMNS, values, strict=True):
            table = table.append_column(name, pa.array([value] * table.num_rows, pa.large_string()))  # noqa: PLW2901
        parts.append(cast(table))
    if not parts:
        return typed(pd.DataFrame(), columns or TABLE)
    whole = pa.concat_tables(parts, promote_options="permissive")
    del parts
    frame = whole.to_pandas(types_mapper=_PANDAS.get, split_blocks=True, self_destruct=True)
    return distinct.distinct(typed(frame, columns or TABLE))
