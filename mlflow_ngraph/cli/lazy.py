"""A group of commands that imports a command when it is called, so that help appears at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeAlias

import click

Verbs: TypeAlias = Mapping[str, "tuple[str | Verbs, str]"]
"""By name: ``package.module:attribute``, or the verbs of a group, and the line that help shows; an empty line hides it."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own.

    Parameters
    ----------
    verbs : Verbs
        Its verbs, in the order of help.
    """

    def __init__(self, *args: Any, verbs: Verbs, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = dict(verbs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (_, line) in self._verbs.items() if line]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        target, line = self._verbs[cmd_name]
        if not isinstance(target, str):
            return LazyGroup(cmd_name, verbs=target, help=line)
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._verbs and not name.startswith("-"):
            known = dict(self._spellings())
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {known[close[0]]!r}? " if close else ""
            raise click.UsageError(f"no verb {name!r}: {hint}verbs: {', '.join(self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def _spellings(self) -> Iterator[tuple[str, str]]:
        """The verbs here and in the groups here, and how each is typed; a verb of this group hides one below it."""
        for group, (target, _) in self._verbs.items():
            if not isinstance(target, str):
                yield from ((name, f"{group} {name}") for name, (_, line) in target.items() if line)
        yield from ((name, name) for name in self._verbs)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, self._verbs[name][1]) for name in self.list_commands(ctx)])
