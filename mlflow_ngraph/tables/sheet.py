"""Tables for people, whatever shows them: Markdown is made here, `cli.tables` prints them, a report has them as HTML."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mlflow_ngraph.text import counted, harmless

Tone = Literal["", "best", "good", "bad", "warning", "heading", "faint", "command"]
_SPECIAL = re.compile(r"[\\`*<|$]|(?<!\w)_|_(?!\w)|(?<=\])(?=[(\[])|^[#>]")
"""What Markdown takes for something else than text, where it does: an underscore within a word is one."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Cell:
    """A place of a table, or a line beside one."""

    text: str
    detail: str = ""
    """Less important: an interval, or what is special about a number."""
    note: str = ""
    """Stands below the table, once for all cells that have it."""
    tone: Tone = ""

    @property
    def plain(self) -> str:
        """Text and detail in one line."""
        return f"{self.text} {self.detail}".strip()

    @classmethod
    def of(cls, value: Any) -> Cell:
        """A value as tables show it."""
        if isinstance(value, Cell):
            return value
        if value is None:
            return EMPTY
        if isinstance(value, bool):
            return cls("yes" if value else "no")
        if isinstance(value, (list, tuple)):
            return cls(", ".join(map(str, value)))
        return cls(str(value))


EMPTY = Cell("–")


@dataclass(frozen=True)
class Column:
    """How a column is headed, and how it gives way."""

    title: str
    number: bool = False
    """To the right."""
    prose: bool = False
    """Sentences, which may go on in the next line. Others hold what is copied, and stay whole."""
    spare: int = 0
    """Left out where a terminal has no room, those with the highest number first; 0 stays."""
    group: str = ""
    """Stands above it, once for neighbours of the same group."""

    @property
    def name(self) -> str:
        """Group and title in one line."""
        return f"{self.group}: {self.title}" if self.group else self.title


Head = Column | str
"""A column, or the title of one that is nothing special."""


def number(title: str, spare: int = 0, group: str = "") -> Column:
    """A column of numbers."""
    return Column(title, number=True, spare=spare, group=group)


def prose(title: str, spare: int = 0) -> Column:
    """A column of sentences."""
    return Column(title, prose=True, spare=spare)


def faint(lines: Iterable[str]) -> list[Cell]:
    """Lines that matter less."""
    return [Cell(line, tone="faint") for line in lines]


@dataclass(frozen=True)
class Sheet:
    """A table."""

    title: str
    columns: Sequence[Head]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str | Cell] = ()
    """Lines below it."""
    caption: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)
    """Short and unique in a report, such as ``t6``; names the anchor and the file."""
    data: Any = field(default=None, kw_only=True)
    """A frame with what the table shows, in full precision and one fact a column."""
    names: int = field(default=1, kw_only=True)
    """How many of the first columns name the row."""
    one: str = field(default="row", kw_only=True)
    """What a row is."""

    @property
    def heads(self) -> list[Column]:
        """The columns."""
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, with marks where something is said of a cell below the table."""
        places = {form: place for place, form in enumerate(self._notes())}
        return [
            [
                replace(cell, text=f"{cell.text} {_raised(places[_form(cell.note)])}") if cell.note else cell
                for cell in row
            ]
            for row in self._rows()
        ]

    @property
    def lines(self) -> list[Cell]:
        """What stands below the table: what is said of cells, with how many rows it is said of, then its notes.

        What differs in its numbers alone is said once, with those that come first.
        """
        said = [
            f"{_raised(place)} {notes[0]}"
            + (
                f" ({counted(len(notes), self.one)}{', with other numbers' if len({*notes}) > 1 else ''})"
                if notes[1:]
                else ""
            )
            for place, notes in enumerate(self._notes().values())
        ]
        return [*(Cell(line, tone="warning") for line in said), *map(Cell.of, self.notes)]

    def _rows(self) -> list[list[Cell]]:
        return [list(map(Cell.of, row)) for row in self.rows]

    def _notes(self) -> dict[str, list[str]]:
        """What is said of cells, by its form."""
        notes: dict[str, list[str]] = {}
        for cell in (cell for row in self._rows() for cell in row if cell.note):
            notes.setdefault(_form(cell.note), []).append(cell.note)
        return notes


Part = Sheet | Cell | str
"""Of what is shown: a table, or a line."""


def first(sheet: Sheet, count: int, elsewhere: str) -> Sheet:
    """The first rows of a table, with a note that says where the others are."""
    more = len(sheet.rows) - count
    if more <= 0:
        return sheet
    return replace(sheet, rows=sheet.rows[:count], notes=[*sheet.notes, f"{counted(more, 'more row')} {elsewhere}."])


def fitting(sheet: Sheet, limit: int, elsewhere: str) -> str:
    """A table in Markdown of at most so many characters, with as many rows as fit."""

    def text(count: int) -> str:
        return markdown(first(sheet, count, elsewhere))

    every = len(sheet.rows)
    whole = text(every)
    if len(whole) <= limit:
        return whole
    return text(bisect_right(range(every), limit, key=lambda count: len(text(count + 1))))


def markdown(*parts: Part) -> str:
    """Tables and lines in Markdown."""
    return "\n\n".join("\n".join(_of_sheet(part) if isinstance(part, Sheet) else _of_line(part)) for part in parts)


def grid(sheet: Sheet) -> Iterator[str]:
    """The lines of a table alone, with details behind their numbers."""
    yield _row(escaped(column.name) for column in sheet.heads)
    yield _row("--:" if column.number else ":--" for column in sheet.heads)
    for row in sheet.cells:
        yield _row(map(_worded, row))


def escaped(text: str) -> str:
    """Text that stays text in one line of Markdown."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", harmless(" ".join(text.split())))


def _of_sheet(sheet: Sheet) -> Iterator[str]:
    if sheet.title:
        yield from (f"### {escaped(sheet.title)}", "")
    if sheet.rows:
        yield from grid(sheet)
    if sheet.rows and sheet.lines:
        yield ""
    for line in sheet.lines:
        yield f"- {_worded(line)}"


def _of_line(line: Cell | str) -> Iterator[str]:
    cell = Cell.of(line)
    if cell.tone == "command":
        yield from ("```console", cell.text, "```")
    else:
        yield _worded(cell)


def _worded(cell: Cell) -> str:
    text = escaped(cell.plain)
    return f"**{text}**" if cell.tone in ("best", "heading") and text else text


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _form(note: str) -> str:
    """A note without its numbers."""
    return _NUMBER.sub("0", note)


def _raised(place: int) -> str:
    return str(place + 1).translate(_RAISED)
