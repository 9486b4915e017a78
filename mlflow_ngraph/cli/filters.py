"""The options by which every verb that reads results says which ones it means."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlflow_ngraph.cli.lists import items, whole
from mlflow_ngraph.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    ("tracking_uri", "URI,...", "Where to read, one server or several; by default what MLflow is configured to use."),
    ("experiment", "NAME,...", "Only these experiments; all by default."),
    ("studies", "NAME,...", "Only these studies, by name or id."),
    ("workloads", "NAME,...", "Only these workloads."),
    ("families", "NAME,...", "Only these families of models."),
    ("devices", "NAME,...", "Only these devices."),
    ("compilers", "NAME,...", "Only these compilers."),
    ("precision", "NAME,...", "Only what was asked to compute in these precisions."),
    ("batch_sizes", "N,...", "Only these batch sizes."),
    ("tags", "KEY=VALUE,...", "Only studies whose run has these tags."),
    ("git_commit", "SHA,...", "Only studies that were run from these commits; the first characters suffice."),
    ("since", "TIME", "Only studies from then on: 2026-05-01, 2026-05-01T12:30, or how long ago, as 12h or 7d."),
    ("until", "TIME", "Only studies before then."),
)
NOTHING = "nothing is recorded there yet: run 'mlflow-ngraph benchmark' or 'mlflow-ngraph sync' first"


def filter_options(command: F) -> F:
    """The filters; what they hold arrives by name, for `Asked`."""
    for name, metavar, line in reversed(_OPTIONS):
        several = metavar != "TIME"
        option = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, multiple=several, help=line)
        command = option(command)
    return click.option("--no-cache", is_flag=True, help="Read everything from the server again.")(command)


class Asked:
    """What the options say.

    Parameters
    ----------
    given: the options by name, taken out of those of the command.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        taken = {name: given.pop(name) for name, _, _ in _OPTIONS}
        self._cache = not given.pop("no_cache")
        lists = {name: items(value) for name, value in taken.items() if name not in ("since", "until")}
        self._uris = lists["tracking_uri"] or None
        self._experiments = lists["experiment"] or None
        self._lists = lists
        self._since, self._until = taken["since"] or None, taken["until"] or None
        self._batches = [whole("batch-sizes", text) for text in lists["batch_sizes"]]
        self._tags = dict(_pair("tags", text) for text in lists["tags"])

    def selection(self) -> Selection:
        """The filters, checked as far as they can be without results.

        Raises
        ------
        UsageError: a time is none.
        """
        from mlflow_ngraph.analysis.selection import Selection, moment

        named = {
            name: tuple(self._lists[name]) for name in ("studies", "workloads", "families", "devices", "compilers")
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

    def read(self, columns: Collection[str] | None = None) -> pd.DataFrame:
        """All results of the servers and experiments whose studies have the tags; the other filters are not applied.

        Parameters
        ----------
        columns: read only these, if all of them are documented ones.

        Raises
        ------
        UsageError: there are none.
        TrackingError: a server cannot be reached.
        """
        from mlflow_ngraph.analysis import results
        from mlflow_ngraph.analysis.selection import Selection

        wanted = None if columns is None else [name for name in dict.fromkeys(columns) if name in results.ALL]
        if columns is not None and not set(columns) <= {*results.ALL, *_intervals(columns)}:
            wanted = None
        frame = results.select(
            Selection(tags=self._tags), self._uris, self._experiments, columns=wanted, cache=self._cache
        )
        if frame.empty and self._tags:
            said = ", ".join(f"{name}={value}" for name, value in self._tags.items())
            raise UsageError(f"no study run with results has the tags {said}")
        if frame.empty:
            raise UsageError(NOTHING)
        return frame


def _intervals(columns: Collection[str]) -> set[str]:
    """Names of the ends of intervals that metrics without one do not have."""
    return {name for name in columns if name.endswith(("_ci_low", "_ci_high"))}


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option}: expected name=value, found {text!r}")
    return name, value
