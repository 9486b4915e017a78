"""Compute the nodes of an ONNX graph one by one, in float64 or in their own types. For child processes only.

No runtime has every operator in float64. So every node is computed by the first that can: ONNX Runtime's kernels
without a graph around them, PyTorch's through the converter of the baseline, or ONNX's reference evaluator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph_bisect.program import InseparableError

Value = Any
"""An array; or whatever else a node gives, such as a sequence of arrays."""
_Compute = Callable[[Sequence[Value]], list[Value]]

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16)
_TYPED = ("to", "dtype")
"""Attributes that name an element type."""
RUNTIME, TORCH, EVALUATOR = "ONNX Runtime", "PyTorch", "ONNX's reference evaluator"


class Arithmetic:
    """Computes nodes of one graph; ``by`` lists the runtimes in order of preference."""

    def __init__(self, model: onnx.ModelProto, constants: dict[str, NDArray[Any]], by: Sequence[str]) -> None:
        self._model = model
        self._constants = constants
        self._by = tuple(by)
        self._known: dict[tuple[int, bool], tuple[str, _Compute]] = {}
        self._only: dict[str, str] = {}

    def require_runtime(self, operator: str, who: str) -> None:
        """Compute all nodes of an operator with one runtime alone."""
        self._only[operator] = who
        self._known.clear()

    def computed_by(self, place: int) -> str:
        """Runtime that has computed a node in float64."""
        return self._known[place, True][0]

    def run(self, place: int, names: Sequence[str], values: Sequence[Value], *, wide: bool) -> list[Value]:
        """Compute the outputs of a node from ``names`` and ``values`` that it or its bodies read. Raises
        `InseparableError` if no runtime can.

        Raises `InseparableError` if no runtime can.
        """
        known = self._known.get((place, wide))
        if known is not None:
            return known[1](values)
        node = self._model.graph.node[place]
        asked = (self._only[node.op_type],) if node.op_type in self._only else self._by
        reasons = []
        for who in asked:
            try:
                compute = _MAKERS[who](self._single(node, names, values, wide=wide))
                results = compute(values)
            except Exception as error:  # noqa: BLE001 - each raises anything about what it does not have
                reasons.append(f"{who}: {' '.join(str(error).split())[:120]}")
                continue
            self._known[place, wide] = who, compute
            return results
        raise InseparableError(f"nothing here computes {node.op_type}: {'; '.join(reasons)}")

    def _single(self, node: onnx.NodeProto, names: Sequence[str], values: Sequence[Value], *, wide: bool) -> _Single:
        """Model of one node. Constants of the graph stay constants, because some operators require them."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if wide:
            _widen(copy)
        fed, inputs, constants = [], [], []
        for index, (name, value) in enumerate(zip(names, values, strict=True)):
            if not isinstance(value, np.ndarray):
                raise InseparableError(f"{name} is no array")
            if name in self._constants:
                constants.append(numpy_helper.from_array(value, name))
            else:
                fed.append(index)
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, [None] * value.ndim))
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([copy], "node", inputs, outputs, constants)
        model = helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=min(10, max(8, self._model.ir_version))
        )
        return _Single(model, [value.name for value in inputs], fed, [bool(name) for name in node.output])


class _Single:
    """A model of one node, and the values of the node that are its inputs."""

    def __init__(self, model: onnx.ModelProto, names: list[str], fed: list[int], given: list[bool]) -> None:
        self.model = model
        self.names = names
        self._fed = fed
        self._given = given

    def feeds(self, values: Sequence[Value]) -> dict[str, Value]:
        return {name: values[index] for name, index in zip(self.names, self._fed, strict=True)}

    def placed(self, results: Sequence[Value]) -> list[Value]:
        """One value for each output of the node; None for missing ones."""
        rest = iter(results)
        return [next(rest) if given else None for given in self._given]


def _by_runtime(single: _Single) -> _Compute:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        single.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda values: single.placed(session.run(None, single.feeds(values)))


def _by_torch(single: _Single) -> _Compute:
    import torch

    from mlflow_ngraph.workloads.onnx import convert

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "node.onnx")
        onnx.save(single.model, str(path))
        module = convert(path)

    def compute(values: Sequence[Value]) -> list[Value]:
        with torch.no_grad():
            found = module(*(torch.tensor(array) for array in single.feeds(values).values()))
        return single.placed([each.numpy() for each in (found if isinstance(found, tuple) else (found,))])

    return compute


def _by_evaluator(single: _Single) -> _Compute:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(single.model)
    return lambda values: single.placed(evaluator.run(None, single.feeds(values)))


_MAKERS: dict[str, Callable[[_Single], _Compute]] = {
    RUNTIME: _by_runtime,
    TORCH: _by_torch,
    EVALUATOR: _by_evaluator,
}


def _widen(node: onnx.NodeProto) -> None:
    """Replace narrower types by float64 in a node, also in bodies."""
    for attribute in node.attribute:
        if attribute.name in _TYPED and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        _widen_tensor(attribute.t)
        for graph in (attribute.g, *attribute.graphs):
            for tensor in graph.initializer:
                _widen_tensor(tensor)
            for value in (*graph.input, *graph.output, *graph.value_info):
                if value.type.tensor_type.elem_type in _NARROW:
                    value.type.tensor_type.elem_type = TensorProto.DOUBLE
            for inner in graph.node:
                _widen(inner)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
