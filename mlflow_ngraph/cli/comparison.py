"""A comparison as a person or a program reads it: table, Markdown, CSV, JSON, LaTeX."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mlflow_ngraph.analysis.summary import fallback_note
from mlflow_ngraph.cli import output
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

BEST, TIED = "*", "≈"
_GAP = 2
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≈": r"$\approx$",
}  # fmt: skip


def show(table: pd.DataFrame, intervals: bool) -> None:
    """Print a comparison, in as many tables beneath each other as the terminal's width asks for."""
    console = output.console()
    flat, spanned = _flat(_texts(table, intervals)), table.index.nlevels
    for names in _blocks(flat, spanned, console.width):
        part = flat[names]
        titles = [(str(name), {} if index < spanned else output.RIGHT) for index, name in enumerate(names)]
        console.print(output.table(titles, [[str(value) for value in row] for row in part.itertuples(index=False)]))
        console.print()
    for line in _notes(table):
        console.print(line, style="dim")


def text(table: pd.DataFrame, form: str, intervals: bool) -> str:
    """A comparison in a format that other programs read."""
    if form == "json":
        told = {str(key): value for key, value in table.attrs.items()}
        return json.dumps(output.finite(told), indent=2, ensure_ascii=False, default=str) + "\n"
    if form == "csv":
        return str(_flat(table).to_csv(index=False))
    if form == "latex":
        return _latex(table, intervals)
    if form == "markdown":
        return _markdown(_flat(_texts(table, intervals))) + "\n"
    stream = io.StringIO()
    console = Console(file=stream, width=10_000, highlight=False)
    flat, spanned = _flat(_texts(table, intervals)), table.index.nlevels
    titles = [(str(name), {} if index < spanned else output.RIGHT) for index, name in enumerate(flat.columns)]
    console.print(output.table(titles, [[str(value) for value in row] for row in flat.itertuples(index=False)]))
    return "\n".join([stream.getvalue(), *_notes(table)]) + "\n"


def long(table: pd.DataFrame) -> pd.DataFrame:
    """One row a number, with its interval, its verdict and what else is told about it."""
    import pandas as pd

    about = {name: table.attrs[name] for name in ("metric", "unit", "relative_to")}
    rows: pd.DataFrame = pd.DataFrame([{**value, **about} for value in table.attrs["values"]])
    return rows


def _notes(table: pd.DataFrame) -> Iterator[str]:
    """What a reader has to know about the whole table."""
    attrs = table.attrs
    unit = "" if attrs["unit"] == "1" else f" in {attrs['unit']}"
    relative = f" relative to {attrs['relative_to']}" if attrs["relative_to"] else ""
    left_out = "".join(f", {count} {verdict}" for verdict, count in attrs["left_out"].items())
    note = f"; left out{left_out[1:]} (--include or --all shows them)" if left_out else ""
    without = f"; {attrs['without_baseline']} have no baseline" if attrs["without_baseline"] else ""
    yield f"{attrs['metric']}{relative}{unit} of {attrs['cells']} cells{note}{without}"
    in_force = _precisions(table)
    if len(in_force) == 1:
        yield f"precision in force: {in_force.pop()}"
    if any(found["tied"] for found in attrs["values"]):
        than = "1" if attrs["relative_to"] else f"the best of its row ({BEST})"
        yield f"{TIED} cannot be told from {than}: see docs/method.md"


def _blocks(flat: pd.DataFrame, spanned: int, width: int) -> Iterator[list[str]]:
    """The columns that fit beside each other, each time after those that name the rows."""
    sizes = {name: max([len(str(name)), *map(len, map(str, flat[name]))]) + _GAP for name in flat.columns}
    heads, others = list(flat.columns[:spanned]), list(flat.columns[spanned:])
    room = width - sum(sizes[name] for name in heads)
    block: list[str] = []
    for name in others:
        if block and sum(sizes[one] for one in block) + sizes[name] > room + _GAP:
            yield [*heads, *block]
            block = []
        block.append(name)
    yield [*heads, *block]


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Row names as ordinary columns, and one line of column names."""
    flat = table.copy()
    flat.columns = [" ".join(names.values()) for names in _names(table.columns)]
    flat_rows: pd.DataFrame = flat.reset_index()
    return flat_rows


def _texts(table: pd.DataFrame, intervals: bool) -> pd.DataFrame:
    """The numbers as text, each with what makes it different: its precision, its verdict, nodes that fell back."""
    several = len(_precisions(table)) > 1
    return _filled(table, lambda found: _text(found, several, intervals))


def _filled(table: pd.DataFrame, shown: Any) -> pd.DataFrame:
    """The pivot with ``shown`` of what is told about each number."""
    order = [str(name) for name in (*table.index.names, *table.columns.names)]
    by_place = {tuple(found[name] for name in order): shown(found) for found in table.attrs["values"]}
    columns = [tuple(names.values()) for names in _names(table.columns)]
    texts: pd.DataFrame = table.astype(object)
    for index, names in enumerate(_names(table.index)):
        texts.iloc[index] = [by_place.get((*names.values(), *column), "") for column in columns]
    return texts


def _text(found: dict[str, Any], several_precisions: bool, intervals: bool) -> str:
    verdict = "" if found["verdict"] == str(Verdict.OK) else found["verdict"]
    notes = ", ".join(filter(None, (verdict, fallback_note(found["fallback_nodes"]))))
    precision = f" {found['precision_in_force']}" if several_precisions and found["precision_in_force"] else ""
    interval = f" {_interval(found)}" if intervals and found["ci_low"] is not None else ""
    mark = f" {BEST}" if found["best"] else f" {TIED}" if found["tied"] else ""
    return f"{found['value']:.4g}{interval}{precision}" + (f" ({notes})" if notes else "") + mark


def _interval(found: dict[str, Any]) -> str:
    return f"[{found['ci_low']:.4g}, {found['ci_high']:.4g}]"


def _precisions(table: pd.DataFrame) -> set[str]:
    """The precisions that the shown cells computed in."""
    return {found["precision_in_force"] for found in table.attrs["values"] if found["precision_in_force"]}


def _names(index: pd.Index[Any]) -> list[dict[str, str]]:
    """What stands at each place of an axis, by the name of the column it came from."""
    frame = index.to_frame(index=False)
    return [{str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _markdown(flat: pd.DataFrame) -> str:
    lines = [list(map(str, flat.columns)), ["---"] * len(flat.columns)]
    lines += [[str(value) for value in row] for row in flat.itertuples(index=False)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _latex(table: pd.DataFrame, intervals: bool) -> str:
    """A table for the package booktabs: the names of each level in a line, the best of a row in bold."""
    spanned, levels = table.index.nlevels, table.columns.nlevels
    several = len(_precisions(table)) > 1
    texts = _filled(table, lambda found: _latex_number(found, several, intervals))
    lines = [rf"\begin{{tabular}}{{{'l' * spanned}{'r' * table.shape[1]}}}", r"\toprule"]
    names = _names(table.columns)
    for level in range(levels):
        heads = [str(name) for name in table.index.names] if level == levels - 1 else [""] * spanned
        titles = [list(name.values())[level] for name in names]
        if level < levels - 1:
            lines.append(_line([*map(_escaped, heads), *_grouped(titles)]))
            lines += [" ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in _spans(titles, spanned))]
        else:
            lines.append(_line(map(_escaped, [*heads, *titles])))
    lines.append(r"\midrule")
    for index, row in zip(_names(table.index), texts.itertuples(index=False), strict=True):
        lines.append(_line([*map(_escaped, index.values()), *map(str, row)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(cells: Any) -> str:
    return " & ".join(cells) + r" \\"


def _runs(titles: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Equal titles beside each other, and how many they are."""
    count = 0
    for place, title in enumerate(titles):
        count += 1
        if place + 1 == len(titles) or titles[place + 1] != title:
            yield title, count
            count = 0


def _grouped(titles: Sequence[str]) -> list[str]:
    return [rf"\multicolumn{{{count}}}{{c}}{{{_escaped(title)}}}" for title, count in _runs(titles)]


def _spans(titles: Sequence[str], before: int) -> Iterator[tuple[int, int]]:
    place = before + 1
    for _, count in _runs(titles):
        yield place, place + count - 1
        place += count


def _latex_number(found: dict[str, Any], several_precisions: bool, intervals: bool) -> str:
    bare = _escaped(_text({**found, "best": False}, several_precisions, intervals))
    return rf"\textbf{{{bare}}}" if found["best"] else bare


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
