"""Renderers of a comparison: table, Markdown, CSV, JSON, LaTeX."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.cli import output, tables, writing
from mlflow_ngraph.metrics import metric_title
from mlflow_ngraph.tables.remarks import environment_warning, fallback_note
from mlflow_ngraph.tables.sheet import Column, Sheet, faint, markdown
from mlflow_ngraph.text import NO_INTERVAL, UNSTEADY_MARK, csv_cell, harmless, rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.pivot import Pivot

BEST, TIED = "*", "≈"
_GAP = 2
_NAMED = ("label", "workload", "device", "compiler_label", "precision", "mode")
"""Columns whose values need no name."""
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≈": r"$\approx$",
}  # fmt: skip


def show(pivot: Pivot, intervals: bool) -> None:
    """Print a comparison, in as many tables beneath each other as the terminal's width asks for."""
    console = output.console()
    whole = _sheet(pivot, intervals)
    tables.show(console, *_narrow(whole, len(pivot.rows), console.width), *faint(_notes(pivot)))


def text(pivot: Pivot, form: str, intervals: bool) -> str:
    """A comparison in a format that other programs read."""
    if form == "json":
        return output.json_text(pivot.about)
    if form == "csv":
        return _csv(pivot)
    if form == "latex":
        return _latex(pivot, intervals)
    sheet = _sheet(pivot, intervals)
    return f"{markdown(sheet)}\n" if form == "markdown" else writing.printed(sheet, *_notes(pivot))


def long(pivot: Pivot) -> pd.DataFrame:
    """One row a number, with its interval, verdict and remarks."""
    import pandas as pd

    about = {name: pivot.about[name] for name in ("metric", "unit", "baseline", "relative_to")}
    rows: pd.DataFrame = pd.DataFrame(
        [{**value, **about, "which": ", ".join(_which(value))} for value in pivot.about["values"]]
    )
    return rows


def _notes(pivot: Pivot) -> Iterator[str]:
    about = pivot.about
    unit = "" if about["unit"] == "1" else f" in {about['unit']}"
    relative = f" relative to {about['relative_to']}" if about["relative_to"] else ""
    left_out = "".join(f", {count} {verdict}" for verdict, count in about["left_out"].items())
    note = f"; left out{left_out[1:]} (--include or --all shows them)" if left_out else ""
    without = f"; {about['without_baseline']} have no baseline" if about["without_baseline"] else ""
    without += f"; {about['without_value']} have no value" if about["without_value"] else ""
    yield f"{metric_title(about['metric'], about['baseline'])}{relative}{unit} of {about['cells']} cells{note}{without}"
    if about["added"]:
        names = ", ".join(about["added"])
        yield f"added to the rows, to tell cells apart: {names} (--best COLUMN,... shows the best alone)"
    for old, new in about["refined"].items():
        yield f"{new} stands for {old}, to tell cells apart"
    in_force = _precisions(pivot)
    if len(in_force) == 1:
        yield f"precision in force: {in_force.pop()}"
    reasons = Counter(number["noise"] for number in about["values"] if number["unsteady"] and number["noise"])
    if reasons:
        yield f"{UNSTEADY_MARK} unsteady, because the machine was not quiet: {reasons.most_common(1)[0][0]}"
    if about["quieter"]:
        yield about["quieter"]
    for setting in dict.fromkeys(number["variables"] for number in about["values"] if number["variables"]):
        yield environment_warning(setting)
    if any(number["log_se"] is not None and number["ci_low"] is None for number in about["values"]):
        yield f"a figure may have {NO_INTERVAL}"
    marks = [f"{BEST} best of its row"] if any(number["best"] for number in about["values"]) else []
    if any(number["tied"] for number in about["values"]):
        than = "1" if about["relative_to"] else "it"
        marks.append(f"{TIED} cannot be told from {than}: see docs/explanation/comparing.md")
    if marks:
        yield "; ".join(marks)


def _narrow(sheet: Sheet, spanned: int, width: int) -> Iterator[Sheet]:
    """Tables of the columns that fit the width, each with those that name the rows."""
    for places in _blocks(sheet, spanned, width):
        columns = [sheet.columns[place] for place in places]
        yield replace(sheet, columns=columns, rows=[[row[place] for place in places] for row in sheet.rows])


def _blocks(sheet: Sheet, spanned: int, width: int) -> Iterator[list[int]]:
    heads = [column.title for column in sheet.heads]
    sizes = [max([len(head), *(len(row[place]) for row in sheet.rows)]) + _GAP for place, head in enumerate(heads)]
    named = list(range(spanned))
    room = width - sum(sizes[:spanned])
    block: list[int] = []
    for place in range(spanned, len(heads)):
        if block and sum(sizes[column] for column in block) + sizes[place] > room + _GAP:
            yield [*named, *block]
            block = []
        block.append(place)
    yield [*named, *block]


def _heads(pivot: Pivot) -> list[str]:
    """One line of names: of the rows' columns, then of the others."""
    return [*pivot.rows, *(" ".join(key) for key in pivot.column_keys)]


def _sheet(pivot: Pivot, intervals: bool) -> Sheet:
    """Numbers as text, each with its remarks: precision, verdict, nodes that fell back."""
    several, named = len(_precisions(pivot)) > 1, len(pivot.rows)
    cells = pivot.cells(lambda number: _text(number, several, intervals), "")
    # Notes behind a number go on in the next line where there is little room.
    columns = [Column(head, number=place >= named, prose=place >= named) for place, head in enumerate(_heads(pivot))]
    return Sheet("", columns, [[*key, *line] for key, line in zip(pivot.row_keys, cells, strict=True)])


def _text(number: dict[str, Any], several_precisions: bool, intervals: bool) -> str:
    verdict = "" if number["verdict"] == str(Verdict.OK) else number["verdict"]
    notes = ", ".join(filter(None, (*_which(number), verdict, fallback_note(number["fallback_nodes"]))))
    precision = f" {number['precision_in_force']}" if several_precisions and number["precision_in_force"] else ""
    known = number["ci_low"] is not None and number["ci_low"] != number["ci_high"]  # a baseline over itself is exact
    interval = f" {_interval(number)}" if intervals and known else ""
    mark = f" {BEST}" if number["best"] else f" {TIED}" if number["tied"] else ""
    unsteady = UNSTEADY_MARK if number["unsteady"] else ""
    return f"{unsteady}{rounded(number['value'])}{interval}{precision}" + (f" ({notes})" if notes else "") + mark


def _which(number: dict[str, Any]) -> Iterator[str]:
    """By what a number is told from those that fall together with it."""
    for name, value in number["which"].items():
        yield value if name in _NAMED else f"{name} {value}"


def _interval(number: dict[str, Any]) -> str:
    return f"[{rounded(number['ci_low'])}, {rounded(number['ci_high'])}]"


def _precisions(pivot: Pivot) -> set[str]:
    return {number["precision_in_force"] for number in pivot.about["values"] if number["precision_in_force"]}


def _csv(pivot: Pivot) -> str:
    """Numbers alone, in full precision."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(csv_cell, _heads(pivot)))
    numbers = pivot.cells(lambda number: repr(float(number["value"])), "")
    writer.writerows([*map(csv_cell, key), *line] for key, line in zip(pivot.row_keys, numbers, strict=True))
    return stream.getvalue()


def _latex(pivot: Pivot, intervals: bool) -> str:
    """A table for the package booktabs: the names of each level in a line, the best of a row in bold."""
    spanned, levels = len(pivot.rows), len(pivot.columns)
    several = len(_precisions(pivot)) > 1
    lines = [rf"\begin{{tabular}}{{{'l' * spanned}{'r' * len(pivot.column_keys)}}}", r"\toprule"]
    for level in range(levels):
        heads = pivot.rows if level == levels - 1 else [""] * spanned
        titles = [key[level] for key in pivot.column_keys]
        if level < levels - 1:
            lines.append(_line([*map(_escaped, heads), *_grouped(titles)]))
            lines += [" ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in _spans(titles, spanned))]
        else:
            lines.append(_line(map(_escaped, [*heads, *titles])))
    lines.append(r"\midrule")
    cells = pivot.cells(lambda number: _latex_number(number, several, intervals), "")
    for key, numbers in zip(pivot.row_keys, cells, strict=True):
        lines.append(_line([*map(_escaped, key), *numbers]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(cells: Any) -> str:
    return " & ".join(cells) + r" \\"


def _runs(titles: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Runs of equal titles, with their lengths."""
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


def _latex_number(number: dict[str, Any], several_precisions: bool, intervals: bool) -> str:
    bare = _escaped(_text({**number, "best": False}, several_precisions, intervals))
    return rf"\textbf{{{bare}}}" if number["best"] else bare


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in harmless(text))
