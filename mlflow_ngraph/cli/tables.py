"""Tables that cut nothing: what is too wide for a terminal loses columns that matter less, or becomes records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlflow_ngraph.text import counted, harmless

Column = str | tuple[str, dict[str, Any]]
"""The title of a column, or the title with options: those of rich, and what `spare` adds."""
RIGHT: dict[str, Any] = {"justify": "right"}
PROSE: dict[str, Any] = {"overflow": "fold"}
"""Of a column with sentences: it may go on in the next line. Others hold what is copied, and stay whole."""


def spare(rank: int, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Options of a column that is left out where there is no room, those with the highest rank first."""
    return {**(options or {}), "spare": rank}


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Footnotes:
    """What is said of rows of a table below it, each thing once."""

    def __init__(self) -> None:
        self._said: Counter[str] = Counter()

    def marked(self, text: str, said: str) -> str:
        """A cell with the mark of what is said of its row; as it is where nothing is."""
        if not said:
            return text
        self._said[said] += 1
        return f"{text} {_raised(list(self._said).index(said))}"

    def lines(self, one: str = "row") -> Iterator[str]:
        """What is said, with how many rows it is said of where these are several.

        Parameters
        ----------
        one : str
            What a row is.
        """
        for place, (said, count) in enumerate(self._said.items()):
            yield f"{_raised(place)} {said}" + (f" ({counted(count, one)})" if count > 1 else "")


def _raised(place: int) -> str:
    return str(place + 1).translate(_RAISED)


_GAP = 2
_NARROWEST_PROSE = 24


def show(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, or where it does not fit one record beneath the other.

    Where columns were left out, a line says which.
    """
    titles = [column if isinstance(column, str) else column[0] for column in columns]
    options = [{} if isinstance(column, str) else dict(column[1]) for column in columns]
    spares = {place: option.pop("spare") for place, option in enumerate(options) if "spare" in option}
    titles = list(map(harmless, titles))
    texts = [[cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in row] for row in rows]
    places, left_out = list(range(len(columns))), []
    while (widths := _widths(console.width, titles, options, texts, places)) is None:
        known = [place for place in places if place in spares]
        if not known:
            _records(console, titles, options, texts)
            return
        left_out.append(max(known, key=lambda place: (spares[place], place)))
        places.remove(left_out[-1])
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for place, width in zip(places, widths, strict=True):
        whole = "overflow" not in options[place]
        table.add_column(Text(titles[place], no_wrap=False), width=width, no_wrap=whole, **options[place])
    for row in texts:
        table.add_row(*(row[place] for place in places))
    console.print(table)
    if left_out:
        names = ", ".join(titles[place] for place in sorted(left_out))
        console.print(f"no room for {names}: --json or a wider terminal shows all", style="dim")


def _widths(
    room: int,
    titles: Sequence[str],
    options: Sequence[dict[str, Any]],
    texts: Sequence[Sequence[Text]],
    places: Sequence[int],
) -> list[int] | None:
    """How wide the columns are, with titles in one line if there is room for that; None where there is none at all."""
    room -= _GAP * (len(places) - 1)
    held = [_longest([line for row in texts for line in row[place].plain.splitlines()]) for place in places]
    prose = ["overflow" in options[place] for place in places]
    least = [
        min(content, max(_NARROWEST_PROSE, _longest([word for row in texts for word in row[place].plain.split()])))
        if folds
        else content
        for place, content, folds in zip(places, held, prose, strict=True)
    ]
    for heads in ([[titles[place]] for place in places], [titles[place].split() for place in places]):
        widths = [max(content, _longest(head)) for content, head in zip(least, heads, strict=True)]
        if sum(widths) <= room:
            return _spread(widths, [max(pair) for pair in zip(held, widths, strict=True)], room)
    return None


def _spread(widths: list[int], wanted: list[int], room: int) -> list[int]:
    """What is left of the room goes to the columns that want more; those that want least get all of it."""
    spread = list(widths)
    wanting = sorted((place for place in range(len(widths)) if wanted[place] > widths[place]), key=wanted.__getitem__)
    for number, place in enumerate(wanting):
        share = (room - sum(spread)) // (len(wanting) - number)
        spread[place] += min(share, wanted[place] - spread[place])
    return spread


def _longest(parts: Sequence[str]) -> int:
    return max(map(cell_len, parts), default=0)


def _records(
    console: Console, titles: Sequence[str], options: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[Text]]
) -> None:
    """One record beneath the other, a line for everything that a record has.

    Sentences go on in the next line; of what is copied the terminal itself breaks what is too long.
    """
    width = _longest(titles) + _GAP
    for number, row in enumerate(texts):
        if number:
            console.print()
        for title, option, text in zip(titles, options, row, strict=True):
            folds = "overflow" in option and console.width > width
            lines = text.wrap(console, console.width - width) if folds else [text]
            for place, line in enumerate(lines if text.plain else ()):
                head = (title if place == 0 else "").ljust(width)
                console.print(Text.assemble((head, "bold"), line), soft_wrap=True)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return harmless(", ".join(map(str, value)))
    return "\n".join(map(harmless, str(value).split("\n")))
