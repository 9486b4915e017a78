"""What verbs share when they print: a console, numbers in words, JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.text import Text

from mlflow_ngraph.cli import streams
from mlflow_ngraph.text import CONTROLS, duration, harmless

F = TypeVar("F", bound=Callable[..., Any])

_WIDE = 1000
_UNSEEN = re.compile(rf"(?!\n){CONTROLS.pattern}")


def say_who_records(directory: Path) -> None:
    """Tell on standard error why the verb waits for another process."""
    click.echo(f"waiting: another process is running or recording {directory.name}", err=True)


def say_pause(problem: str, seconds: float) -> None:
    """Tell on standard error why the verb waits before it tries something again."""
    click.echo(f"waiting: {problem}; trying again in {seconds:.0f} s", err=True)


def json_option(command: F) -> F:
    """The option ``--json`` that every verb with data has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(command)


class PlainConsole(Console):
    """Shows text as it is: nothing in it is markup, or an order to the terminal. Whose text it is does not matter then."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints, but for what a terminal would obey."""
        super().print(*map(_disarmed, objects), **options)


def console(stderr: bool = False, **options: Any) -> Console:
    """A console with colours on terminals only; off a terminal it is wide enough to cut nothing.

    Parameters
    ----------
    **options : Any
        Of rich's console.
    """
    made = PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False, **options)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False, **{"width": _WIDE, **options})
    return made


def _disarmed(shown: Any) -> Any:
    """Text without control characters; line breaks stay, for what is one line is made so where it is read."""
    if isinstance(shown, str):
        return "\n".join(map(harmless, shown.split("\n")))
    if isinstance(shown, Text):
        shown = shown.copy()
        shown.plain = _disarmed(shown.plain)
    return shown


def print_json(value: Any) -> None:
    """Print one JSON document. Infinite numbers and NaN, which JSON lacks, become null."""
    text = json_text(value)
    # Where standard output takes less than Unicode, JSON has a spelling for the rest.
    click.echo(text if streams.takes(text) else json.dumps(json.loads(text), indent=2) + "\n", nl=False)


def json_text(value: Any) -> str:
    """One JSON document, as `print_json` prints it; what a terminal would obey is escaped, as JSON has it."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, default=str) + "\n"
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def count(value: float | None) -> str:
    """A large number with three digits and a unit, such as ``11.7 M``."""
    if value is None:
        return "–"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:g}"


def age(value: float) -> str:
    """A duration that may be days, such as ``12 d``."""
    return duration(value) if value < 2 * 86400 else f"{value / 86400:.0f} d"


def finite(value: Any) -> Any:
    """``value`` with null for the numbers that JSON lacks: infinite ones and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value
