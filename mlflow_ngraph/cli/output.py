"""What verbs share when they print: a console, numbers in words, JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console

from mlflow_ngraph.text import duration

F = TypeVar("F", bound=Callable[..., Any])

_WIDE = 1000


def json_option(command: F) -> F:
    """The option ``--json`` that every verb with data has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(command)


def console(stderr: bool = False) -> Console:
    """A console with colours on terminals only; off a terminal it is wide enough to cut nothing."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = Console(stderr=stderr, highlight=False, width=_WIDE)
    return made


def print_json(value: Any) -> None:
    """Print one JSON document. Infinite numbers and NaN, which JSON lacks, become null."""
    click.echo(json_text(value), nl=False)


def json_text(value: Any) -> str:
    """One JSON document, as `print_json` prints it."""
    return json.dumps(finite(value), indent=2, ensure_ascii=False, default=str) + "\n"


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
