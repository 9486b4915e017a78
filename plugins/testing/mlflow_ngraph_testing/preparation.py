"""Models of the contract suite, written to disk. For child processes only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_ngraph_testing.steps import prepare_models

MODELS = ("cnn", "two_headed", "text_encoder")
FIXED = "fixed_batch"
FIXED_BATCH = 3
BATCH_SIZES = (1, 2, FIXED_BATCH, 5)
SEEDS = (0, 1, 2)
"""Seeds of the inputs. Engines are compiled from the materials of the first."""
OPERATOR = "Frobnicate"
"""Operator that no compiler knows."""


def model(directory: Path, name: str, seed: int = SEEDS[0]) -> Path:
    """Folder of the materials of a model with the inputs of a seed."""
    return directory / f"seed-{seed}" / name


def unknown_torch(directory: Path) -> Path:
    """Path of a model with an unknown PyTorch operator; PyTorch itself can run it."""
    return directory / "unknown_operator"


def unknown_onnx(directory: Path) -> Path:
    """Path of an ONNX file with an unknown operator."""
    return directory / "unknown_onnx"


def prepare_suite(directory: Path, formats: Sequence[Any]) -> None:
    """Everything that an adapter with these formats is tested with."""
    from mlflow_ngraph.workloads.materials import Source

    for seed in SEEDS:
        first = seed == SEEDS[0]
        prepare_models(directory / f"seed-{seed}", (*MODELS, FIXED), BATCH_SIZES, formats if first else (), seed)
    for name in (*MODELS, FIXED):
        digests = {Source(model(directory, name, seed)).digest for seed in SEEDS}
        assert len(digests) == 1, f"{name} is another model with other inputs"
    prepare_models(directory, [unknown_torch(directory).name], BATCH_SIZES, formats)
    if "onnx" in formats:
        write_unknown_onnx(unknown_onnx(directory))


def write_unknown_onnx(directory: Path) -> None:
    """Materials of an ONNX file whose only node has an operator of an unknown domain.

    Written by hand, because `prepare` runs the model. There is no reference: nothing could compute it.
    """
    import onnx
    from onnx import TensorProto, helper

    from mlflow_ngraph.workloads.base import BATCH, Init, TensorSpec, WorkloadInfo, WorkloadRef
    from mlflow_ngraph.workloads.materials import ANY_BATCH, Export, Materials, arrays_file

    directory.mkdir(parents=True)
    node = helper.make_node(OPERATOR, ["x"], ["y"], domain="ngraph.contract", name="n0")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, 4]) for name in "xy"]
    graph = helper.make_graph([node], "unknown", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ngraph.contract", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(directory / "model.onnx"))
    inputs, outputs = (TensorSpec(name, "float32", (BATCH, 4)) for name in "xy")
    for batch in BATCH_SIZES:
        np.savez(directory / arrays_file("inputs", batch), np.zeros(inputs.resolve(batch), np.float32))
    Materials(
        ref=WorkloadRef("onnx", "model.onnx"),
        init=Init(),
        seed=0,
        info=WorkloadInfo("onnx:model.onnx", "unknown", "onnx", (inputs,)),
        digest="unknown",
        reference_by="nothing",
        versions={},
        outputs=(outputs,),
        batch_sizes=list(BATCH_SIZES),
        formats={
            "module": Export(error=f"there is no module for {OPERATOR}"),
            "onnx": Export(files={ANY_BATCH: "model.onnx"}, seconds={ANY_BATCH: 0.0}),
        },
    ).write(directory)
