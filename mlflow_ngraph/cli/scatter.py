"""``mlflow-ngraph scatter``: where the scatter of a study's figures comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.text import counted, missing, plain

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@click.argument("study", metavar="RUN|DIRECTORY")
@click.option("--tracking-uri", metavar="URI", help="Where to read; by default what MLflow is configured to use.")
@output.json_option
def scatter(study: str, tracking_uri: str | None, as_json: bool) -> int:
    """Say what the error of each cell of a study comes from, and how long its slices should be.

    RUN is the id of a study run, or of one of its lane runs, or the name or id of a study; DIRECTORY that of a study of this machine. Processes, the
    slices of a process, and the repetitions of a slice each scatter by themselves; the error of a mean is mostly that of
    whatever there are few of that differ much. A level without a figure had one unit only, or cannot be told from the one
    above it.
    """
    from mlflow_ngraph.analysis.scatter import scatter as apart

    table = apart(study, tracking_uri)
    if as_json:
        output.print_json([{name: plain(value) for name, value in row.items()} for row in table.to_dict("records")])
        return 0
    console = output.console()
    if table.empty:
        console.print("nothing was timed")
        return 0
    titles: list[tables.Column] = [
        "workload",
        ("batch", tables.RIGHT),
        "compiler",
        *(("SD % of a process", tables.RIGHT), ("of a slice", tables.RIGHT), ("of a repetition", tables.RIGHT)),
        *(("units", tables.spare(3, tables.RIGHT)), ("of the error", tables.RIGHT)),
        *(("slice", tables.RIGHT), ("best", tables.RIGHT), ("paired away", tables.spare(1, tables.RIGHT))),
    ]
    tables.show(console, titles, [_row(row) for row in table.to_dict("records")])
    console.print()
    for line in _conclusions(table):
        console.print(line)
    return 0


def _row(row: dict[Any, Any]) -> tuple[str | None, ...]:
    from mlflow_ngraph.analysis.scatter import LEVELS

    shares = {level: row[f"{level}_of_error"] for level in LEVELS if not missing(row[f"{level}_of_error"])}
    most = max(shares, key=lambda level: shares[level], default=None)
    return (
        row["workload"],
        str(row["batch"]),
        row["compiler"],
        *(_percent(row[f"{level}_deviation"], ".2f") for level in LEVELS),
        "/".join(str(row[f"{level}_units"]) for level in LEVELS),
        None if most is None or not shares[most] else f"{shares[most]:.0%} {most}",
        f"{row['slice_length']:.3g}",
        None if missing(row["best_slice_length"]) else _length(row["best_slice_length"]),
        _percent(row["paired_away"], ".0f"),
    )


def _percent(value: float | None, form: str) -> str | None:
    return None if missing(value) or value is None else f"{100 * value:{form}}"


def _length(best: float) -> str:
    return "any" if best == float("inf") else f"{max(1, round(best))}"


def _conclusions(table: pd.DataFrame) -> list[str]:
    """What to measure more of."""
    from mlflow_ngraph.analysis.scatter import LEVELS

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
