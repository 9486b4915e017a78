"""``mlflow-ngraph results gate``: fail when cells are missing, or worse than a baseline's beyond a threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, filter_options, tell
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.errors import NO_GOOD_ANSWER, UsageError
from mlflow_ngraph_changes.cli import gate_report

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.selection import Selection
    from mlflow_ngraph_changes.gate import Side

FORMATS = ("table", "markdown", "json")
_CODES = {"passed": 0, "failed": 1, "could not tell": NO_GOOD_ANSWER}
"""Exit codes by outcome."""
_SOURCE = "a run's id, a study's name (its latest run, NAME~1 the one before), models:/NAME@ALIAS, commit:SHA, or a file of results."


@click.command(cls=FilteredCommand)
@click.argument("study", required=False)
@click.option("--candidate", metavar="WHAT", help=f"What is judged, instead of STUDY: {_SOURCE}")
@click.option("--baseline", metavar="WHAT", help="What it is judged by; by default the study of the same name on the same "
              f"machine that was measured before: {_SOURCE}")  # fmt: skip
@click.option("--threshold", "thresholds", multiple=True, metavar="METRIC=CHANGE%,...",
              help="How much may change for the worse (default: speedup=-3%, throughput where there is none).")  # fmt: skip
@click.option("--across-machines", is_flag=True, help="Compare also what was measured on different machines.")
@click.option("--summary", metavar="FILE", help="Also write a Markdown summary, as for a pull request.")
@click.option("--junit", metavar="FILE", help="Also write JUnit XML.")
@filter_options
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@output.json_option
def gate(
    study: str | None,
    candidate: str | None,
    baseline: str | None,
    thresholds: Sequence[str],
    across_machines: bool,
    summary: str | None,
    junit: str | None,
    form: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Judge a candidate by a baseline, cell by cell: 'gate STUDY' its latest run by the one before.

    Fails where a metric is worse by more than its threshold and chance does not explain it, and where a cell is missing or
    no longer ok. Where nothing fails, but a change of the size of the threshold would escape notice, it could not tell.
    Exit code 0: passed, 1: failed, 2: the request was wrong, 3: could not tell.
    """
    if (study is None) == (candidate is None):
        raise UsageError("name what is judged: a STUDY, or --candidate WHAT")
    judged = study or candidate or ""
    asked = Asked(given)
    form = writing.form("json" if as_json else form, None, FORMATS, {})

    from mlflow_ngraph_changes import gate as gating
    from mlflow_ngraph_changes import gate_sources

    allowed = [gating.Threshold.parse(text) for text in items(thresholds)]
    selection = asked.selection()
    named = [judged, *([baseline] if baseline else [])]
    read = cache(partial(_read, asked, named))
    on_server = not all(map(gate_sources.is_file, named))
    if selection.devices and on_server:
        selection = replace(selection, devices=_shown(read(), selection.devices))
    everything = partial(_on_devices, read, selection)
    new = gate_sources.load(judged, asked.uris, everything)
    old = gate_sources.load(baseline, asked.uris, everything) if baseline else gate_sources.before(new, everything())
    if new.name == old.name != judged:
        raise UsageError(f"candidate and baseline are the same study, {new.name}: name another one, as {judged}~1")
    new, old = _chosen(new, selection), _chosen(old, selection)
    history = _history(read) if on_server else None
    told = gating.gate(new, old, allowed, across_machines=across_machines, history=history)
    if summary:
        writing.write(gate_report.markdown(told), summary)
    if junit:
        writing.write(gate_report.junit(told), junit)
    if form == "json":
        click.echo(gate_report.json(told), nl=False)
    elif form == "markdown":
        click.echo(gate_report.markdown(told), nl=False)
    else:
        gate_report.show(told)
    return _CODES[told.about["outcome"]]


def _read(asked: Asked, named: Sequence[str]) -> pd.DataFrame:
    """Results of the experiments that the sides are in, as far as they are runs, without what was imported and is not named."""
    from mlflow_ngraph.analysis import study_names

    found = asked.find(runs=[name for name in named if study_names.RUN_ID.fullmatch(name)])
    frame, omitted = study_names.without_imported(asked.read(found=found), named)
    tell(found)
    if omitted:
        output.tell(f"note: {omitted}")
    return frame


def _shown(frame: pd.DataFrame, devices: Sequence[str]) -> Sequence[str]:
    """Devices as they were asked for, and as results show their machines."""
    from mlflow_ngraph.analysis.selection import Selection

    meant = Selection(devices=devices)
    meant.check(frame)
    return [*devices, *map(str, meant.of(frame)["device"].unique())]


def _on_devices(read: Callable[[], pd.DataFrame], selection: Selection) -> pd.DataFrame:
    """All results of the devices that are meant: a name that studies of several devices have means those of these."""
    from mlflow_ngraph.analysis.selection import Selection

    return Selection(devices=selection.devices).of(read())


def _history(read: Callable[[], pd.DataFrame]) -> pd.DataFrame | None:
    """All results of the servers that one of the sides came from."""
    try:
        return read()
    except UsageError:  # the sides are of other experiments than those that are read
        return None


def _chosen(side: Side, selection: Selection) -> Side:
    """Rows of a side that pass the filters."""
    from mlflow_ngraph.analysis.selection import FILTERED

    needed = {name: columns for name, columns in FILTERED.items() if getattr(selection, name)}
    needed |= {name: ("started_at",) for name in ("since", "until") if getattr(selection, name)}
    for name, columns in needed.items():
        if set(columns).isdisjoint(side.frame.columns):
            names = " and ".join(columns)
            raise UsageError(f"{side.name} does not tell {names}, so --{name.replace('_', '-')} cannot be applied")
    return replace(side, frame=selection.of(side.frame).reset_index(drop=True))
