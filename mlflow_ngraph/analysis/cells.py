"""The cells of recorded studies, and how a person names one: by its id, or by a readable address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.execute import journal

if TYPE_CHECKING:
    import pandas as pd

_ADDRESS = re.compile(
    r"(?P<label>[^/]+)/(?P<compiler>.+?)(?:/(?P<precision>fp32|tf32|bf16|fp16|\*))?(?:/b(?P<batch>\d+|\*))?"
)
_SHOWN = 8
"""Candidates that an error names."""


@dataclass(frozen=True)
class Cell:
    """A cell that was compiled, or whose compilation failed, in one study."""

    id: str
    label: str
    compiler: str
    compiler_label: str
    precision: str
    batch: int
    study: str
    study_id: str
    device: str
    verdict: str = ""
    """Empty while the cell is still being measured."""
    reason: str = ""
    precision_in_force: str = ""
    engine: Path | None = None
    """The engine's directory on this machine."""
    model_id: str = ""
    """The engine's LoggedModel on a tracking server."""
    unexplained: str = ""
    """Why the compiler could not explain the engine."""

    @property
    def address(self) -> str:
        """What names the cell within its study, as far as the study has one precision."""
        return f"{self.label}/{self.compiler_label}/b{self.batch}"

    @property
    def full_address(self) -> str:
        """As `address`, with the precision that was asked for."""
        return f"{self.label}/{self.compiler_label}/{self.precision}/b{self.batch}"


def choose(queries: Sequence[str], studies: Iterable[Sequence[Cell]]) -> list[Cell]:
    """The cells that ``queries`` name, in their order; each from the newest study that has it.

    Parameters
    ----------
    queries: a cell's id, or ``LABEL/COMPILER/bBATCH``, where ``*`` stands for any text, the batch size may be left
        out, and a precision may stand before it.
    studies: the cells of each study, newest first; read only as far as needed.

    Raises
    ------
    UsageError: no study has such a cell, or a name without ``*`` fits several.
    """
    found: dict[str, list[Cell]] = {}
    seen: list[Cell] = []
    for cells in studies:
        seen += cells
        for query in queries:
            if query not in found and (hits := _matching(query, cells)):
                found[query] = hits
        if all(query in found for query in queries):
            break
    for query in queries:
        if query not in found:
            raise UsageError(_unknown(query, seen))
    chosen = {(cell.study_id, cell.id): cell for query in queries for cell in found[query]}
    return list(chosen.values())


def _matching(query: str, cells: Sequence[Cell]) -> list[Cell]:
    """The cells of one study that a query names."""
    by_id = [cell for cell in cells if cell.id == query]
    parts = _ADDRESS.fullmatch(query)
    if by_id or parts is None:
        return by_id
    fitting = [
        cell
        for cell in cells
        if _fits(_plain(parts["label"]), _plain(cell.label))
        and _fits(parts["precision"] or "*", cell.precision)
        and _fits(parts["batch"] or "*", str(cell.batch))
    ]
    # The name with exactly these flags comes before the same compiler with any flags.
    hits = [cell for cell in fitting if _fits(parts["compiler"], cell.compiler_label)]
    hits = hits or [cell for cell in fitting if _fits(parts["compiler"], cell.compiler)]
    if "*" not in query and len(hits) > 1:
        several = len({cell.precision for cell in hits}) > 1
        names = [cell.full_address if several else cell.address for cell in hits]
        raise UsageError(f"{query} may be any of {_few(names)} of study {hits[0].study_id}: name one, or use *")
    return hits


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def _plain(label: str) -> str:
    """Labels are compared without case, hyphens, underscores and blanks, as names of the paper are everywhere."""
    return re.sub(r"[-_ ]", "", label.lower())


def _unknown(query: str, cells: Sequence[Cell]) -> str:
    names = {_plain(name): name for cell in cells for name in (cell.address, cell.id)}
    close = [names[name] for name in get_close_matches(_plain(query), names, n=3, cutoff=0.5)]
    if close:
        return f"no cell {query!r}: did you mean {' or '.join(close)}?"
    known = _few(list(dict.fromkeys(cell.address for cell in cells)))
    return f"no cell {query!r}: known: {known or 'none'}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def of_home(home: Path, study: str | None = None) -> Iterator[list[Cell]]:
    """The cells of each study in a home, newest first.

    Parameters
    ----------
    study: the name or the id of the only study to look at.
    """
    started = []
    for path in (home / "studies").glob("*"):
        first = next(journal.read(path), None) if (path / journal.FILE_NAME).is_file() else None
        if first is not None and study in (None, first["study_id"], first["study"]["name"]):
            started.append((first["at"], path))
    for _, path in sorted(started, reverse=True):
        yield of_directory(path)


def of_directory(directory: Path) -> list[Cell]:
    """The cells of a study that have an engine or a verdict.

    The journal is read as it is, without deriving metrics: that takes the time that a person waits.

    Raises
    ------
    JournalError: there is no readable journal.
    """
    study = _Study(directory)
    for event in journal.read(directory):
        step = _STEPS.get(event["event"])
        if step is not None:
            step(study, event)
    return study.cells()


class _Study:
    """What a journal says about cells, as far as a person names or explains one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._about: dict[str, str] = {}
        self._lanes: dict[str, dict[str, Any]] = {}
        self._engines: dict[tuple[str, int], Path] = {}
        self._unexplained: dict[str, str] = {}
        self._in_force: dict[str, str] = {}
        self._verdicts: dict[str, tuple[str, str]] = {}

    def started(self, event: journal.Event) -> None:
        self._about = {"study": event["study"]["name"], "study_id": event["study_id"], "device": event["device"]}
        self.continued(event)

    def continued(self, event: journal.Event) -> None:
        self._lanes.update({lane["id"]: lane for lane in event["lanes"]})

    def built(self, event: journal.Event) -> None:
        for batch in event["batch_sizes"]:
            self._engines[event["lane"], batch] = self._directory / event["directory"]

    def unexplained(self, event: journal.Event) -> None:
        self._unexplained[event["lane"]] = event["reason"]

    def ready(self, event: journal.Event) -> None:
        self._in_force[event["cell"]] = event["precision"]

    def finished(self, event: journal.Event) -> None:
        self._verdicts[event["cell"]] = event["verdict"], event["reason"]

    def cells(self) -> list[Cell]:
        return [
            self._cell(lane, batch)
            for lane in self._lanes.values()
            for batch in lane["batch_sizes"]
            if (lane["id"], batch) in self._engines or journal.cell_id(lane["id"], batch) in self._verdicts
        ]

    def _cell(self, lane: dict[str, Any], batch: int) -> Cell:
        cell_id = journal.cell_id(lane["id"], batch)
        verdict, reason = self._verdicts.get(cell_id, ("", ""))
        return Cell(
            id=cell_id,
            batch=batch,
            verdict=verdict,
            reason=reason,
            precision_in_force=self._in_force.get(cell_id, ""),
            engine=self._engines.get((lane["id"], batch)),
            unexplained=self._unexplained.get(lane["id"], ""),
            **{name: lane[name] for name in ("label", "compiler", "compiler_label", "precision")},
            **self._about,
        )


_STEPS: dict[str, Callable[[_Study, journal.Event], None]] = {
    "study_started": _Study.started,
    "session_started": _Study.continued,
    "engine_built": _Study.built,
    "engine_unexplained": _Study.unexplained,
    "cell_ready": _Study.ready,
    "cell_finished": _Study.finished,
}


def of_results(frame: pd.DataFrame) -> Iterator[list[Cell]]:
    """The cells of each study in the tidy table of a tracking server, newest first."""
    names = ("label", "compiler", "compiler_label", "precision", "study", "study_id", "device", "verdict", "reason")
    optional = ("precision_in_force", "model_id")
    newest = frame.groupby("study_id")["started_at"].max().sort_values(ascending=False, kind="stable")
    for study_id in newest.index:
        yield [
            Cell(
                id=row["cell"],
                batch=int(row["batch"]),
                **{name: row[name] for name in names},
                **{name: row[name] for name in optional},
            )
            for row in frame[frame["study_id"] == study_id].fillna(dict.fromkeys(optional, "")).to_dict("records")
        ]
