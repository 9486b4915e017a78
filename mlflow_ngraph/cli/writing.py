"""Choose an output format by option or file ending; print or write text, tables and Markdown."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import DiskFullError, UsageError
from mlflow_ngraph.processes import disk_space
from mlflow_ngraph.tables.sheet import Part, markdown

_WIDE = 10_000
STDOUT = "-"


def form(asked: str | None, target: str | None, forms: Sequence[str], endings: Mapping[str, str]) -> str:
    """The format that is meant: the one asked for, else the one that a file's name tells, else the first.

    Raises `UsageError` if there is no such format.
    """
    ending = Path(target).suffix if target else ""
    if not asked and ending not in ("", ".txt", *endings):
        raise UsageError(f"{target}: expected an ending of {', '.join(endings)} or .txt, or --format")
    chosen = asked or endings.get(ending) or forms[0]
    if chosen not in forms:
        raise UsageError(f"format: expected {', '.join(forms)}, found {chosen!r}")
    return chosen


def give(form: str, target: str | None, *parts: Part) -> None:
    """Show tables and lines on the terminal, or write them as text or Markdown."""
    if form == "markdown":
        write(f"{markdown(*parts)}\n", target)
    elif target:
        write(printed(*parts), target)
    else:
        tables.show(output.console(), *parts)


def printed(*parts: Part) -> str:
    """Tables and lines as a terminal of any width would show them."""
    stream = io.StringIO()
    tables.show(output.console(file=stream, width=_WIDE), *parts)
    return stream.getvalue()


def write(content: str | bytes, target: str | None) -> None:
    """Print, or write to a file; ``-`` is the standard output.

    Raises `UsageError` if it cannot be written, and `DiskFullError` if there is no room for it.
    """
    if not target or target == STDOUT:
        click.echo(content, nl=False)
        return
    if target.endswith("/"):  # which a `Path` would leave out
        raise UsageError(f"cannot write {target}: it names a directory")
    try:
        Path(target).write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        if disk_space.is_lacking(error):
            raise DiskFullError(f"no space left on a disk while writing {target}: free some room") from error
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
