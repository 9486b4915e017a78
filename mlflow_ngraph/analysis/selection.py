"""Filters on the tidy table, shared by Python and all verbs.

Importing pandas is slow, so it waits until a table is filtered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import UnknownNameError, UsageError, few
from mlflow_ngraph.metrics import PROFILE
from mlflow_ngraph.workloads.base import CONTENT, WorkloadRef
from mlflow_ngraph.workloads.naming import base_label, matches

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.listing import ListedRun

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
"""Columns of each filter."""
FILTER_COLUMNS = (*(name for names in FILTERED.values() for name in names), "content")
_AGO = re.compile(r"(\d+)\s*(m|h|d|w)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Selection:
    """Filters; a cell has to match all of them. Empty filters match everything."""

    devices: Sequence[str] = ()
    """Machines by their name in results, or by profile."""
    workloads: Sequence[str] = ()
    """Full references or labels. A reference may omit options, which then match any value; without any options it means
    the model without options, or else the only one with this reference. A label shared by models selects all of them. A
    label that once distinguished a model selects that model. Behind each may stand the digest of the model, or its
    beginning, as in ``torch:m:net@1a2b3c4d``; without one all models of a name are selected."""
    families: Sequence[str] = ()
    compilers: Sequence[str] = ()
    """Names, with or without flags."""
    precisions: Sequence[str] = ()
    batch_sizes: Sequence[int] = ()
    studies: Sequence[str] = ()
    """Names, ids, or ids of study runs."""
    git_commits: Sequence[str] = ()
    """Commits of studies, or prefixes of them."""
    baselines: Sequence[str] = ()
    """Labels of compilers that ratios refer to."""
    tags: Mapping[str, str] = field(default_factory=dict)
    since: datetime | str | None = None
    """Earliest start of studies: a time, or text as `moment` reads it."""
    until: datetime | str | None = None
    """Latest start of studies."""

    def of_runs(self, runs: Sequence[ListedRun]) -> list[ListedRun]:
        """Study runs that may match, by their tags."""
        return [run for run in runs if all(run.tags.get(name) == value for name, value in self.tags.items())]

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Select the matching rows. `of_runs` handles ``tags``."""
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
        """Refuse filters without a match, and list the choices.

        Raises `UnknownNameError` if there is nothing of a name that is asked for, and `UsageError` if a name may mean
        several workloads, or the filters let nothing through together.
        """
        self.check_names(frame)
        if len(frame) and self.of(frame).empty:
            raise UsageError(f"no result fits all filters: {'; '.join(self._alone(frame))}")

    def check_names(self, frame: pd.DataFrame) -> None:
        """As `check`, but for filters that match nothing together."""
        for name in self._asked():
            for value in map(str, getattr(self, name)):
                alone: dict[str, Any] = {name: (value,)}
                if Selection(**alone).of(frame).empty:
                    known = _known(frame, name)
                    if name == "workloads" and len(several := _may_mean(value, frame)) > 1:
                        raise UsageError(f"workload {value!r} is ambiguous: {few(several)}")
                    named = known - _known(frame, name, ["run_id"])
                    raise UnknownNameError(FILTERED[name][0].replace("_", " "), value, named)

    def _alone(self, frame: pd.DataFrame) -> list[str]:
        """Matches of each filter by itself."""
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

        from mlflow_ngraph.tables import distinct

        known, values = _known(frame, name), list(map(str, getattr(self, name)))
        wanted = _meant(name, values, known, frame)
        fits: pd.Series[bool] = pd.Series(False, frame.index)
        for value in values if name == "workloads" else ():
            if value not in known and (content := CONTENT.search(value)):
                own = distinct.by_name(frame[distinct.is_content(frame, content[0][1:])])
                meant = Selection(workloads=(CONTENT.sub("", value),)).of(own)
                fits |= frame.index.isin(meant.index)
        for column in (frame[column].astype("string") for column in FILTERED[name] if column in frame):
            fits |= column.isin([text for text in column.dropna().unique() if _any_means(name, wanted, text)])
        # A profile selects its whole machine, with results of other profiles.
        return frame["device"].isin(frame.loc[fits, "device"].unique()) if name == "devices" else fits


def _known(frame: pd.DataFrame, name: str, columns: Collection[str] | None = None) -> set[str]:
    """Values that a filter can name, in all or some of its columns."""
    asked = [column for column in FILTERED[name] if column in frame and (columns is None or column in columns)]
    return {str(value) for column in asked for value in frame[column].dropna().unique()}


def moment(text: datetime | str) -> datetime:
    """Parse a time: ``2026-05-01``, ``2026-05-01T12:30``, or an age: ``30m``, ``12h``, ``7d``, ``2w``.

    Times without a zone are local.
    """
    if isinstance(text, datetime):
        return text.astimezone()
    ago = _AGO.fullmatch(text.strip())
    if ago:
        try:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except (OverflowError, ValueError):
            raise UsageError(f"{text!r} is longer ago than there are dates") from None
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        raise UsageError(f"{text!r} is no time: write 2026-05-01, 2026-05-01T12:30, or how long ago, as 7d") from None


def baseline(text: str) -> tuple[str, str]:
    """Split a baseline such as ``compiler=identity`` into column and value."""
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise UsageError(f"{text!r} is no baseline: write compiler=identity, device=xeon, study=NAME, or so")
    return column, value


def _meant(name: str, wanted: Sequence[str], known: Collection[str], frame: pd.DataFrame) -> list[str]:
    """Resolve names of workloads: incomplete references, and labels shared by models."""
    if name != "workloads":
        return list(wanted)
    meant = []
    for value in wanted:
        whole = [] if value in known else _may_mean(value, frame)
        alike = [text for text in known if base_label(text) == value]
        one = len({CONTENT.sub("", text) for text in whole}) == 1
        meant += whole if one else [value] if value in known else alike or [value]
    return meant


def _may_mean(name: str, frame: pd.DataFrame) -> list[str]:
    """References that a name may mean without being one itself."""
    models = frame.reindex(columns=["workload", "label"]).dropna().drop_duplicates("workload")
    return sorted(ref for ref, label in models.itertuples(index=False) if matches(name, ref, label))


def _any_means(name: str, wanted: Sequence[str], text: str) -> bool:
    """Tell if a cell's value matches the filter."""
    if name == "git_commits":
        return text.startswith(tuple(wanted))
    return text in wanted or (name == "workloads" and any(_without_some_options(value, text) for value in wanted))


def _without_some_options(value: str, text: str) -> bool:
    """Tell if a reference such as ``block:mha?width=16`` matches one with more options.

    A reference without options is a model of its own: ``timm:resnet18`` is not ``timm:resnet18?image_size=64``.
    """
    measured = WorkloadRef.recorded(text)
    if measured is None or not value.startswith(f"{measured.model}?"):
        return False
    named = WorkloadRef.parse(value).options.items()
    return bool(named) and named <= measured.options.items()
