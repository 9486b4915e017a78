"""Text, JSON and waiting messages of all verbs: harmless for terminals, broken to their width, numbers short."""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.control import Control
from rich.segment import Segment
from rich.text import Text

from mlflow_ngraph.cli import streams
from mlflow_ngraph.text import CONTROLS, duration, harmless

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 100
"""Width of text in columns where no window sets it: in a file, a pipe, or a CI log."""
_COMMAND = re.compile(
    r"(?:^|(?<=: ))(?:\$ )?(?:cd \S.*? && )?(?:mlflow-ngraph \S|mlflow (?:artifacts|ui|server) |env [A-Z_]+=)"
)
"""Start of a command that goes on to the end of its line."""
_ARGUMENT = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_INDENT = "  "
_UNSEEN = re.compile(rf"(?!\n){CONTROLS.pattern}")


def tell(line: str) -> None:
    """Say something on standard error that is no error."""
    console(stderr=True).print(line, soft_wrap=True)


def say_who_records(directory: Path) -> None:
    """Tell on standard error why the verb waits for another process."""
    tell(f"waiting: another process is running or recording {directory.name}")


def say_pause(problem: str, seconds: float) -> None:
    """Tell on standard error why the verb waits before it tries something again."""
    tell(f"waiting: {problem}; trying again in {seconds:.0f} s")


def json_option(command: F) -> F:
    """The option ``--json`` that every verb with data has."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(command)


class PlainConsole(Console):
    """Shows text as it is: nothing in it is markup, or an order to the terminal. Whose text it is does not matter then.

    No line ends in blanks. Off a terminal, which would do it itself, lines are broken where they become too wide.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, without escapes for a terminal, blanks at the ends of lines, and limits of width."""
        super().print(*map(self._shown, objects), **options)

    def _shown(self, shown: Any) -> Any:
        if isinstance(shown, Control):
            return shown
        if isinstance(shown, (str, Text)):
            shown = _disarmed(shown if isinstance(shown, Text) else Text(shown))
            if not self.is_terminal:
                shown = Text(broken(shown.plain, self.width), no_wrap=True, overflow="ignore")
        return _Trimmed(shown)


@dataclass(frozen=True)
class _Trimmed:
    """Something to print, without the blanks that rich fills lines up with."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in Segment.split_lines(console.render(self.shown, options)):
            while line and not line[-1].control and not line[-1].text.strip():
                line.pop()
            if line and not line[-1].control:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from line
            yield Segment.line()


def console(stderr: bool = False, **options: Any) -> Console:
    """A console with colours on terminals only, and of one width everywhere else; ``options`` are of rich's console."""
    made = PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False, **options)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made = PlainConsole(stderr=stderr, highlight=False, markup=False, emoji=False, **{"width": WIDTH, **options})
    return made


def broken(text: str, width: int, hanging: str | None = None) -> str:
    """A text in lines of at most this width, as far as its words are not longer themselves.

    A command at the end of a line stays one command: it begins a line of its own, and goes on behind backslashes.

    ``hanging`` is the indentation of continued lines; two blanks more than the line, when left out.
    """
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width, hanging))


def _parts(line: str, width: int, hanging: str | None) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    indent = line[: len(line) - len(line.lstrip())]
    further = indent + _INDENT if hanging is None else hanging
    command = _COMMAND.search(line.lstrip())
    if command is None:
        yield from _wrapped(line, width, further)
    elif command.start() == 0:
        yield from _continued(line, width, indent)
    else:
        begin = len(indent) + command.start()
        yield from _wrapped(line[:begin], width, further)
        yield from _continued(line[begin:], width, further)


def _wrapped(line: str, width: int, further: str) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def _arguments(command: str) -> list[str]:
    """The words of a command, each option with its value."""
    parts: list[str] = []
    for word in _ARGUMENT.findall(command):
        if parts and not word.startswith("-") and re.fullmatch(r"--[\w-]+", parts[-1]):
            parts[-1] = f"{parts[-1]} {word}"
        else:
            parts.append(word)
    return parts


def _continued(command: str, width: int, indent: str) -> Iterator[str]:
    """A command in lines that a shell reads as one."""
    line = ""
    for argument in _arguments(command):
        if line and len(line) + len(argument) + len("  \\") > width:
            yield f"{line} \\"
            line = indent + 2 * _INDENT + argument
        else:
            line = f"{line} {argument}" if line else indent + argument
    yield line


def _disarmed(shown: Text) -> Text:
    """Text without control characters; line breaks stay."""
    shown = shown.copy()
    shown.plain = "\n".join(map(harmless, shown.plain.split("\n")))
    return shown


def print_json(value: Any) -> None:
    """Print one JSON document. Infinite numbers and NaN, which JSON lacks, become null."""
    text = json_text(value)
    # Where standard output takes less than Unicode, JSON has a spelling for the rest.
    click.echo(text if streams.can_encode(text) else json.dumps(json.loads(text), indent=2) + "\n", nl=False)


def json_text(value: Any) -> str:
    """One JSON document, as `print_json` prints it; control characters of terminals are escaped."""
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
