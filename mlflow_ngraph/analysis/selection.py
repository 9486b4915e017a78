"""Which results are meant: filters on the tidy table, the same in Python and on every verb.

A verb that only says what is meant need not wait for the import of pandas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import UnknownNameError, UsageError, few
from mlflow_ngraph.metrics import PROFILE
from mlflow_ngraph.workloads.base import WorkloadRef
from mlflow_ngraph.workloads.naming import base_label, matches

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.listing import Listed

FILTERED = {
    "devices": ("device", PROFILE),
    "workloads": ("workload", "label"),
    "families": ("family",),
    "compilers": ("compiler", "compiler_label"),
    "precisions": ("precision",),
    "batch_sizes": ("batch",),
    "studies": ("study", "study_id", "run_id"),
    "git_commits": ("git_commit",),
    "baselines": ("baseline",),
}
"""The columns in which the values of a filter are looked for, by filter."""
FILTER_COLUMNS = tuple(name for names in FILTERED.values() for name in names)
_AGO = re.compile(r"(\d+)\s*(m|h|d|w)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Selection:
    """Filters; a cell is meant if it fits all of them. Empty filters let everything through."""

    devices: Sequence[str] = ()
    """Machines, by the names that results show, or by a profile that they were measured under."""
    workloads: Sequence[str] = ()
    """Full or short names. A full one may leave out options, which then may have any value; without any, it is the model
    without options or else the only one of this reference. A label that several models have means all of them; one that once
    told a model apart from others, that model."""
    families: Sequence[str] = ()
    compilers: Sequence[str] = ()
    """Names, with or without the flags that were given."""
    precisions: Sequence[str] = ()
    """Precisions that were asked for."""
    batch_sizes: Sequence[int] = ()
    studies: Sequence[str] = ()
    """Names, ids, or ids of their runs."""
    git_commits: Sequence[str] = ()
    """Commits from which studies were run, or how they begin."""
    baselines: Sequence[str] = ()
    """What ratios refer to: labels of compilers."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the study run."""
    since: datetime | str | None = None
    """Studies that began then or later: a time, or text as `moment` reads it."""
    until: datetime | str | None = None
    """Studies that began before."""

    def of_runs(self, runs: Sequence[Listed]) -> list[Listed]:
        """The study runs that can have results that are meant, as far as their tags tell."""
        return [run for run in runs if all(run.tags.get(name) == value for name, value in self.tags.items())]

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows that are meant; `of_runs` has looked at ``tags``."""
        import pandas as pd

        mask = pd.Series(True, frame.index)
        for name in self._asked():
            mask &= self._fits(frame, name)
        if self.since is not None:
            mask &= frame["started_at"] >= moment(self.since).timestamp()
        if self.until is not None:
            mask &= frame["started_at"] < moment(self.until).timestamp()
        rows: pd.DataFrame = frame[mask]
        return rows

    def check(self, frame: pd.DataFrame) -> None:
        """Complain about what no result fits, and say what there is.

        Parameters
        ----------
        frame : pd.DataFrame
            All results.

        Raises
        ------
        UnknownNameError
            There is nothing of a name that is asked for.
        UsageError
            A name may mean several workloads, or the filters let nothing through together.
        """
        for name in self._asked():
            known = _known(frame, name)
            for value in map(str, getattr(self, name)):
                if not any(_any_means(name, _meant(name, [value], known, frame), text) for text in known):
                    if name == "workloads" and len(several := _may_mean(value, frame)) > 1:
                        raise UsageError(f"workload {value!r} is ambiguous: {few(several)}")
                    named = known - _known(frame, name, ["run_id"])
                    raise UnknownNameError(FILTERED[name][0].replace("_", " "), value, named)
        if len(frame) and self.of(frame).empty:
            raise UsageError(f"no result fits all filters: {'; '.join(self._alone(frame))}")

    def _alone(self, frame: pd.DataFrame) -> list[str]:
        """How many cells each filter lets through by itself."""
        clauses = []
        for criterion in fields(self):
            value = getattr(self, criterion.name)
            if not value or criterion.name == "tags":
                continue
            left = Selection(**{criterion.name: value}).of(frame)
            text = f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value
            text = text if isinstance(text, str) else ", ".join(map(str, text))
            clauses.append(f"{criterion.name.replace('_', ' ')} {text} alone fits {len(left)} of {len(frame)} cells")
        started = frame["started_at"].dropna()
        if len(started) and (self.since is not None or self.until is not None):
            first, last = (datetime.fromtimestamp(at, timezone.utc) for at in (started.min(), started.max()))
            clauses.append(f"studies began between {first:%Y-%m-%d %H:%M} and {last:%Y-%m-%d %H:%M} UTC")
        return clauses

    def _asked(self) -> list[str]:
        return [name for name in FILTERED if getattr(self, name)]

    def _fits(self, frame: pd.DataFrame, name: str) -> pd.Series[bool]:
        import pandas as pd

        wanted = _meant(name, list(map(str, getattr(self, name))), _known(frame, name), frame)
        fits: pd.Series[bool] = pd.Series(False, frame.index)
        for column in (frame[column].astype("string") for column in FILTERED[name] if column in frame):
            fits |= column.isin([text for text in column.dropna().unique() if _any_means(name, wanted, text)])
        # A profile stands for its machine, with what was measured there under another one.
        return frame["device"].isin(frame.loc[fits, "device"].unique()) if name == "devices" else fits


def _known(frame: pd.DataFrame, name: str, columns: Collection[str] | None = None) -> set[str]:
    """What a filter can name, in all of its columns or in some of them, as far as a table has them."""
    asked = [column for column in FILTERED[name] if column in frame and (columns is None or column in columns)]
    return {str(value) for column in asked for value in frame[column].dropna().unique()}


def moment(text: datetime | str) -> datetime:
    """A point in time: ``2026-05-01``, ``2026-05-01T12:30``, or how long ago: ``30m``, ``12h``, ``7d``, ``2w``.

    A time without a zone is local time.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if isinstance(text, datetime):
        return text.astimezone()
    ago = _AGO.fullmatch(text.strip())
    if ago:
        return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        raise UsageError(f"{text!r} is no time: write 2026-05-01, 2026-05-01T12:30, or how long ago, as 7d") from None


def baseline(text: str) -> tuple[str, str]:
    """The column and the value of a baseline such as ``compiler=identity``.

    Raises
    ------
    UsageError
        It is not of this form.
    """
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise UsageError(f"{text!r} is no baseline: write compiler=identity, device=xeon, study=NAME, or so")
    return column, value


def _meant(name: str, wanted: Sequence[str], known: Collection[str], frame: pd.DataFrame) -> list[str]:
    """The values of a filter, with the whole reference for a name that only one workload may have, and every name that a label has
    got because several models have it.
    """
    if name != "workloads":
        return list(wanted)
    meant = []
    for value in wanted:
        whole = [] if value in known else _may_mean(value, frame)
        alike = [text for text in known if base_label(text) == value]
        meant += whole if len(whole) == 1 else [value] if value in known else alike or [value]
    return meant


def _may_mean(name: str, frame: pd.DataFrame) -> list[str]:
    """The references of the workloads that a name may mean which none of them has."""
    models = frame.reindex(columns=["workload", "label"]).dropna().drop_duplicates("workload")
    return sorted(ref for ref, label in models.itertuples(index=False) if matches(name, ref, label))


def _any_means(name: str, wanted: Sequence[str], text: str) -> bool:
    """Whether one of the values of a filter means what a cell has."""
    if name == "git_commits":
        return text.startswith(tuple(wanted))
    return text in wanted or (name == "workloads" and any(_without_some_options(value, text) for value in wanted))


def _without_some_options(value: str, text: str) -> bool:
    """Whether a reference such as ``block:mha?width=16`` leaves open some options of a canonical one, which has all.

    Without any options it is a model of its own: ``timm:resnet18`` is not ``timm:resnet18?image_size=64``.
    """
    measured = WorkloadRef.recorded(text)
    if measured is None or not value.startswith(f"{measured.model}?"):
        return False
    named = WorkloadRef.parse(value).options.items()
    return bool(named) and named <= measured.options.items()
