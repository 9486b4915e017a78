"""The paper's tables of models and blocks, as data for building workloads and reading results."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec, WorkloadInfo


@dataclass(frozen=True)
class PaperModel:
    """A row of the paper's table 4, with the timm name that reproduces it."""

    label: str
    timm_name: str
    family: str
    style: str
    parameters: int
    paper_macs: int
    true_macs: int

    inputs = (TensorSpec("input", "float32", (BATCH, 3, 224, 224)),)
    """The same for all, also where timm's own default is larger."""

    def info(self, ref: str) -> WorkloadInfo:
        """The paper's figures of the model, for a workload called ``ref``."""
        return WorkloadInfo(
            ref=ref,
            label=self.label,
            family=self.family,
            inputs=self.inputs,
            parameters=self.parameters,
            paper_macs=self.paper_macs,
            true_macs=self.true_macs,
            style=self.style,
        )


@dataclass(frozen=True)
class PaperBlock:
    """A row of the paper's table 5."""

    block: str
    width: int
    parameters_per_block: int


@cache
def paper_models() -> dict[str, PaperModel]:
    """The models of table 4 by timm name, in the order of the table."""
    models = (
        PaperModel(
            label=row["label"],
            timm_name=row["timm_name"],
            family=row["family"],
            style=row["style"],
            parameters=int(row["parameters"]),
            paper_macs=int(row["paper_macs"]),
            true_macs=int(row["true_macs"]),
        )
        for row in _rows("paper_models.csv")
    )
    return {model.timm_name: model for model in models}


@cache
def paper_blocks() -> tuple[PaperBlock, ...]:
    """The blocks of table 5."""
    return tuple(
        PaperBlock(row["block"], int(row["width"]), int(row["parameters_per_block"]))
        for row in _rows("paper_blocks.csv")
    )


def find_paper_model(name: str) -> PaperModel:
    """Find a model by its name in the paper or in timm, ignoring case, hyphens, underscores and blanks.

    Raises `UnknownNameError` for any other name.
    """
    models = paper_models().values()
    for model in models:
        if _plain(name) in (_plain(model.label), _plain(model.timm_name)):
            return model
    raise UnknownNameError("workload", name.lower(), [model.label.lower() for model in models])


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "-_ ")


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (resources.files("mlflow_ngraph.workloads") / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
