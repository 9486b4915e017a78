"""``mlflow-ngraph results variance``: sources of the scatter of a study's figures, and the best slice length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.tables.sheet import Head, Sheet, number
from mlflow_ngraph.text import counted, decimals, json_records, missing

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@click.argument("study", metavar="RUN|DIRECTORY")
@click.option("--tracking-uri", metavar="URI", help="Where to read; by default what MLflow is configured to use.")
@output.json_option
def variance(study: str, tracking_uri: str | None, as_json: bool) -> int:
    """Say what the error of each cell of a study comes from, and how long its slices should be.

    RUN is the id of a study run, or of one of its lane runs, or the name or id of a study; DIRECTORY that of a study of this machine. Processes, the
    slices of a process, and the repetitions of a slice each scatter by themselves; the error of a mean is mostly that of
    whatever there are few of that differ much. A level without a figure had one unit only, or cannot be told from the one
    above it.
    """
    from mlflow_ngraph_archives.variance import scatter as apart

    table = apart(study, tracking_uri)
    if as_json:
        output.print_json(json_records(table))
        return 0
    columns: list[Head] = [
        *(number("batch"), "compiler"),
        *(number(title, spare=2) for title in ("SD % of a process", "of a slice", "of a repetition")),
        *(number("units", spare=3), number("of the error"), number("slice"), number("best")),
        number("paired away", spare=1),
    ]
    sheets = [
        Sheet(str(workload), columns, list(map(_row, own.to_dict("records"))))
        for workload, own in table.groupby("workload", sort=False)
    ]
    tables.show(output.console(), *sheets, *(["nothing was timed"] if table.empty else _conclusions(table)))
    return 0


def _row(row: dict[Any, Any]) -> tuple[str | None, ...]:
    from mlflow_ngraph_archives.variance import LEVELS

    shares = {level: row[f"{level}_of_error"] for level in LEVELS if not missing(row[f"{level}_of_error"])}
    most = max(shares, key=lambda level: shares[level], default=None)
    return (
        str(row["batch"]),
        row["compiler"],
        *(_percent(row[f"{level}_deviation"], 2) for level in LEVELS),
        "/".join(str(row[f"{level}_units"]) for level in LEVELS),
        None if most is None or not shares[most] else f"{shares[most]:.0%} {most}",
        f"{row['slice_length']:.3g}",
        None if missing(row["best_slice_length"]) else _length(row["best_slice_length"]),
        _percent(row["paired_away"], 0),
    )


def _percent(share: float | None, places: int) -> str | None:
    return None if missing(share) or share is None else decimals(100 * share, places)


def _length(best: float) -> str:
    return "any" if best == float("inf") else f"{max(1, round(best))}"


def _conclusions(table: pd.DataFrame) -> list[str]:
    from mlflow_ngraph_archives.variance import LEVELS

    shares = table[[f"{level}_of_error" for level in LEVELS]].astype(float)
    known = shares[shares.sum(axis=1) > 0]
    if known.empty:
        return ["one slice of one process tells nothing of the next: measure more rounds"]
    mostly = known.idxmax(axis=1).str.removesuffix("_of_error").value_counts()
    remedies = {
        "process": "fresh processes for more rounds, or a larger limit reload_seconds, would lower it",
        "slice": "more rounds would lower it, longer slices would not",
        "repetition": "longer slices would lower it, as more rounds would",
    }
    lines = [
        f"in {number} of {counted(len(known), 'cell')} the error of the mean comes mostly from the {level}: {remedies[level]}"
        for level, number in mostly.items()
    ]
    gains = table["time_at_best"].dropna()
    if len(gains):
        lines.append(
            f"with slices of the best length the same error would take {gains.median():.0%} of the time (median of "
            f"{counted(len(gains), 'cell')})"
        )
    return lines
