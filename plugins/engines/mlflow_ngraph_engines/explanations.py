"""Compilers' explanations of recorded cells, from this machine or from a tracking server."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_ngraph.analysis import cells as recorded
from mlflow_ngraph.analysis.cells import Cell
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.compilers.explanation import Explanation, file_name
from mlflow_ngraph.engines import trust
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY
from mlflow_ngraph.errors import NGraphError, UsageError
from mlflow_ngraph.tracking import connection, download
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.trusted import trusted_manifest

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Explained:
    """A cell with its explanation, or the reason for having none."""

    cell: Cell
    explanation: Explanation | None
    problem: str = ""
    """Reason that there is no explanation; empty where there is one."""
    elsewhere: tuple[str, ...] = ()
    """Other studies that have the cell, newest first."""


def explain_local(queries: Sequence[str], home: Path, study: str | None = None) -> list[Explained]:
    """Read the explanations of cells that were measured on this machine.

    ``queries`` are as in `cells.choose`, and ``study`` is the name or id of the only study to read. Raises `UsageError`
    if there is no such study or cell, or a name fits several.
    """
    studies = list(recorded.of_home(home, study))
    if not studies:
        raise UsageError(f"no study{f' {study!r}' if study else ''} in {home}: check --home, or give --tracking-uri")
    return [_placed(_local(cell), studies) for cell in recorded.choose(queries, studies)]


def explain_recorded(
    queries: Sequence[str],
    tracking_uri: str | None = None,
    experiments: Sequence[str] | None = None,
    *,
    run: str | None = None,
    study: str | None = None,
    home: Path | None = None,
) -> list[Explained]:
    """Read the explanations of cells from a tracking server, where the trust rules allow it. Engines are not downloaded.

    ``queries`` are as in `cells.choose`, servers and experiments as in `results.load`. ``run`` is a study run or lane
    run to read alone, ``study`` the name or id of the only study to read, and ``home`` the folder of the trust rules.
    Raises `UsageError` if there is no such cell or a name fits several, `EngineError` if an engine is not trusted or
    its explanation is not what was logged, and `TrackingError` if the server cannot be reached or refuses.
    """
    from mlflow_ngraph.analysis import listing, results, scope

    uri, rules = connection.resolve_uri(tracking_uri), trust.load(home=home)
    trust.require_source(uri, rules)
    found = listing.find(uri, experiments, run)
    if study:
        named = {
            at: [one for one in runs if study in (one.tags.get(Tag.STUDY), one.tags.get(Tag.STUDY_ID))]
            for at, runs in found.runs.items()
        }
        found = replace(found, runs=named)
    frame = results.select(Selection(), found=found if experiments or run else scope.recorded_to_last(found))
    for note in found.notes:
        _log.warning("%s", note)
    if frame.empty:
        raise UsageError("nothing is recorded there: check --experiment, --run and --study")
    studies = list(recorded.of_results(frame))
    chosen = recorded.choose(queries, studies)
    with (
        connection.talking(uri, "read explanations", connection.RECORDING),
        tempfile.TemporaryDirectory() as directory,
    ):
        return [_placed(_downloaded(cell, uri, rules, Path(directory)), studies) for cell in chosen]


def _placed(explained: Explained, studies: Sequence[Sequence[Cell]]) -> Explained:
    cell = explained.cell
    alike = [other.study_id for cells in studies for other in cells if other.id == cell.id]
    return replace(explained, elsewhere=tuple(study for study in alike if study != cell.study_id))


def _local(cell: Cell) -> Explained:
    if cell.engine is None:
        return _never_built(cell)
    path = cell.engine / file_name(cell.batch)
    if path.is_file():
        return _read(cell, path)
    if cell.unexplained:
        return Explained(cell, None, f"{cell.compiler} could not explain its engine: {cell.unexplained}")
    if not cell.engine.is_dir():
        return Explained(cell, None, f"its engine is gone from {cell.engine}: measure it again")
    return Explained(cell, None, f"{cell.engine} has no {path.name}: measure it again")


def _downloaded(cell: Cell, uri: str, rules: trust.Rules, directory: Path) -> Explained:
    if not cell.model_id:
        return _never_built(cell)
    remote = download.of_id(cell.model_id, uri)
    manifest = trusted_manifest(remote, rules).manifest
    name = f"{ENGINE_DIRECTORY}/{file_name(cell.batch)}"
    if name not in manifest.files:
        return Explained(cell, None, f"LoggedModel {cell.model_id} has no {name}: {cell.compiler} could not explain it")
    target = directory / cell.id
    download.files(remote, manifest, [name], target)
    return _read(cell, target / name)


def _read(cell: Cell, path: Path) -> Explained:
    try:
        return Explained(cell, Explanation.read(path))
    except NGraphError as error:
        return Explained(cell, None, str(error))


def _never_built(cell: Cell) -> Explained:
    return Explained(cell, None, f"there is no engine: {cell.verdict}{f': {cell.reason}' if cell.reason else ''}")
