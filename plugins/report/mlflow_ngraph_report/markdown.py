"""Markdown version of a report, for pull requests, wikis and notes of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mlflow_ngraph.tables.sheet import Cell, Sheet, escaped, grid
from mlflow_ngraph_report.blocks import Block, Figure, Missing, Report, Text


def render(report: Report, files: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Render a report.

    Parameters
    ----------
    files : Mapping[str, Mapping[str, str]] | None
        Addresses of files by key of the table or figure and by kind (``svg``, ``png``, ``csv``). Without them figures
        are only named.
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


def _block(block: Block, files: Mapping[str, str]) -> Iterator[str]:
    if isinstance(block, Missing):
        yield f"*Missing: {escaped(block.reason)}.*"
    elif isinstance(block, Text):
        yield "\n\n".join(map(escaped, block.paragraphs))
        if block.command:
            yield from ("", "```console", f"$ {' '.join(block.command.split())}", "```")
    elif isinstance(block, Sheet):
        yield from (escaped(block.caption), "", *grid(block))
    else:
        yield from _figure(block, files)
    if isinstance(block, (Sheet, Figure)):
        for note in block.lines if isinstance(block, Sheet) else map(Cell, block.notes):
            yield from ("", escaped(note.plain))
        if "csv" in files:
            yield from ("", f"Data: [{files['csv']}]({files['csv']})")


def _figure(block: Figure, files: Mapping[str, str]) -> Iterator[str]:
    yield escaped(block.caption)
    if "svg" in files:
        yield from ("", f"![{escaped(block.alternative)}]({files['svg']})")
    else:
        yield from ("", f"*{escaped(block.alternative)}*")


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")
