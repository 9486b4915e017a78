"""Tables for people. Markdown is rendered here, terminal text in `cli.tables`, HTML in the report."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mlflow_ngraph.text import counted, harmless

Tone = Literal["", "best", "good", "bad", "warning", "heading", "faint", "command"]
_SPECIAL = re.compile(r"[\\`*<|$]|(?<!\w)_|_(?!\w)|(?<=\])(?=[(\[])|^[#>]")
"""Characters with a meaning in Markdown. An underscore within a word has none."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Cell:
    """A cell of a table, or a line above or below one."""

    text: str
    detail: str = ""
    """Secondary text, such as an interval."""
    note: str = ""
    """Footnote; equal footnotes appear once."""
    tone: Tone = ""

    @property
    def plain(self) -> str:
        return f"{self.text} {self.detail}".strip()

    @classmethod
    def of(cls, value: Any) -> Cell:
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
    """A column's title and layout."""

    title: str
    number: bool = False
    """Align right."""
    prose: bool = False
    """Sentences, which may wrap. Other columns hold text to copy and do not wrap."""
    spare: int = 0
    """Order of removal in a narrow terminal, highest first; 0 is never removed."""
    group: str = ""
    """Heading above neighbouring columns of the same group."""

    @property
    def name(self) -> str:
        return f"{self.group}: {self.title}" if self.group else self.title


Head = Column | str
"""A column, or the title of a plain one."""


def number(title: str, spare: int = 0, group: str = "") -> Column:
    """Numeric column."""
    return Column(title, number=True, spare=spare, group=group)


def prose(title: str, spare: int = 0) -> Column:
    """Column of sentences."""
    return Column(title, prose=True, spare=spare)


def faint(lines: Iterable[str]) -> list[Cell]:
    """Lines of less importance."""
    return [Cell(line, tone="faint") for line in lines]


@dataclass(frozen=True)
class Sheet:
    """A table."""

    title: str
    columns: Sequence[Head]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str | Cell] = ()
    """Lines below the table."""
    caption: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)
    """Short unique name in a report, such as ``t6``; used for the anchor and the file."""
    data: Any = field(default=None, kw_only=True)
    """The same facts in full precision, one per column."""
    names: int = field(default=1, kw_only=True)
    """Number of leading columns that name the row."""
    one: str = field(default="row", kw_only=True)
    """Singular noun for a row."""

    @property
    def heads(self) -> list[Column]:
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    @property
    def cells(self) -> list[list[Cell]]:
        """Rows with footnote marks."""
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
        """Footnotes with their number of rows, then the notes.

        Footnotes that differ only in numbers are merged into the first one.
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
        """Footnotes by their text without numbers."""
        notes: dict[str, list[str]] = {}
        for cell in (cell for row in self._rows() for cell in row if cell.note):
            notes.setdefault(_form(cell.note), []).append(cell.note)
        return notes


Part = Sheet | Cell | str
"""A table or a line."""


def first(sheet: Sheet, count: int, elsewhere: str) -> Sheet:
    """Keep the first rows, and add a note about the others."""
    more = len(sheet.rows) - count
    if more <= 0:
        return sheet
    return replace(sheet, rows=sheet.rows[:count], notes=[*sheet.notes, f"{counted(more, 'more row')} {elsewhere}."])


def fitting(sheet: Sheet, limit: int, elsewhere: str) -> str:
    """Markdown with as many rows as fit in a number of characters."""

    def text(count: int) -> str:
        return markdown(first(sheet, count, elsewhere))

    every = len(sheet.rows)
    whole = text(every)
    if len(whole) <= limit:
        return whole
    return text(bisect_right(range(every), limit, key=lambda count: len(text(count + 1))))


def markdown(*parts: Part) -> str:
    """Render tables and lines as Markdown."""
    return "\n\n".join("\n".join(_of_sheet(part) if isinstance(part, Sheet) else _of_line(part)) for part in parts)


def grid(sheet: Sheet) -> Iterator[str]:
    """Render the table alone, with details next to their numbers."""
    yield _row(escaped(column.name) for column in sheet.heads)
    yield _row("--:" if column.number else ":--" for column in sheet.heads)
    for row in sheet.cells:
        yield _row(map(_worded, row))


def escaped(text: str) -> str:
    """Escape text for one line of Markdown."""
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
    return _NUMBER.sub("0", note)


def _raised(place: int) -> str:
    return str(place + 1).translate(_RAISED)
