"""Cache of printed answers that depend only on the options and a database on this machine.

The database is not even opened then: an answer is kept under the state of its file, and whoever writes into it changes that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from mlflow_ngraph import home
from mlflow_ngraph.cli import output, streams
from mlflow_ngraph.cli.filters import FilteredCommand
from mlflow_ngraph.cli.lists import items


class KeptCommand(FilteredCommand):
    """A verb that reads results; options that let the answer depend on the time or write a file have it computed anew."""

    def invoke(self, ctx: click.Context) -> Any:
        """Print the answer that is kept, or compute, print and keep one."""
        if any(ctx.params.get(name) for name in ("no_cache", "since", "until", "target")):
            return super().invoke(ctx)

        from mlflow_ngraph.analysis.answer_cache import Answers

        name, answers = _name(ctx), Answers()
        kept = answers.get(name) if name else None
        if kept is not None:
            for stream, text in kept["printed"]:
                click.echo(text, nl=False, err=stream == "stderr")
            return kept["code"]
        with _copied() as printed:
            code = super().invoke(ctx)
        if name and name == _name(ctx):
            answers.put(name, {"printed": printed, "code": code})
        return code


def _name(ctx: click.Context) -> str | None:
    """Key of an answer; None where its results are not in files that tell their state."""
    from mlflow_ngraph.analysis import answer_cache
    from mlflow_ngraph.tracking import connection, sqlite_file

    states = []
    for uri in items(ctx.params["tracking_uri"]) or [connection.resolve_uri(None)]:
        path = sqlite_file.of(uri)
        state = sqlite_file.state(path) if path else None
        if state is None:
            return None
        states.append((uri, str(path), state))
    shown = [
        (console.width, console.is_terminal, console.color_system, console.encoding)
        for console in (output.console(), output.console(stderr=True))
    ]
    # MLflow's variable chooses the experiment, as do studies of this home; those of others are told from them.
    studies = home.location() / "studies"
    changed = studies.stat().st_mtime_ns if studies.is_dir() else None
    chosen = (str(studies), changed, os.environ.get("MLFLOW_EXPERIMENT_NAME"))
    return answer_cache.name(ctx.command.name, sorted(ctx.params.items()), states, shown, Path.cwd(), chosen)


@contextmanager
def _copied() -> Iterator[list[tuple[str, str]]]:
    """Record of the printed text, each piece with its stream."""
    printed: list[tuple[str, str]] = []
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    try:
        for name, stream in before.items():
            setattr(sys, name, streams.Copying(stream, partial(_note, printed, name)))
        yield printed
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


def _note(printed: list[tuple[str, str]], name: str, text: str) -> None:
    if text:
        printed.append((name, text))
