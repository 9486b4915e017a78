"""``mlflow-ngraph results bisect``: find a compiler's first wrong operator, and write the smallest wrong model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import NGraphError, UsageError
from mlflow_ngraph.text import counted, duration

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.cells import Cell
    from mlflow_ngraph_bisect.why import Answer, Question

_NAMED = 10
"""Operators of the smallest model that are listed."""


@click.command()
@click.argument("cell")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@click.option("--study", metavar="NAME", help="The study to look at, by name or id; the newest that fits by default.")
@click.option(
    "--into", type=click.Path(path_type=Path), help="A new folder for the smallest wrong model (default: bisect-CELL)."
)
@output.json_option
def bisect(cell: str, home: Path | None, study: str | None, into: Path | None, as_json: bool) -> int:
    """Find the first operator that a compiler computes wrongly.

    CELL is WORKLOAD/COMPILER/bBATCH of a study of this machine, such as resnet18/openvino/b8, or the id of a cell.
    Parts of its model are compiled anew to find the first operator whose output differs from the result in float64 by
    more than rounding explains. The smallest model that shows it is written into a folder, ready for a report to the
    compiler's authors.
    """
    from mlflow_ngraph.analysis import cells as recorded
    from mlflow_ngraph_bisect import why

    place = home_directory.directory(home)
    found = recorded.choose([cell], recorded.of_home(place, study))
    if len(found) != 1:
        raise UsageError(f"{cell} means {len(found)} cells: name one")
    (wanted,) = found
    directory = (into or Path(re.sub(r"[^\w.-]+", "-", f"bisect-{wanted.address}").strip("-"))).absolute()
    if directory.exists():
        raise UsageError(f"{directory} is there already: name a new folder with --into")
    question = _question(wanted, place / "studies" / wanted.study_id, directory)
    with waiting(f"compiling parts of {wanted.address} until the first wrong operator is found", logged=True):
        answer = why.ask(question)
    if as_json:
        output.print_json({"cell": wanted.id, "address": wanted.address, **asdict(answer)})
    else:
        console = output.console()
        for line in _lines(wanted, answer):
            # Names and paths are to be copied: they are never broken.
            console.print(line, soft_wrap=":  " in line or line.startswith(" "))
    return 0


def _question(cell: Cell, directory: Path, into: Path) -> Question:
    from mlflow_ngraph.devices.registry import create
    from mlflow_ngraph.execute import replay
    from mlflow_ngraph_bisect.why import LIMIT_S, Question

    record = replay.load(directory)
    lane_record = next(lane for lane in record.lanes.values() if lane.lane.cell(cell.batch) == cell.id)
    lane, measured = lane_record.lane, lane_record.cells.get(cell.batch)
    materials = record.workloads.get(lane.workload)
    if materials is None or lane_record.engine_at(cell.batch) is None:
        raise NGraphError(f"{cell.address}: there is no engine that could be wrong: {cell.verdict}: {cell.reason}")
    if record.study.get("build_for"):
        raise NGraphError(f"{cell.address}: it was built for {record.study['build_for']}: bisect it there")
    kept = (measured.verified.get("kept") or "") if measured is not None else ""
    return Question(
        workload=materials["ref"],
        init=record.study["init"],
        seed=record.study["seed"],
        digest=materials["digest"],
        batch=cell.batch,
        compiler=lane.compiler,
        flags=dict(lane.flags),
        target={
            "precision": lane.precision,
            "mode": lane.mode,
            "threads": lane.threads,
            "accelerator": create(record.device).accelerator,
            "transfers": lane.transfers,
            "build_for": "",
        },
        kept=str(directory / kept) if kept and (directory / kept).is_file() else "",
        directory=str(into),
        limit_s=min(LIMIT_S, record.study["limits"]["compile_seconds"]),
    )


def _lines(cell: Cell, answer: Answer) -> Iterator[str]:
    if answer.right:
        yield f"{cell.address}: no operator is computed wrongly: {answer.right}"
    else:
        yield f"{cell.address} is wrong"
        yield f"output:          {answer.output}, {answer.wrong}"
        yield f"first wrong:     {answer.operator}, node {answer.node}"
        yield f"its output:      {answer.node_output}, {answer.smallest}"
        yield f"smallest model:  {_smallest(answer)}"
        yield f"written to:      {answer.directory}"
        yield f"                 {', '.join(answer.files)}"
        if answer.reproduced:
            yield "                 python repro.py shows it without mlflow-ngraph"
        elif answer.reproduced is not None:
            yield "                 python repro.py does not show it: the fault needs the adapter's settings"
    for remark in answer.remarks:
        yield f"note: {remark}"
    if answer.out_of_time:
        yield "note: the time was over before every node was tried: a smaller model may do"
    yield f"took {duration(answer.seconds)}, {counted(answer.tries, 'model')} compiled"


def _smallest(answer: Answer) -> str:
    count = len(answer.together)
    if count == 1:
        return f"this node alone, of {counted(answer.nodes, 'node')}"
    more = f", {count - _NAMED} more" if count > _NAMED else ""
    return f"{count} of {answer.nodes} nodes, right by themselves: {', '.join(answer.together[:_NAMED])}{more}"
