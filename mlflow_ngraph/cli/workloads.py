"""``mlflow-ngraph info workloads``: parameters, MACs, family and inputs of the paper's or any named models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.tables.sheet import Cell, Column, Sheet, number, prose
from mlflow_ngraph.workloads.base import Init, WorkloadInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEGEND = Cell(
    "MACs of one sample. paper: without attention products, each linear layer once a sample; true: all of them. After "
    "each input what is drawn for it.",
    tone="faint",
)


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1)
@output.json_option
def workloads(refs: tuple[str, ...], as_json: bool) -> int:
    """Describe models: parameters, multiply-accumulates (MACs), family and input.

    Without a REF, the models and blocks of the paper. A REF is a name of the paper, or scheme:target, such as
    timm:resnet18, 'block:conv?width=64&depth=3', onnx:model.onnx, torch:package.module:factory, pt2:program.pt2 or
    mlflow:models:/name/1; it is built in a process of its own to be described.
    """
    from mlflow_ngraph.workloads.registry import catalogue

    rows = _described(refs) if refs else [_row(info) for info in catalogue()]
    if as_json:
        output.print_json({"workloads": rows})
        return 0
    sheet = Sheet(
        "",
        [
            *("workload", Column("label", spare=1), Column("family", spare=2), number("parameters")),
            *(number("paper MACs", spare=3), number("true MACs"), prose("input", spare=4)),
        ],
        [
            (
                row["ref"],
                row["label"],
                row["family"],
                output.count(row["parameters"]),
                output.count(row["paper_macs"]),
                output.count(row["true_macs"]),
                "; ".join(_input(spec) for spec in row["inputs"]),
            )
            for row in rows
        ],
        [_LEGEND],
    )
    tables.show(output.console(), sheet)
    return 0


def _described(refs: Sequence[str]) -> list[dict[str, Any]]:
    """Build the models in a child process, because this one imports no torch."""
    from mlflow_ngraph.runner import ask_child
    from mlflow_ngraph.study import WorkloadChoice
    from mlflow_ngraph.workloads.registry import create

    init = Init()
    parsed = [create(WorkloadChoice(ref=ref).parsed(), init).ref for ref in refs]
    samples = [ref.options.get("samples") for ref in parsed]
    with waiting("building the models, in a process that imports torch", logged=True):
        descriptions: list[dict[str, Any]] = ask_child(
            "describe", workloads=[asdict(ref) for ref in parsed], init=asdict(init)
        )
    return [
        _row(WorkloadInfo.from_dict(description), given)
        for description, given in zip(descriptions, samples, strict=True)
    ]


def _row(info: WorkloadInfo, samples: str | None = None) -> dict[str, Any]:
    """Row of a model, with the kind of its inputs or their source."""
    drawn = [spec.drawn if samples is None else f"samples of {samples}" for spec in info.inputs]
    row = info.as_dict()
    row["inputs"] = [{**spec, "drawn": words} for spec, words in zip(row["inputs"], drawn, strict=True)]
    return row


def _input(spec: dict[str, Any]) -> str:
    return f"{spec['name']} {spec['dtype']}[{', '.join(map(str, spec['shape']))}]: {spec['drawn']}"
