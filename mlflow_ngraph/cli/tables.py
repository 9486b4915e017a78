"""Print tables on a terminal uncut: too wide ones lose spare columns, break words, or become records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlflow_ngraph.tables.sheet import EMPTY, Cell, Column, Part, Sheet, Tone
from mlflow_ngraph.text import harmless

_STYLES: dict[Tone, str] = {
    "": "", "best": "bold green", "good": "green", "bad": "red", "warning": "yellow", "heading": "bold", "faint": "dim",
    "command": "green",
}  # fmt: skip
_CLOSE = re.compile(r",(?=[A-Za-z_])")
_GAP = 2
_NARROWEST_PROSE = 24
_FEW_ROWS = 3
"""Records that are as easy to read as a table; more are worth a table that breaks paths in sentences."""


def show(console: Console, *parts: Part) -> None:
    """Print tables and lines, with an empty line around each table."""
    for place, part in enumerate(parts):
        if place and (isinstance(part, Sheet) or isinstance(parts[place - 1], Sheet)):
            console.print()
        if isinstance(part, Sheet):
            _sheet(console, part)
        else:
            _line(console, Cell.of(part))


def _sheet(console: Console, sheet: Sheet) -> None:
    if sheet.title:
        _line(console, Cell(sheet.title, tone="heading"))
    if sheet.rows:
        _table(console, sheet)
    if sheet.rows and sheet.lines:
        console.print()
    for line in sheet.lines:
        _line(console, line)


def _line(console: Console, line: Cell) -> None:
    # A command has to stay in one piece, so that it can be copied.
    command = line.tone == "command" or "mlflow-ngraph " in line.text
    console.print(line.plain, style=_STYLES[line.tone], soft_wrap=command)


def _table(console: Console, sheet: Sheet) -> None:
    """One table, or where it does not fit one record beneath the other.

    A line names columns that were left out.
    """
    columns = sheet.heads
    titles = [harmless(column.name) for column in columns]
    texts = [[_text(cell) for cell in row] for row in sheet.cells]
    places, left_out, breaking = list(range(len(columns))), [], False
    empty = {place for place in places if all(row[place].plain in ("", EMPTY.text) for row in texts)}
    while (widths := _widths(console.width, titles, columns, texts, places, breaking)) is None:
        known = [place for place in places if columns[place].spare]
        if not known and not breaking and len(texts) > _FEW_ROWS:
            breaking = True
            continue
        if not known:
            _records(console, titles, columns, texts)
            return
        left_out.append(max(known, key=lambda place: (place in empty, columns[place].spare, place)))
        places.remove(left_out[-1])
    if breaking:
        texts = [[_loosened(text, column) for text, column in zip(row, columns, strict=True)] for row in texts]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_header=any(titles))
    for place, width in zip(places, widths, strict=True):
        column = columns[place]
        table.add_column(
            Text(titles[place], no_wrap=False),
            width=width,
            justify="right" if column.number else "left",
            no_wrap=not column.prose,
            overflow="fold" if column.prose else "ellipsis",
        )
    for row in texts:
        table.add_row(*(row[place] for place in places))
    console.print(table)
    if names := ", ".join(titles[place] for place in sorted(left_out) if place not in empty):
        console.print(f"no room for {names}: --json or a wider terminal shows all", style="dim")


def _text(cell: Cell) -> Text:
    return Text("\n".join(map(harmless, cell.plain.split("\n"))), style=_STYLES[cell.tone])


def _loosened(text: Text, column: Column) -> Text:
    """Text whose lists without blanks, such as the flags of a compiler, break after a comma and not within a word."""
    return Text(_CLOSE.sub(", ", text.plain), style=text.style) if column.prose else text


def _widths(
    room: int,
    titles: Sequence[str],
    columns: Sequence[Column],
    texts: Sequence[Sequence[Text]],
    places: Sequence[int],
    breaking: bool,
) -> list[int] | None:
    """Widths of the columns, with titles in one line where that fits; None where the table does not fit.

    ``breaking`` lets words of sentences go on in the next line.
    """
    room -= _GAP * (len(places) - 1)
    held = [_longest([line for row in texts for line in row[place].plain.splitlines()]) for place in places]
    least = [
        min(content, max(_NARROWEST_PROSE, 0 if breaking else _longest_word(texts, place)))
        if columns[place].prose
        else content
        for place, content in zip(places, held, strict=True)
    ]
    for heads in ([[titles[place]] for place in places], [titles[place].split() for place in places]):
        widths = [max(content, _longest(head)) for content, head in zip(least, heads, strict=True)]
        if sum(widths) <= room:
            return _spread(widths, [max(pair) for pair in zip(held, widths, strict=True)], room)
    return None


def _spread(widths: list[int], wanted: list[int], room: int) -> list[int]:
    """Share the spare width among the columns that want more; those that want least get all of it."""
    spread = list(widths)
    wanting = sorted((place for place in range(len(widths)) if wanted[place] > widths[place]), key=wanted.__getitem__)
    for number, place in enumerate(wanting):
        share = (room - sum(spread)) // (len(wanting) - number)
        spread[place] += min(share, wanted[place] - spread[place])
    return spread


def _longest_word(texts: Sequence[Sequence[Text]], place: int) -> int:
    return _longest([word for row in texts for word in row[place].plain.split()])


def _longest(parts: Sequence[str]) -> int:
    return max(map(cell_len, parts), default=0)


def _records(
    console: Console, titles: Sequence[str], columns: Sequence[Column], texts: Sequence[Sequence[Text]]
) -> None:
    """One record beneath the other, a line for everything that a record has.

    Wrap sentences; values to be copied are left to the terminal.
    """
    width = _longest(titles) + _GAP
    for number, row in enumerate(texts):
        if number:
            console.print()
        for title, column, text in zip(titles, columns, row, strict=True):
            folds = column.prose and console.width > width
            lines = text.wrap(console, console.width - width) if folds else [text]
            for place, line in enumerate(lines if text.plain else ()):
                head = (title if place == 0 else "").ljust(width)
                console.print(Text.assemble((head, "bold"), line), soft_wrap=True)
