"""Text in the format that a person asked for, printed or written to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mlflow_ngraph.errors import UsageError


def form(asked: str | None, target: str | None, forms: Sequence[str], endings: Mapping[str, str]) -> str:
    """The format that is meant: the one asked for, else the one that a file's name tells, else the first.

    Raises
    ------
    UsageError
        There is no such format.
    """
    chosen = asked or (endings.get(Path(target).suffix) if target else None) or forms[0]
    if chosen not in forms:
        raise UsageError(f"format: expected {', '.join(forms)}, found {chosen!r}")
    return chosen


def write(text: str, target: str | None) -> None:
    """Print, or write to a file.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    if not target:
        click.echo(text, nl=False)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
