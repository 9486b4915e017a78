"""The tidy table: one row a cell, from the record of a study or read back from tracking servers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from mlflow_ngraph.analysis import listing, tables
from mlflow_ngraph.analysis.listing import Found, Listed
from mlflow_ngraph.analysis.selection import FILTERED, Selection
from mlflow_ngraph.analysis.tables import TableCache
from mlflow_ngraph.tracking.schema import CELL_METRICS, Tag

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord

TEXT_COLUMNS = (
    "study_id",
    "study",
    "device",
    "fingerprint",
    "workload",
    "label",
    "family",
    "compiler",
    "compiler_label",
    "flags",
    "precision",
    "precision_in_force",
    "mode",
    "verdict",
    "reason",
    "engine",
    "engine_reused",
    "lane",
    "cell",
    "run_id",
    "lane_run_id",
    "model_id",
    "custom_metrics",
)
"""``flags`` is JSON: every flag with the value in force. ``engine_reused`` is the study that compiled the engine, where
it was another one. ``custom_metrics`` is JSON: formula, unit and what is better of each metric that the study declares.
What does not apply is missing (NaN)."""
INTEGER_COLUMNS = ("threads", "batch", "parameters", "paper_macs", "true_macs")
TIME_COLUMNS = ("started_at", "finished_at")
"""Unix seconds: the start of the study, the end of the cell."""
COLUMNS = (*TEXT_COLUMNS, *INTEGER_COLUMNS, *TIME_COLUMNS, *CELL_METRICS)
"""Columns that a table always has; metrics that are not in the schema follow them."""
RUN_COLUMNS = ("tracking_uri", "experiment", "git_commit")
"""Columns that say where a row was read; they come from the run and stand last."""
ALL = (*COLUMNS, *RUN_COLUMNS)
_NEEDED = ("study_id", "cell", "started_at", *{name for names in FILTERED.values() for name in names})
"""Columns that filters look at."""
_PANDAS = {pa.large_string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype()}


def from_record(
    record: StudyRecord,
    run_id: str | None = None,
    lane_runs: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The table of a study: a row for each cell that has a verdict.

    Parameters
    ----------
    run_id: the study run.
    lane_runs: the lane runs by lane.
    models: the LoggedModels by engine.
    """
    from mlflow_ngraph.custom_metrics import told

    declared = told(record.study)
    rows = [
        {
            **_row(record, lane, cell),
            "custom_metrics": json.dumps(declared, sort_keys=True) if declared else None,
            "run_id": run_id,
            "lane_run_id": (lane_runs or {}).get(lane.lane.id),
            "model_id": (models or {}).get(cell.engine or ""),
        }
        for lane in record.lanes.values()
        for _, cell in sorted(lane.cells.items())
    ]
    return typed(pd.DataFrame(rows), COLUMNS)


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
    tracking_uri: where to read; MLflow's own default when left out.
    experiments: names of experiments; all of them when left out.
    devices, workloads, families, compilers, precisions, batch_sizes, studies, git_commits, tags, since, until: keep
        what fits all of them; see `selection.Selection`.
    run: the id of a study run, or of one of its lane runs, to read alone.
    columns: read only these; all of docs/reference/results.md and whatever else there is when left out.
    cache: whether to keep tables on this machine and use those that are there. A table that was recorded again or
        deleted since is noticed either way.

    Raises
    ------
    UnknownNameError: an experiment does not exist.
    UsageError: a time is none.
    TrackingError: a server cannot be reached, or a table cannot be read.
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
        tags=tags or {},
        since=since,
        until=until,
    )
    return select(asked, tracking_uri, experiments, run=run, columns=columns, cache=cache)


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
    found: the study runs, where they are known already; servers, experiments and run are those that they were found by.
    """
    found = listing.find(tracking_uri, experiments, run) if found is None else found
    needed = None if columns is None else {*columns, *_NEEDED}
    read: list[tuple[str, Listed, pa.Table]] = []
    studies: set[str] = set()
    for server in found.servers:
        listed = found.runs[server.uri]
        runs = [one for one in selection.of_runs(listed) if one.tags.get(Tag.STUDY_ID) not in studies]
        studies.update(one.tags.get(Tag.STUDY_ID, "") for one in runs)
        kept = TableCache.of(server.uri) if cache else None
        if kept is not None and found.complete:
            kept.keep_only(listed)
        read += [(server.name, one, table) for one, table in tables.read(server, runs, needed, kept)]
    fitting: pd.DataFrame = selection.of(joined(read, needed)).reset_index(drop=True)
    return fitting if columns is None else fitting.loc[:, list(columns)]


def joined(read: Sequence[tuple[str, Listed, pa.Table]], columns: Collection[str] | None) -> pd.DataFrame:
    """One frame of many tables, each row with what its run says."""
    parts = []
    for server, run, table in read:
        told = (server, run.experiment, run.tags.get(listing.GIT_COMMIT))
        for name, value in zip(RUN_COLUMNS, told, strict=True):
            table = table.append_column(name, pa.array([value] * table.num_rows, pa.large_string()))  # noqa: PLW2901
        parts.append(_plain(table))
    if not parts:
        return typed(pd.DataFrame(), columns or ALL)
    whole = pa.concat_tables(parts, promote_options="permissive")
    del parts
    frame = whole.to_pandas(types_mapper=_PANDAS.get, split_blocks=True, self_destruct=True)
    return typed(frame, columns or ALL)


def _plain(table: pa.Table) -> pa.Table:
    """A table with the types of the documented columns, so that tables of many versions fit together."""
    types = [_arrow(field) for field in table.schema]
    schema = pa.schema([field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)])
    return table.cast(schema.remove_metadata())


def _arrow(field: pa.Field) -> pa.DataType:
    if field.name in TEXT_COLUMNS or field.name in RUN_COLUMNS or pa.types.is_string(field.type):
        return pa.large_string()
    if field.name in INTEGER_COLUMNS:
        return pa.int64()
    if field.name in TIME_COLUMNS or field.name in CELL_METRICS or pa.types.is_null(field.type):
        return pa.float64()
    return field.type


def _row(record: StudyRecord, lane: LaneRecord, cell: CellRecord) -> dict[str, Any]:
    info = record.workloads.get(lane.lane.workload, {}).get("info", {})
    engine = next((engine for engine in lane.engines if engine.id == cell.engine), None)
    flags = {**lane.lane.flags, **(engine.flags if engine else {}), **cell.flags}
    return {
        "study_id": record.id,
        "study": record.name,
        "device": lane.lane.device,
        "fingerprint": record.fingerprint.get("digest"),
        "workload": lane.lane.workload,
        "label": lane.lane.label,
        "family": lane.lane.family,
        "compiler": lane.lane.compiler,
        "compiler_label": lane.lane.compiler_label,
        "flags": json.dumps(flags, sort_keys=True),
        "precision": lane.lane.precision,
        "precision_in_force": cell.precision_in_force,
        "mode": lane.lane.mode,
        "threads": lane.lane.threads,
        "batch": cell.batch,
        "verdict": str(cell.verdict),
        "reason": cell.reason,
        "engine": cell.engine,
        "engine_reused": engine.reused["study_id"] if engine is not None and engine.reused is not None else None,
        "lane": lane.lane.id,
        "cell": cell.id,
        "started_at": record.started_at,
        "finished_at": cell.finished_at,
        **{name: info.get(name) for name in ("parameters", "paper_macs", "true_macs")},
        **cell.metrics,
    }


def typed(frame: pd.DataFrame, columns: Collection[str]) -> pd.DataFrame:
    """The documented columns that are asked for, in their order and with their types, whatever the rows had."""
    known = [name for name in ALL if name in columns]
    others = [name for name in frame.columns if name not in known]
    frame = frame.reindex(columns=[*known, *others])
    types: dict[str, str] = dict.fromkeys([*TEXT_COLUMNS, *RUN_COLUMNS], "string")
    types.update(dict.fromkeys(INTEGER_COLUMNS, "Int64"))
    types.update(dict.fromkeys([*TIME_COLUMNS, *CELL_METRICS], "float64"))
    whole: pd.DataFrame = frame.astype({name: types[name] for name in known})
    return whole
