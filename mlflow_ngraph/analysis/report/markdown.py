"""A report in Markdown: for a pull request, a wiki, or a note on a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mlflow_ngraph.analysis.report import texts
from mlflow_ngraph.analysis.report.blocks import Block, Figure, Missing, Report, Table, Text
from mlflow_ngraph.text import counted

_SPECIAL = "\\`*_[]<>#|$"


def render(report: Report, files: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """The text of a report.

    Parameters
    ----------
    files : Mapping[str, Mapping[str, str]] | None
        Addresses of the files of each table and figure, by its key and by their kind (``svg``, ``png``, ``csv``);
        without them figures are only named.
    """
    lines = [f"# {escaped(report.title)}", "", escaped(report.subtitle), ""]
    lines += [f"- [{escaped(section.title)}](#{_anchor(section.title)})" for section in report.sections]
    for section in report.sections:
        lines += ["", f"## {escaped(section.title)}"]
        if section.introduction:
            lines += ["", escaped(section.introduction)]
        for block in section.blocks:
            lines += ["", f"### {escaped(block.title)}", "", *_block(block, (files or {}).get(block.key, {}))]
    return "\n".join([*lines, "", f"Made by {escaped(report.made_by)}."]) + "\n"


def escaped(text: str) -> str:
    """Text that stays text."""
    return "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in " ".join(text.split()))


def _block(block: Block, files: Mapping[str, str]) -> Iterator[str]:
    if isinstance(block, Missing):
        yield f"*Missing: {escaped(block.reason)}.*"
    elif isinstance(block, Text):
        yield "\n\n".join(map(escaped, block.paragraphs))
        if block.command:
            yield from ("", "```console", f"$ {' '.join(block.command.split())}", "```")
    elif isinstance(block, Table):
        yield escaped(block.caption)
        yield ""
        yield from table(block)
    else:
        yield from _figure(block, files)
    if isinstance(block, (Table, Figure)):
        for note in block.notes:
            yield from ("", escaped(note))
        if "csv" in files:
            yield from ("", f"Data: [{files['csv']}]({files['csv']})")


def table(block: Table) -> Iterator[str]:
    """The lines of a table, with intervals behind their numbers."""
    yield _line([escaped(texts.joined((column.group, column.title), ": ")) for column in block.columns])
    yield _line(["--:" if column.number else ":--" for column in block.columns])
    for row in block.rows:
        yield _line([escaped(cell.plain) for cell in row])
    if block.hidden:
        yield ""
        yield f"{counted(block.hidden, 'more row')} in the CSV file."


def _figure(block: Figure, files: Mapping[str, str]) -> Iterator[str]:
    yield escaped(block.caption)
    if "svg" in files:
        yield from ("", f"![{escaped(block.alternative)}]({files['svg']})")
    else:
        yield from ("", f"*{escaped(block.alternative)}*")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _anchor(title: str) -> str:
    """The anchor that renderers make of a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")
