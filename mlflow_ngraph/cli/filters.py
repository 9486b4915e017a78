"""Filter and limit options of verbs that read results, the `Selection` from them, and reading the results table."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlflow_ngraph.addresses import shown
from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.lists import FiniteRange, items, whole
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.metrics import TABLE, is_uncertainty
from mlflow_ngraph.objectives import BOUNDS
from mlflow_ngraph.text import harmless

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.listing import FoundRuns
    from mlflow_ngraph.analysis.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    ("tracking_uri", "URI,...", "Where to read, one server or several; by default what MLflow is configured to use."),
    ("experiment", "NAME,...", "Only these experiments; by default the one that was recorded to last."),
    ("studies", "NAME,...", "Only these studies, by name or id."),
    ("workloads", "NAME,...", "Only these workloads."),
    ("families", "NAME,...", "Only these families of models."),
    ("devices", "NAME,...", "Only these devices."),
    ("compilers", "NAME,...", "Only these compilers."),
    ("precision", "NAME,...", "Only what was asked to compute in these precisions."),
    ("batch_sizes", "N,...", "Only these batch sizes."),
    ("baselines", "NAME,...", "Only studies whose speed-ups and other ratios are over these compilers."),
    ("tags", "KEY=VALUE,...", "Only studies whose run has these tags."),
    ("git_commit", "SHA,...", "Only studies that were run from these commits; the first characters suffice."),
    ("since", "TIME", "Only studies from then on: 2026-05-01, 2026-05-01T12:30, or how long ago, as 12h or 7d."),
    ("until", "TIME", "Only studies before then."),
)
_SCOPE = ("tracking_uri", "experiment", "tags", "git_commit", "since", "until")
NOTHING = "nothing is recorded there yet: run 'mlflow-ngraph benchmark' or 'mlflow-ngraph study sync' first"


class FilterOption(click.Option):
    """An option that filters results."""


class FilteredCommand(click.Command):
    """A verb that reads results; its help has the filters below its own options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        for title, filters in (("Options", False), ("Filters", True)):
            records = [option.get_help_record(ctx) for option in options if isinstance(option, FilterOption) is filters]
            if records:
                with formatter.section(title):
                    formatter.write_dl([record for record in records if record])


def filter_options(command: F, lines: Mapping[str, str] | None = None) -> F:
    """The filters, whose values `Asked` takes by name; ``lines`` are other help lines, by the name of the option."""
    for name, metavar, line in reversed(_OPTIONS):
        several = metavar != "TIME"
        line = (lines or {}).get(name, line)  # noqa: PLW2901 - what a verb has to say is more than the common line
        spelling = f"--{name.replace('_', '-')}"
        command = click.option(spelling, name, cls=FilterOption, metavar=metavar, multiple=several, help=line)(command)
    for name, line in (
        ("--no-cache", "Read everything from the server again."),
        ("--all-experiments", "Read all experiments together, those of others too."),
    ):
        command = click.option(name, cls=FilterOption, is_flag=True, help=line)(command)
    return command


class Asked:
    """Values of the filter options, which are taken out of ``given``, the options of a command by name."""

    def __init__(self, given: dict[str, Any]) -> None:
        taken = {name: given.pop(name) for name, _, _ in _OPTIONS}
        self._cache = not given.pop("no_cache")
        self._everywhere = given.pop("all_experiments")
        lists = {name: items(value) for name, value in taken.items() if name not in ("since", "until")}
        self._uris = lists["tracking_uri"] or None
        configured = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        self._experiments = lists["experiment"] or ([configured] if configured and not self._everywhere else None)
        if self._everywhere and lists["experiment"]:
            raise UsageError("--experiment and --all-experiments contradict each other: leave one out")
        self._lists = lists
        self._since, self._until = taken["since"] or None, taken["until"] or None
        self._batches = [whole("batch-sizes", text) for text in lists["batch_sizes"]]
        self._tags = dict(_pair("tags", text) for text in lists["tags"])
        self._scope = {
            name: [value] if isinstance(value, str) else list(value) for name in _SCOPE if (value := taken[name])
        }

    @property
    def uris(self) -> list[str] | None:
        """Sources of results; None: as MLflow is configured."""
        return self._uris

    @property
    def cache(self) -> bool:
        """True where tables that this machine keeps may be used."""
        return self._cache

    def scope(self) -> list[str]:
        """The options that say where to read and which studies are meant, for a command that is printed.

        Addresses with a password in them are left out.
        """
        return [
            word
            for name, values in self._scope.items()
            for value in values
            if name != "tracking_uri" or shown(value) == value
            for word in (f"--{name.replace('_', '-')}", value)
        ] + ["--all-experiments"] * self._everywhere

    def selection(self) -> Selection:
        """The filters, checked as far as they can be without results; raises `UsageError` if a time is none."""
        from mlflow_ngraph.analysis.selection import Selection, moment

        named = {
            name: tuple(self._lists[name])
            for name in ("studies", "workloads", "families", "devices", "compilers", "baselines")
        }
        return Selection(
            **named,
            precisions=tuple(self._lists["precision"]),
            git_commits=tuple(self._lists["git_commit"]),
            batch_sizes=tuple(self._batches),
            tags=self._tags,
            since=moment(self._since) if self._since else None,
            until=moment(self._until) if self._until else None,
        )

    def find(self, *, guess: bool = True, everywhere: bool = False, runs: Sequence[str] = ()) -> FoundRuns:
        """The study runs of the servers and experiments.

        ``guess`` is as in `scope.recorded_to_last`; ``everywhere`` takes in all experiments, where the user has named
        runs or studies; ``runs`` are ids of runs that the user has named, whose experiments count. Raises
        `UnknownNameError` if an experiment does not exist, `UsageError` if the choice of one would be a guess, and
        `TrackingError` if a server cannot be reached.
        """
        from mlflow_ngraph.tracking import connection

        uris = self._uris or [connection.resolve_uri(None)]
        with _reading("reading which studies there are", uris):
            from mlflow_ngraph.analysis import listing, scope

            named = (self._lists["experiment"] or None) if everywhere or runs else self._experiments
            found = listing.find(uris, named)
            if named or self._everywhere or everywhere:
                return found
            return scope.of_runs(found, runs) if runs else scope.recorded_to_last(found, guess=guess)

    def experiments(self) -> list[str] | None:
        """Names of the experiments to look at; None: all, which the user has to ask for where there are studies."""
        found = self.find()
        tell(found)
        names = sorted({run.experiment for runs in found.runs.values() for run in runs})
        return None if self._everywhere else names or None

    def read(self, columns: Collection[str] | None = None, found: FoundRuns | None = None) -> pd.DataFrame:
        """All results of the servers and experiments whose studies have the tags; the other filters are not applied.

        With ``columns`` only these are read, if all of them are documented ones. ``found`` is the result of an earlier
        `find`, whose notes the caller has to `tell`. Raises `UsageError` if there are none, and `TrackingError` if a
        server cannot be reached.
        """
        known = self.find() if found is None else found
        with _reading("reading results", known.runs):
            frame = self._read(columns, known)
        if found is None:
            tell(known)
        return frame

    def _read(self, columns: Collection[str] | None, runs: FoundRuns) -> pd.DataFrame:
        import pyarrow as pa

        from mlflow_ngraph.analysis import results
        from mlflow_ngraph.analysis.selection import Selection

        # The usual pool keeps what each thread once needed; here it is thirty megabytes on top of what the tables take.
        pa.set_memory_pool(pa.system_memory_pool())
        wanted = None if columns is None else [name for name in dict.fromkeys(columns) if name in TABLE]
        if columns is not None and not set(columns) <= {*TABLE, *_intervals(columns)}:
            wanted = None
        frame = results.select(
            Selection(tags=self._tags),
            self._uris,
            self._experiments,
            columns=wanted,
            cache=self._cache,
            found=runs,
        )
        if frame.empty:
            tell(runs)
        if frame.empty and self._tags:
            said = ", ".join(f"{name}={value}" for name, value in self._tags.items())
            raise UsageError(f"no study run with results has the tags {said}")
        if frame.empty:
            raise UsageError(NOTHING)
        return frame


def tell(found: FoundRuns) -> None:
    """Print notes for readers of results on standard error."""
    for note in found.notes:
        output.tell(f"note: {harmless(note)}")


def _reading(what: str, uris: Collection[str]) -> AbstractContextManager[None]:
    """Show the source of results while they are read; in a log only where others decide how long it takes."""
    from mlflow_ngraph.tracking import connection

    return waiting(f"{what}, from {', '.join(map(shown, uris))}", logged=any(map(connection.is_server, uris)))


def _intervals(columns: Collection[str]) -> set[str]:
    """Names of the ends of intervals that metrics without one do not have."""
    return {name for name in columns if is_uncertainty(name)}


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option}: expected name=value, found {text!r}")
    return name, value


def bound_options(*names: str) -> Callable[[F], F]:
    """Options for these of `objectives.BOUNDS`."""

    def add(command: F) -> F:
        for name in reversed(names):
            bound = BOUNDS[name]
            flag = f"--{name.replace('_', '-')}"
            above_zero = FiniteRange(min=0, min_open=True)
            command = click.option(flag, name, type=above_zero, metavar=bound.metavar, help=bound.meaning)(command)
        return command

    return add
