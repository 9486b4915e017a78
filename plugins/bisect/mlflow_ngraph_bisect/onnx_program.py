"""OnnxProgram: cuts an ONNX model into parts, saves and computes them, also in float64. For child processes only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads.base import Format, Init, TensorSpec, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.materials import Export, Materials, arrays_file
from mlflow_ngraph_bisect.judging import judge
from mlflow_ngraph_bisect.onnx_nodes import EVALUATOR, RUNTIME, TORCH, Arithmetic, Value
from mlflow_ngraph_bisect.program import Arrays, InseparableError, Node, Part, Program

_FILE, _BATCH = "model.onnx", 1
_INLINE_LIMIT = 1_500_000_000
"""Bytes of weights up to which they go into the file itself; protobuf ends at 2 GB."""


class OnnxProgram(Program):
    """Main graph of a model with local functions inlined; the body of a loop or branch belongs to its node.

    The result in float64 does not come from kernels of the ``suspected`` compiler where another runtime has the
    operator.
    """

    suffix: str = ".onnx"
    _NUMBERS: ClassVar[str] = "fiub"

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]], suspected: str = "") -> None:
        self._model = _plain(model)
        graph = self._model.graph
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self.nodes = [_node(proto) for proto in graph.node]
        self.outputs = tuple(value.name for value in graph.output)
        order = (TORCH, EVALUATOR, RUNTIME) if suspected == "onnxruntime" else (RUNTIME, TORCH, EVALUATOR)
        self._arithmetic = Arithmetic(self._model, self._constants, order)
        self._folded = self._constant_values()
        self._inputs = dict(inputs)
        self._values: dict[str, Value] = {**self._constants, **inputs}
        self._compute(range(len(self.nodes)), self._values, wide=False)
        self._wide: dict[str, Value] = {}

    def part(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool = False) -> Part:
        ordered = sorted(nodes)
        produced = {name for place in ordered for name in self.nodes[place].outputs}
        needed = dict.fromkeys(
            name for place in ordered for name in self.nodes[place].inputs if name and name not in produced
        )
        constants, inputs = [], {}
        for name in needed:
            if name in self._weights:
                constants.append(self._weights[name])
            elif name in self._folded:
                constants.append(numpy_helper.from_array(self._array(name), name))
            else:
                inputs[name] = self._array(name)
        given, negations = {name: self._array(name) for name in outputs}, []
        if negated:
            if any(array.dtype.kind not in "fi" for array in given.values()):
                raise InseparableError("not every output has a sign")
            negations = [helper.make_node("Neg", [name], [f"negated_{name}"]) for name in outputs]
            given = {f"negated_{name}": array for name, array in given.items()}
        graph = helper.make_graph(
            [*(self._model.graph.node[place] for place in ordered), *negations],
            "part",
            [_declared(name, array) for name, array in inputs.items()],
            [_declared(name, array) for name, array in given.items()],
            constants,
        )
        model = helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        return Part(tuple(ordered), tuple(outputs), inputs, model, negated)

    def save(self, part: Part, path: Path) -> None:
        size = sum(len(tensor.raw_data) for tensor in part.model.graph.initializer)
        onnx.save(part.model, str(path), save_as_external_data=size > _INLINE_LIMIT, location=f"{path.name}.data")

    def prepare(self, part: Part, directory: Path) -> int:
        directory.mkdir(parents=True)
        self.save(part, directory / _FILE)
        save_arrays(directory / arrays_file("inputs", _BATCH), *part.inputs.values())
        export: dict[Format, Export] = {
            "onnx": Export(dynamic=False, files={str(_BATCH): _FILE}, seconds={str(_BATCH): 0.0})
        }
        Materials(
            ref=WorkloadRef("onnx", _FILE),
            init=Init(),
            seed=0,
            info=WorkloadInfo(f"onnx:{_FILE}", "part", "onnx", _specs(part.inputs), fixed_batch=_BATCH),
            digest="",
            reference_by="",
            versions={},
            outputs=_specs(
                {
                    value.name: self._array(name)
                    for value, name in zip(part.model.graph.output, part.outputs, strict=True)
                }
            ),
            batch_sizes=[_BATCH],
            formats=export,
        ).write(directory)
        return _BATCH

    def exact(self, part: Part) -> list[NDArray[Any]]:
        return self._computed(part, wide=True)

    def rounded(self, part: Part) -> list[NDArray[Any]]:
        return self._computed(part, wide=False)

    def disturbed(self, part: Part, seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        from mlflow_ngraph.workloads.arithmetic import TIMES

        found = []
        for coherent in (False, True):
            disturb = partial(_disturbed, rng=np.random.default_rng(seed), times=TIMES, coherent=coherent)
            values = self._given(part, disturb)
            self._compute(part.nodes, values, wide=False, disturb=disturb)
            found.append((TIMES, [values[name] for name in part.outputs]))
        return found

    def visible(self) -> list[str]:
        return [name for node in self.nodes for name in node.outputs if name and self._is_array(name)]

    def recheck(self, part: Part, engine: Arrays, precision: str) -> str:
        """Recompute with ONNX's reference evaluator, where another runtime gave the result in float64."""
        if all(self.computed_by(place) == EVALUATOR for place in part.nodes):
            return ""
        try:
            standard = OnnxProgram(part.model, part.inputs)
            standard.require_runtime({self.nodes[place].operator for place in part.nodes})
            again = standard.part(range(len(part.nodes)), part.outputs)
            wrong = judge(standard, again, standard.exact(again), engine, precision)
        except InseparableError:
            return ""
        if wrong:
            return ""
        by = {self.nodes[place].operator: self.computed_by(place) for place in part.nodes}
        self.require_runtime(set(by))
        said = ", ".join(f"{operator} by {who}" for operator, who in by.items())
        return f"the engine agrees with {EVALUATOR}, and not with {said}"

    def require_runtime(self, operators: Collection[str]) -> None:
        """Compute some operators with ONNX's reference evaluator from now on."""
        for operator in operators:
            self._arithmetic.require_runtime(operator.rpartition(".")[2], EVALUATOR)
        self._compute(range(len(self.nodes)), self._values, wide=False)
        self._wide.clear()

    def computed_by(self, place: int) -> str:
        """Last runtime that computed a node in float64."""
        return self._arithmetic.computed_by(place)

    def _computed(self, part: Part, *, wide: bool) -> list[NDArray[Any]]:
        if not set(part.inputs) - set(self._inputs):
            return self._from_the_beginning(part, wide=wide)
        values = self._given(part)
        self._compute(part.nodes, values, wide=wide)
        return [_widened(values[name]) if wide else values[name] for name in part.outputs]

    def _given(self, part: Part, disturb: Callable[[Value], Value] = lambda value: value) -> dict[str, Value]:
        """Inputs of a part that other nodes compute."""
        values: dict[str, Value] = {
            **self._constants,
            **{name: disturb(array) for name, array in part.inputs.items()},
        }
        for name in self._folded:
            values.setdefault(name, self._values[name])
        return values

    def _from_the_beginning(self, part: Part, *, wide: bool) -> list[NDArray[Any]]:
        """Outputs of a part that begins at the program's inputs, computed once."""
        if not wide:
            return [self._values[name] for name in part.outputs]
        self._wide = self._wide or {**self._constants, **self._inputs}
        places = self.ancestors(part.outputs, range(len(self.nodes)))
        self._compute(
            [place for place in places if not set(filter(None, self.nodes[place].outputs)) <= set(self._wide)],
            self._wide,
            wide=True,
        )
        return [_widened(self._wide[name]) for name in part.outputs]

    def _compute(
        self,
        places: Collection[int],
        values: dict[str, Value],
        *,
        wide: bool,
        disturb: Callable[[Value], Value] = lambda value: value,
    ) -> None:
        for place in places:
            node = self.nodes[place]
            read = [name for name in dict.fromkeys(node.inputs) if name]
            given = [_widened(values[name]) if wide else values[name] for name in read]
            found = self._arithmetic.run(place, read, given, wide=wide)
            values.update((name, disturb(value)) for name, value in zip(node.outputs, found, strict=True) if name)

    def _constant_values(self) -> set[str]:
        """Values that depend on no input."""
        known = set(self._constants)
        for place, node in enumerate(self.nodes):
            random = self._model.graph.node[place].op_type.startswith("Random")
            if not random and all(name in known for name in node.inputs if name):
                known.update(node.outputs)
        return known - set(self._constants)

    def _array(self, name: str) -> NDArray[Any]:
        if not self._is_array(name):
            raise InseparableError(f"{name} is no array of numbers")
        array: NDArray[Any] = self._values[name]
        return array

    def _is_array(self, name: str) -> bool:
        value = self._values[name]
        return isinstance(value, np.ndarray) and value.dtype.kind in self._NUMBERS


def _widened(value: Value) -> Value:
    """Convert narrower floating-point values to float64."""
    narrow = isinstance(value, (np.ndarray, np.generic)) and value.dtype in (np.float32, np.float16)
    return np.asarray(value, np.float64) if narrow else value


def _disturbed(value: Value, *, rng: np.random.Generator, times: float, coherent: bool) -> Value:
    """Disturb a value by some roundings of its type. Integers stay: they may be indices, or at the end of a step.

    With ``coherent`` all numbers of a channel are off by the same factor, else each by its own.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    shape = value.shape
    if coherent:
        channel = 1 if value.ndim in _IMAGES else value.ndim - 1
        shape = tuple(size if axis == channel else 1 for axis, size in enumerate(shape))
    drawn = rng.choice([-1.0, 1.0], shape) if coherent else rng.uniform(-1, 1, shape)
    numbers, eps = np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0), float(np.finfo(value.dtype).eps)
    whole = (numbers == np.rint(numbers)) & (np.abs(numbers) < 1 / eps)
    return np.asarray(value + np.where(whole, 0.0, numbers) * (times * eps / 2 * drawn), value.dtype)


_IMAGES = (4, 5)
"""Axes of arrays whose second one is that of channels."""


def _specs(arrays: Mapping[str, NDArray[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, array.dtype.name, array.shape) for name, array in arrays.items())


def _declared(name: str, array: NDArray[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy without local functions, with initializers in place of constant nodes."""
    import onnx.inliner

    plain = onnx.inliner.inline_local_functions(model) if model.functions else onnx.ModelProto.FromString(b"")
    if not model.functions:
        plain.CopyFrom(model)
    graph = plain.graph
    del graph.value_info[:]
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        constant = _constant(node)
        if constant is None:
            graph.node.append(node)
        else:
            graph.initializer.append(constant)
    return plain


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Value of a constant node; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    (attribute,) = node.attribute
    content = helper.get_attribute_value(attribute)
    if isinstance(content, onnx.TensorProto):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(content)
        tensor.name = node.output[0]
        return tensor
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in dtype:
        return None
    return numpy_helper.from_array(np.asarray(content, dtype[attribute.name]), node.output[0])


def _node(proto: onnx.NodeProto) -> Node:
    operator = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    inputs = (*proto.input, *(name for name in _captured(proto) if name not in proto.input))
    name = proto.name or next(filter(None, proto.output), proto.op_type)
    return Node(name, operator, tuple(inputs), tuple(proto.output))


def _captured(proto: onnx.NodeProto) -> Iterator[str]:
    """Outer values that the bodies of a node read."""
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for node in graph.node:
                for name in (*node.input, *_captured(node)):
                    if name and name not in own:
                        yield name
                own.update(node.output)
            yield from (value.name for value in graph.output if value.name not in own)
