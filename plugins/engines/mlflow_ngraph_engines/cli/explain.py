"""``mlflow-ngraph results explain``: operators, partitions and fusions of compiled models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.lists import items, whole
from mlflow_ngraph.errors import NGraphError, UsageError
from mlflow_ngraph.tables.sheet import Head, Sheet, number, prose
from mlflow_ngraph.text import counted, rounded

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.explanation import Kernel
    from mlflow_ngraph_engines.explanations import Explained

FORMATS = ("table", "markdown", "json")
_KERNELS = 10
_NAMES_WIDTH, _CELL_WIDTH = 18, 32
"""Columns of a terminal that the names of rows and one cell need to be readable."""
_NAMED_NODES = 6


@click.command()
@click.argument("cells", metavar="CELL...", nargs=-1, required=True)
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@click.option("--study", metavar="NAME", help="The study to look at, by name or id; the newest that fits by default.")
@click.option("--tracking-uri", metavar="URI", help="Read from this tracking server instead of this machine.")
@click.option("--experiment", "experiments", metavar="NAME,...", help="Read from the tracking server: experiments.")
@click.option("--run", metavar="ID", help="Read from the tracking server: a study run or a lane run.")
@click.option("--kernels", metavar="N", help=f"How many kernels to list, 0 for none (default: {_KERNELS}).")
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@output.json_option
def explain(
    cells: tuple[str, ...],
    home: Path | None,
    study: str | None,
    tracking_uri: str | None,
    experiments: str | None,
    run: str | None,
    kernels: str | None,
    form: str | None,
    as_json: bool,
) -> int:
    """Explain what compilers made of a model: nodes, fusions, layouts, kernels, and what else they tell.

    CELL is WORKLOAD/COMPILER/bBATCH as the results show them, such as resnet18/openvino/b8, or the id of a cell. The *
    stands for any text: 'resnet18/*/b8' puts all compilers side by side. Where studies had more than one precision it
    may stand before the batch size. The newest study of this machine that has the cell counts.
    """
    form = "json" if as_json else form or "table"
    if form not in FORMATS:
        raise UsageError(f"format: expected {', '.join(FORMATS)}, found {form!r}")
    most = whole("kernels", kernels) if kernels else _KERNELS

    from mlflow_ngraph_engines import explanation_tables as forms

    explained = _find(cells, home, study, tracking_uri, experiments, run)
    if all(answer.explanation is None for answer in explained):
        raise NGraphError(f"{explained[0].cell.address}: {explained[0].problem}")
    for answer in explained:
        if others := answer.elsewhere:
            had = f"{counted(len(others), 'other study has', 'other studies have')} it, too"
            output.tell(
                f"{answer.cell.address} is of study {answer.cell.study_id}; {had}: --study {others[0]} takes another"
            )
    if form == "json":
        output.print_json({"cells": forms.document(explained)})
        return 0
    console = output.console()
    fitting = max(1, (console.width - _NAMES_WIDTH) // _CELL_WIDTH) if form == "table" else len(explained)
    sheets = [_sheet(part) for part in _batched(explained, fitting)]
    writing.give(form, None, *sheets, *(sheet for answer in explained for sheet in _kernel_sheets(answer, most)))
    return 0


def _find(
    cells: Sequence[str],
    home: Path | None,
    study: str | None,
    tracking_uri: str | None,
    experiments: str | None,
    run: str | None,
) -> list[Explained]:
    from mlflow_ngraph_engines import explanations

    if tracking_uri or experiments or run:
        return explanations.explain_recorded(
            cells, tracking_uri, items(experiments) or None, run=run, study=study, home=home
        )
    return explanations.explain_local(cells, home_directory.directory(home), study)


def _sheet(explained: Sequence[Explained]) -> Sheet:
    """Cells side by side."""
    from mlflow_ngraph_engines.explanation_tables import side_by_side

    columns: list[Head] = ["", *(prose(answer.cell.address) for answer in explained)]
    return Sheet("", columns, [[name, *texts] for name, texts in side_by_side(explained)])


def _kernel_sheets(answer: Explained, most: int) -> Iterator[Sheet]:
    """The kernels that take longest, and those that compute most nodes, as far as the compiler tells."""
    from mlflow_ngraph_engines.explanation_tables import largest, longest

    if answer.explanation is None:
        return
    timed, fused = longest(answer.explanation, most), largest(answer.explanation, most)
    name, operation = prose("kernel"), prose("operation")
    if timed:
        yield Sheet(
            f"longest kernels of {answer.cell.address}, as its own profiler saw them",
            [number("µs"), number("share"), name, operation, prose("implementation"), prose("layout")],
            [
                [rounded(kernel.microseconds, 3), f"{share:.1%}", *_words(kernel), kernel.implementation, kernel.layout]
                for kernel, share in timed
            ],
        )
    if fused:
        yield Sheet(
            f"largest fusions of {answer.cell.address}",
            [number("nodes"), name, operation, prose("computes")],
            [[str(len(kernel.fused)), *_words(kernel), _nodes(kernel.fused)] for kernel in fused],
        )


def _words(kernel: Kernel) -> tuple[str, str]:
    return kernel.name, kernel.operation


def _nodes(names: Sequence[str]) -> str:
    more = f", {len(names) - _NAMED_NODES} more" if len(names) > _NAMED_NODES else ""
    return ", ".join(names[:_NAMED_NODES]) + more


def _batched(explained: Sequence[Explained], size: int) -> Iterator[list[Explained]]:
    rest = iter(explained)
    while part := list(islice(rest, size)):
        yield part
