"""Cells of recorded studies, looked up by id or by a readable address."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import UsageError, few
from mlflow_ngraph.workloads.naming import base_label

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.execute.record import LaneRecord

_IN_MODEL = re.compile(r"(?P<compiler>.+?)(?:/(?P<precision>fp32|tf32|bf16|fp16|\*))?(?:/b(?P<batch>\d+|\*))?")


@dataclass(frozen=True)
class Cell:
    """A cell of one study that was compiled, or failed to compile."""

    id: str
    label: str
    workload: str
    """The canonical reference."""
    compiler: str
    compiler_label: str
    precision: str
    batch: int
    study: str
    study_id: str
    device: str
    verdict: str = ""
    """Empty during the measurement."""
    reason: str = ""
    precision_in_force: str = ""
    engine: Path | None = None
    """Directory of the engine on this machine."""
    model_id: str = ""
    """LoggedModel of the engine on a tracking server."""
    unexplained: str = ""
    """Reason that the compiler could not explain the engine."""

    @property
    def address(self) -> str:
        """Address within a study of one precision."""
        return f"{self.label}/{self.compiler_label}/b{self.batch}"

    @property
    def full_address(self) -> str:
        """As `address`, with the requested precision."""
        return f"{self.label}/{self.compiler_label}/{self.precision}/b{self.batch}"


def choose(queries: Sequence[str], studies: Iterable[Sequence[Cell]]) -> list[Cell]:
    """Find cells, in the order of ``queries``. Each comes from the newest study that has measured it, else that has it.

    A query is a cell's id, or ``MODEL/COMPILER/bBATCH``. ``*`` matches any text, the batch size is optional, and a
    precision may precede it. MODEL is a label, shared or not, or a reference. ``studies`` are the cells of each study,
    newest first, and are read only as far as needed.
    """
    matches: dict[str, list[Cell]] = {}
    unmeasured: dict[str, list[Cell]] = {}
    seen: list[Cell] = []
    for cells in studies:
        seen += cells
        for query in queries:
            if query not in matches and (hits := _matching(query, cells)):
                (matches if all(cell.verdict for cell in hits) else unmeasured).setdefault(query, hits)
        if all(query in matches for query in queries):
            break
    matches = unmeasured | matches
    for query in queries:
        if query not in matches:
            raise UsageError(_unknown(query, seen))
    chosen = {(cell.study_id, cell.id): cell for query in queries for cell in matches[query]}
    return list(chosen.values())


def _matching(query: str, cells: Sequence[Cell]) -> list[Cell]:
    by_id = [cell for cell in cells if cell.id == query]
    if by_id:
        return by_id
    hits: list[Cell] = []
    # Unique labels come before shared ones, and exact flags before any flags.
    for models, compiler in product((_names, _stem), ("compiler_label", "compiler")):
        hits = hits or [cell for cell in cells if _means(query, cell, models(cell), getattr(cell, compiler))]
    hits = list({cell.id: cell for cell in hits}.values())  # a copy of a study has its id
    if "*" not in query and len(hits) > 1:
        several = len({cell.precision for cell in hits}) > 1
        names = [shlex.quote(cell.full_address if several else cell.address) for cell in hits]
        raise UsageError(f"{query} may be any of {few(names)} of study {hits[0].study_id}: name one, or use *")
    return hits


def _names(cell: Cell) -> tuple[str, ...]:
    return (_plain(cell.label), _plain(cell.workload))


def _stem(cell: Cell) -> tuple[str, ...]:
    return (_plain(base_label(cell.label)),)


def _means(query: str, cell: Cell, models: Sequence[str], compiler: str) -> bool:
    """Tell if an address fits a cell whose model has one of these names. Names may contain slashes."""
    return any(
        _fits(_plain(query[: slash.start()]), model)
        and _fits(parts["compiler"], compiler)
        and _fits(parts["precision"] or "*", cell.precision)
        and _fits(parts["batch"] or "*", str(cell.batch))
        for slash in re.finditer("/", query)
        if (parts := _IN_MODEL.fullmatch(query, slash.end())) is not None
        for model in models
    )


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def _plain(label: str) -> str:
    """Normalise a label: case, hyphens, underscores and blanks do not count, as for all names from the paper."""
    return re.sub(r"[-_ ]", "", label.lower())


def _unknown(query: str, cells: Sequence[Cell]) -> str:
    names = {_plain(name): name for cell in cells for name in (cell.address, cell.id)}
    close = [names[name] for name in get_close_matches(_plain(query), names, n=3, cutoff=0.5)]
    if close:
        return f"no cell {query!r}: did you mean {' or '.join(close)}?"
    known = few(list(dict.fromkeys(cell.address for cell in cells)))
    return f"no cell {query!r}: known: {known or 'none'}"


def of_home(home: Path, study: str | None = None) -> Iterator[list[Cell]]:
    """Cells of each study in a home, newest first.

    ``study`` is the only one to read, as `study_directories.named` takes it; a name selects all of its studies.
    """
    from mlflow_ngraph.execute import study_directories

    alike = [known.directory for known in study_directories.begun(home) if study in (None, known.name)]
    for directory in alike or ([] if study is None else [study_directories.named(home, study)]):
        yield of_directory(directory)


def of_directory(directory: Path) -> list[Cell]:
    """Cells of a study with an engine or a verdict."""
    from mlflow_ngraph.execute import replay

    record = replay.outline(directory)
    about = {"study": record.name, "study_id": record.id, "device": record.device}
    return [
        cell
        for lane in record.lanes.values()
        for batch in lane.lane.batch_sizes
        if (cell := _recorded(directory, lane, batch, about)) is not None
    ]


def _recorded(directory: Path, lane: LaneRecord, batch: int, about: Mapping[str, str]) -> Cell | None:
    """Cell of a lane at a batch size; None without an engine and a verdict."""
    engine = lane.engine_at(batch)
    measured = lane.cells.get(batch)
    if engine is None and measured is None:
        return None
    return Cell(
        id=lane.lane.cell(batch),
        label=lane.lane.label,
        workload=lane.lane.workload,
        compiler=lane.lane.compiler,
        compiler_label=lane.lane.compiler_label,
        precision=lane.lane.precision,
        batch=batch,
        verdict=measured.verdict.value if measured is not None else "",
        reason=measured.reason if measured is not None else "",
        precision_in_force=(measured.precision_in_force or "") if measured is not None else "",
        engine=directory / engine.directory if engine is not None else None,
        unexplained=lane.unexplained,
        **about,
    )


def of_results(frame: pd.DataFrame) -> Iterator[list[Cell]]:
    """Cells of each study in a server's tidy table, newest first."""
    names = (
        "label",
        "workload",
        "compiler",
        "compiler_label",
        "precision",
        "study",
        "study_id",
        "device",
        "verdict",
        "reason",
    )
    optional = ("precision_in_force", "model_id")
    newest = frame.groupby("study_id")["started_at"].max().sort_values(ascending=False, kind="stable")
    by_study: dict[Any, list[Any]] = {}
    # To look for the rows of each study in the whole table would take the square of its length.
    wanted = frame[["cell", "batch", *names, *optional]].fillna(dict.fromkeys(optional, ""))
    for row in wanted.to_dict("records"):
        by_study.setdefault(row["study_id"], []).append(row)
    for study_id in newest.index:
        yield [
            Cell(
                id=row["cell"],
                batch=int(row["batch"]),
                **{name: row[name] for name in names},
                **{name: row[name] for name in optional},
            )
            for row in by_study[study_id]
        ]
