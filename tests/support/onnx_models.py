"""ONNX files made node by node, and as much of a source as compilers read of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.materials import Materials

CHANNELS = 16
IMAGE = TensorSpec("image", "float32", ("batch", 3, 16, 16))
SCORES = TensorSpec("scores", "float32", ("batch", 5))
MATRIX = TensorSpec("matrix", "float32", ("batch", 4, 4))
NUMBERS = TensorSpec("numbers", "float32", ("batch",))


@dataclass(frozen=True)
class OnnxSource:
    """A file whose batch axis is free."""

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def dynamic(self, _format: str) -> bool:
        return True

    def onnx(self, _batch: int | None = None) -> Path:
        return self.path

    @property
    def materials(self) -> Materials:
        ref = WorkloadRef("onnx", str(self.path))
        info = WorkloadInfo(str(ref), self.path.stem, "onnx", self.inputs)
        return Materials(ref, Init(), 0, info, digest="", reference_by="identity", versions={})


def residual_block(directory: Path) -> OnnxSource:
    """Two convolutions with ReLU, the sum of the second with its input, and a classifier."""
    shapes: dict[str, tuple[int, ...]] = {
        "w0": (CHANNELS, 3, 3, 3),
        "b0": (CHANNELS,),
        "w1": (CHANNELS, CHANNELS, 3, 3),
        "b1": (CHANNELS,),
        "w2": (int(SCORES.shape[1]), CHANNELS),
    }
    rng = np.random.default_rng(0)
    weights = {name: 0.1 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    padding = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "w0", "b0"], ["c0"], "conv0", **padding),
        helper.make_node("Relu", ["c0"], ["r0"], "relu0"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "conv1", **padding),
        helper.make_node("Add", ["c1", "r0"], ["s1"], "add1"),
        helper.make_node("Relu", ["s1"], ["r1"], "relu1"),
        helper.make_node("GlobalAveragePool", ["r1"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w2"], ["scores"], "classify", transB=1),
    ]
    return _source(directory, nodes, weights, IMAGE, SCORES)


def determinants(directory: Path, operators: Sequence[str]) -> OnnxSource:
    """Element-wise operators on matrices, and their determinants, which few compilers know."""
    nodes, value = [], MATRIX.name
    for index, operator in enumerate(operators):
        nodes.append(helper.make_node(operator, [value], [f"v{index}"], f"{operator.lower()}{index}"))
        value = f"v{index}"
    nodes.append(helper.make_node("Det", [value], [NUMBERS.name], "determinant"))
    return _source(directory, nodes, {}, MATRIX, NUMBERS)


def _source(
    directory: Path, nodes: Sequence[Any], weights: dict[str, Any], given: TensorSpec, wanted: TensorSpec
) -> OnnxSource:
    values = [helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, list(spec.shape)) for spec in (given, wanted)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    path = directory / "source.onnx"
    onnx.save(model, str(path))
    return OnnxSource(path, (given,), (wanted,))


def branching(path: Path) -> Path:
    """A matrix product whose sum chooses, with an ``If``, what becomes of it: PyTorch's baseline has no such operator."""

    def branch(name: str, operator: str) -> onnx.GraphProto:
        said = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(operator, ["y"], [name])], name, [], [said])

    weights = {
        "w": 0.1 * np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32),
        "zero": np.float32(0).reshape(()),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["z"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Tanh")),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in ("x", "z")]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "branching", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
