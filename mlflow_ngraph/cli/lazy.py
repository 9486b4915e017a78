"""A group of commands, own ones and those of plugins, imported when called; suggests names for a mistyped one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Verbs: TypeAlias = Mapping[str, "tuple[str | Verbs, str]"]
"""Places and help lines of commands, by name; an empty line hides the verb. A place is
``package.module:attribute``, the distribution of this project that brings the verb as an entry point, or the verbs of a
group."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, or in plugins.

    ``verbs`` are in the order of help. ``points`` is the entry-point group of verbs that distributions bring, those of
    third parties too. None of them can replace a verb that is in ``verbs``. The verbs of a group below this one are in
    the entry-point group ``points.NAME``.
    """

    def __init__(self, *args: Any, verbs: Verbs, points: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = dict(verbs)
        self._points = points

    @cached_property
    def _others(self) -> Mapping[str, EntryPoint]:
        """The verbs of third parties. Reading what is installed takes milliseconds, which no verb of ``verbs`` pays."""
        from importlib.metadata import entry_points

        found = sorted(entry_points(group=self._points), key=lambda point: point.name)
        return {point.name: point for point in found if point.name not in self._verbs}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(name for name, (_, line) in self._verbs.items() if line), *self._others]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._verbs:
            place, line = self._verbs[cmd_name]
            if not isinstance(place, str):
                return LazyGroup(cmd_name, verbs=place, points=f"{self._points}.{cmd_name}", help=line)
            module, colon, attribute = place.partition(":")
            command = getattr(import_module(module), attribute) if colon else self._brought(ctx, module, cmd_name)
        elif cmd_name in self._others:
            command = _load(self._others[cmd_name])
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    def _brought(self, ctx: click.Context, distribution: str, name: str) -> Any:
        from mlflow_ngraph.entry_points import load_plugin

        return load_plugin(distribution, self._points, name, f"'{ctx.command_path} {name}'")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self._verbs and name not in self._others:
            meant = " or ".join(map(repr, self._meant(ctx, name)))
            hint = f"did you mean {meant}? " if meant else ""
            raise click.UsageError(f"no verb {name!r}: {hint}verbs: {', '.join(self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> list[str]:
        """Verbs of that name, else of a similar one: of this group, else of the whole program."""
        root = ctx.find_root()
        groups = [list(self.paths())]
        if isinstance(root.command, LazyGroup) and root.command is not self:
            groups.append([f"{root.command_path} {path}" for path in root.command.paths()])
        for paths in groups:
            if exact := [path for path in paths if path.split()[-1] == name]:
                return exact
        for paths in groups:
            if close := get_close_matches(name, [path.split()[-1] for path in paths], n=1):
                return [path for path in paths if path.split()[-1] in close]
        return []

    def paths(self) -> Iterator[str]:
        """Names of the verbs here and in the groups below, as typed."""
        for name, (place, line) in self._verbs.items():
            if line:
                yield name
            if not isinstance(place, str):
                yield from (f"{name} {below}" for below, (_, shown) in place.items() if shown)
        yield from self._others

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: line for name, (_, line) in self._verbs.items() if line}
        lines |= {name: _summary(point) for name, point in self._others.items()}
        with formatter.section("Verbs"):
            formatter.write_dl(list(lines.items()))


def _load(point: EntryPoint) -> click.Command:
    """Import the verb of a third party. Raises `DependencyError` where it cannot be, or is none."""
    from mlflow_ngraph.errors import DependencyError

    brought = f"the verb {point.name!r}{f' of {point.dist.name}' if point.dist else ''}"
    try:
        command = point.load()
    except Exception as error:
        raise DependencyError(f"{brought} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(command, click.Command):
        raise DependencyError(f"{brought} is no click command: {point.value}")
    return command


def _summary(point: EntryPoint) -> str:
    """The line of help for the verb of a third party: its distribution, which is not imported for it."""
    summary = point.dist.metadata.json.get("summary") if point.dist else None
    return f"{summary or point.value} ({point.dist.name})" if point.dist else point.value
