"""``mlflow-ngraph results report``: write the paper's tables and figures for one's own results; log them to runs."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, filter_options, tell
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.listing import Server
    from mlflow_ngraph_report.files import Drawn

_TARGET = "ngraph-report"


@click.command(cls=FilteredCommand)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@filter_options
@click.option(
    "--output", "target", metavar="DIR|FILE.html", default=_TARGET, show_default=True,
    help="A directory for everything, or a file for the page alone.",
)  # fmt: skip
@click.option("--paper", is_flag=True, help="Set each table beside the paper's own numbers.")
@click.option("--include", metavar="VERDICT,...", help="Also count numbers with these verdicts.")
@click.option("--title", metavar="TEXT", help="The heading of the report.")
@click.option("--no-log", is_flag=True, help="Do not log the report to its study runs.")
@output.json_option
def report(
    runs: tuple[str, ...],
    target: str,
    paper: bool,
    include: str | None,
    title: str | None,
    no_log: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Write a report: the environment, tables 3 to 8 and figures 1 and 5 to 12 of the paper from your own results.

    RUN is the id of a study run or lane run, or the id or name of a study, of which the latest counts. Without RUN, all
    results that match the filters are used. The page works offline. It is logged to the named runs, or to the study run
    if all results are from one; not where you may only read it.
    """
    asked = Asked(given)
    included = items(include)
    require_known("verdict", included, list(map(str, Verdict)))
    selection = asked.selection()

    from mlflow_ngraph.analysis.listing import Server
    from mlflow_ngraph_report.build import build
    from mlflow_ngraph_report.files import draw, write

    read = [Server(uri) for uri in asked.uris] if asked.uris else [Server()]
    servers = {server.name: server for server in read}
    found = asked.find(everywhere=bool(runs))
    every = _of_runs(asked.read(found=found), runs, servers)
    tell(found)
    selection.check(every)
    frame = selection.of(every)
    where = [] if no_log else _where(frame, servers, named=bool(runs))
    named: Any = {"title": title} if title else {}
    made = build(frame, servers=servers, include=included, paper=paper, scope=shlex.join(asked.scope()), **named)
    drawn = draw(made)
    written = write(drawn, Path(target))
    logged = _log(drawn, where)
    _tell(drawn, written, logged, as_json=as_json)
    return 0


def _of_runs(frame: pd.DataFrame, runs: tuple[str, ...], servers: dict[str, Server]) -> pd.DataFrame:
    if not runs:
        return frame
    from mlflow_ngraph.analysis import study_names

    known = set(frame["run_id"].dropna())
    study_runs: set[str] = set()
    for run in runs:
        of_run = {run} & known or _of_lane(frame[(frame["lane_run_id"] == run).fillna(False)], run, servers)
        study = None if of_run else study_names.find(frame, run)
        if not of_run and study is None:
            raise UsageError(
                f"no results of {run}: name a study, or a study run or lane run, of the server that is read, with --tracking-uri"
            )
        study_runs.update(of_run if study is None else [study.run_id])
    chosen: pd.DataFrame = frame[frame["run_id"].isin(study_runs)]
    return chosen


def _of_lane(rows: pd.DataFrame, lane_run: str, servers: dict[str, Server]) -> set[str]:
    """Study run of a lane run. Any table may name the lane run, so the server is asked."""
    return {
        run_id
        for server in rows["tracking_uri"].dropna().unique()
        if (run_id := servers[server].study_run(lane_run).run_id) in set(rows["run_id"])
    }


def _where(frame: pd.DataFrame, servers: dict[str, Server], *, named: bool) -> list[tuple[str, str]]:
    """Servers and runs to log the report to: those that it is about, unless it covers all results."""
    from mlflow_ngraph_report import files

    runs = frame[["tracking_uri", "run_id"]].dropna().drop_duplicates()
    if not named and len(runs) > 1:
        return []
    where = [(servers[str(uri)].uri, str(run_id)) for uri, run_id in runs.itertuples(index=False)]
    denied = {(uri, run_id): why for uri, run_id in where if (why := files.denied(uri, run_id))}
    for (_, run_id), why in denied.items():
        output.tell(f"note: the report is not logged to run {run_id}: {why}")
    return [run for run in where if run not in denied]


def _log(drawn: Drawn, where: list[tuple[str, str]]) -> list[str]:
    from mlflow_ngraph_report import files

    if not where:
        return []
    with tempfile.TemporaryDirectory() as temporary:
        files.write(drawn, Path(temporary))
        return [files.log(uri, run_id, Path(temporary), files.PAGE) for uri, run_id in where]


def _tell(drawn: Drawn, written: list[Path], logged: list[str], *, as_json: bool) -> None:
    from mlflow_ngraph.tables.sheet import Sheet
    from mlflow_ngraph_report.blocks import Figure, Missing, Text
    from mlflow_ngraph_report.overview import ANSWER

    parts = [
        {
            "key": block.key,
            "title": block.title,
            "kind": "missing" if isinstance(block, Missing) else "table" if isinstance(block, Sheet) else "figure",
            "reason": block.reason if isinstance(block, Missing) else "",
        }
        for block in drawn.report.blocks()
        if isinstance(block, (Missing, Sheet, Figure))
    ]
    if as_json:
        files = [str(path) for path in written]
        output.print_json({"page": files[0], "files": files, "logged": logged, "parts": parts})
        return
    console = output.console()
    answers = [block for block in drawn.report.blocks() if isinstance(block, Text) and block.key == ANSWER]
    for line in (line for block in answers for line in block.paragraphs):
        console.print(line, style="bold", soft_wrap=True)
    counts = {kind: sum(part["kind"] == kind for part in parts) for kind in ("table", "figure")}
    console.print(f"wrote {written[0]}: {counts['table']} tables, {counts['figure']} figures", soft_wrap=True)
    console.print(f"open {written[0].resolve().as_uri()}", soft_wrap=True)
    missing = [str(part["title"]).partition(":")[0] for part in parts if part["kind"] == "missing"]
    if missing:
        console.print(
            f"not there: {', '.join(dict.fromkeys(missing))}; its end says what each needs", style="dim", soft_wrap=True
        )
    for address in logged:
        console.print(f"logged as {address}", soft_wrap=True)
