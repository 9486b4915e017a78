"""``mlflow-ngraph explain --why``: the first operator that a compiler computes wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import NGraphError, UsageError
from mlflow_ngraph.text import counted, duration

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.cells import Cell
    from mlflow_ngraph.reduction.why import Answer, Question

_NAMED = 10
"""Operators of the smallest model that are listed."""


def first_wrong(queries: Sequence[str], home: Path, study: str | None, into: Path | None, *, as_json: bool) -> int:
    """Look for it in the cell that ``queries`` name, and print what was found.

    Raises
    ------
    UsageError
        They name no cell, or several; or the folder is there already.
    NGraphError
        The engine cannot be compiled again.
    """
    from mlflow_ngraph.analysis import cells as recorded
    from mlflow_ngraph.reduction import why

    found = recorded.choose(queries, recorded.of_home(home, study))
    if len(found) != 1:
        raise UsageError(f"--why looks into one cell, not into {len(found)}: name one")
    (cell,) = found
    directory = (into or Path(re.sub(r"[^\w.-]+", "-", f"why-{cell.address}").strip("-"))).absolute()
    if directory.exists():
        raise UsageError(f"{directory} is there already: name a new folder with --into")
    question = _question(cell, home / "studies" / cell.study_id, directory)
    with waiting(f"compiling parts of {cell.address} until the first wrong operator is found", logged=True):
        answer = why.ask(question)
    if as_json:
        output.print_json({"cell": cell.id, "address": cell.address, **asdict(answer)})
    else:
        console = output.console()
        for line in _lines(cell, answer):
            # Names and paths are to be copied: they are never broken.
            console.print(line, soft_wrap=":  " in line or line.startswith(" "))
    return 0


def _question(cell: Cell, directory: Path, into: Path) -> Question:
    from mlflow_ngraph.devices.registry import create
    from mlflow_ngraph.execute import fold
    from mlflow_ngraph.reduction.why import LIMIT_S, Question

    record = fold.load(directory)
    lane_record = next(lane for lane in record.lanes.values() if lane.lane.cell(cell.batch) == cell.id)
    lane, measured = lane_record.lane, lane_record.cells.get(cell.batch)
    materials = record.workloads.get(lane.workload)
    if materials is None or lane_record.engine_at(cell.batch) is None:
        raise NGraphError(f"{cell.address}: there is no engine that could be wrong: {cell.verdict}: {cell.reason}")
    if record.study.get("build_for"):
        raise NGraphError(f"{cell.address}: it was built for {record.study['build_for']}: ask --why there")
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
