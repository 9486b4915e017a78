"""A group of commands that imports a command when it is called, so that help appears at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own.

    Parameters
    ----------
    verbs : Mapping[str, tuple[str, str]]
        By name, ``package.module:attribute`` and the line that help shows; an empty line hides the verb.
    """

    def __init__(self, *args: Any, verbs: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = dict(verbs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (_, line) in self._verbs.items() if line]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        module, _, attribute = self._verbs[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._verbs and not name.startswith("-"):
            close = get_close_matches(name, self._verbs, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise click.UsageError(f"no verb {name!r}: {hint}verbs: {', '.join(self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, self._verbs[name][1]) for name in self.list_commands(ctx)])
