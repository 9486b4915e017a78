"""Random ONNX graphs that compute in half, in bfloat16, with quantised numbers, or with long sums; and the same with a fault.

Equal seeds give equal graphs. A fault changes a graph's constants or nodes, and neither its inputs nor its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 22
BATCH = 2
KINDS = ("half", "bfloat16", "quantised", "sums")
FAULTS = {
    "wrong scale": "quantised",
    "zero point off by one": "quantised",
    "dropped bias": "quantised",
    "overflow": "half",
}
"""What is planted, and the kind of graph that it is planted in."""


class Layers:
    """A graph in the making, one layer behind the other.

    Parameters
    ----------
    kind : int
        The element type in which it computes.
    """

    def __init__(self, rng: np.random.Generator, shape: Sequence[int], kind: int) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.outputs: list[tuple[str, int]] = []
        self.last, self.shape, self.kind = "x", list(shape), kind
        self._input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node, and make its result the last one."""
        self.last = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [self.last], **attributes))
        return self.last

    def constant(self, array: Any, kind: int | None = None, name: str = "") -> str:
        """A new initializer, of the type in which the graph computes unless another is said."""
        kind = self.kind if kind is None else kind
        content = np.asarray(array).astype(helper.tensor_dtype_to_np_dtype(kind))
        own = numpy_helper.from_array(content, f"{name}{len(self.constants)}")
        self.constants.append(own)
        return str(own.name)

    def normal(self, *shape: int, scale: float = 1.0, name: str = "") -> str:
        """An initializer of random numbers."""
        return self.constant(self.rng.standard_normal(shape) * scale, name=name)

    def model(self) -> onnx.ModelProto:
        """The graph, with the last value as an output."""
        outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in self.outputs]
        graph = helper.make_graph(self.nodes, "low", [self._input], outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def low_precision_graph(kind: str, seed: int, *, narrow: bool = False) -> onnx.ModelProto:
    """A graph of a kind, with quantised weights of 7 bits where it is to be ``narrow``."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "quantised":
        return _quantised(rng, 63 if narrow else 127)
    return {"half": _half, "bfloat16": _bfloat16, "sums": _sums}[kind](rng)


def _half(rng: np.random.Generator) -> onnx.ModelProto:
    return _short(rng, TensorProto.FLOAT16)


def _bfloat16(rng: np.random.Generator) -> onnx.ModelProto:
    return _short(rng, TensorProto.BFLOAT16)


def _short(rng: np.random.Generator, kind: int) -> onnx.ModelProto:
    """A few layers in a short type, between casts."""
    image = rng.random() < 0.4
    shape = (
        [BATCH, int(rng.integers(2, 5)), *rng.integers(4, 9, 2).tolist()]
        if image
        else [BATCH, *rng.integers(4, 33, 2).tolist()]
    )
    graph = Layers(rng, shape, kind)
    graph.add("Cast", ["x"], to=kind)
    for _ in range(int(rng.integers(2, 7))):
        _layer(graph, image=image)
    graph.outputs.append((graph.add("Cast", [graph.last], to=TensorProto.FLOAT), TensorProto.FLOAT))
    return graph.model()


def _layer(graph: Layers, *, image: bool) -> None:
    channels, last = graph.shape[1], graph.shape[-1]
    names = ["Add", "Mul", "Relu", "Sigmoid", "Tanh", "Softmax", "Sqrt", "Residual", "Product", "Product"]
    name = names[int(graph.rng.integers(len(names)))]
    if name in ("Add", "Mul"):
        graph.add(name, [graph.last, graph.normal(last)])
    elif name == "Softmax":
        graph.add(name, [graph.last], axis=-1)
    elif name == "Sqrt":
        graph.add(name, [graph.add("Abs", [graph.last])])
    elif name == "Residual":
        before = graph.last
        graph.add("Add", [before, graph.add("Tanh", [before])])
    elif name == "Product" and image:
        wide = int(graph.rng.integers(2, 9))
        inputs = [graph.last, graph.normal(wide, channels, 3, 3, scale=0.3), graph.normal(wide, name="bias")]
        graph.add("Conv", inputs, pads=[1, 1, 1, 1])
        graph.shape[1] = wide
    elif name == "Product":
        wide = int(graph.rng.integers(4, 65))
        graph.add("MatMul", [graph.last, graph.normal(last, wide, scale=last**-0.5)])
        graph.add("Add", [graph.last, graph.normal(wide, name="bias")])
        graph.shape[-1] = wide
    else:
        graph.add(name, [graph.last])


def _quantised(rng: np.random.Generator, largest: int) -> onnx.ModelProto:
    """Layers as quantisation leaves them: integer weights, and activations that are rounded to steps before and behind each."""
    image = rng.random() < 0.5
    shape = (
        [BATCH, int(rng.integers(2, 5)), *rng.integers(4, 9, 2).tolist()]
        if image
        else [BATCH, int(rng.integers(4, 65))]
    )
    graph = Layers(rng, shape, TensorProto.FLOAT)
    _steps(graph, 0.03)
    for _ in range(int(rng.integers(1, 4))):
        wide, inner = int(rng.integers(2, 17)), graph.shape[1]
        size = (wide, inner, 3, 3) if image else (wide, inner)
        whole = graph.constant(rng.integers(-largest, largest + 1, size), TensorProto.INT8)
        each = rng.random() < 0.5
        terms = int(np.prod(size[1:]))
        scales = rng.uniform(0.5, 1.5, wide if each else ()) / (73 * terms**0.5)
        zeros = graph.constant(np.zeros(np.shape(scales), np.int64), TensorProto.INT8)
        before = graph.last
        weight = graph.add("DequantizeLinear", [whole, graph.constant(scales, name="scale"), zeros], axis=0)
        bias = graph.normal(wide, scale=0.5, name="bias")
        if image:
            graph.add("Conv", [before, weight, bias], pads=[1, 1, 1, 1])
        else:
            graph.add("Gemm", [before, weight, bias], transB=1)
        graph.shape[1] = wide
        if rng.random() < 0.7:
            graph.add("Relu", [graph.last])
        _steps(graph, float(rng.uniform(0.01, 0.05)))
    graph.outputs.append((graph.last, TensorProto.FLOAT))
    return graph.model()


def _steps(graph: Layers, scale: float) -> None:
    kind = TensorProto.UINT8 if graph.rng.random() < 0.5 else TensorProto.INT8
    middle = 128 if kind == TensorProto.UINT8 else 0
    names = [graph.constant(scale), graph.constant(middle + int(graph.rng.integers(-9, 10)), kind)]
    graph.add("QuantizeLinear", [graph.last, *names])
    own = [names[0], graph.constant(numpy_helper.to_array(graph.constants[-1]), kind, name="zero")]
    graph.add("DequantizeLinear", [graph.last, *own])


def _sums(rng: np.random.Generator) -> onnx.ModelProto:
    """One long sum, of terms that have a sign of their own or all the same one."""
    terms = int(10 ** rng.uniform(3, 5))
    graph = Layers(rng, [BATCH, terms], TensorProto.FLOAT)
    name = SUMS[int(rng.integers(len(SUMS)))]
    if rng.random() < 0.5:
        graph.add("Abs", [graph.last])
    if name == "MatMul":
        graph.add(name, [graph.last, graph.normal(terms, 2)])
    elif name == "Gemm":
        graph.add(name, [graph.last, graph.normal(2, terms), graph.normal(2)], transB=1)
    elif name == "CumSum":
        graph.add(name, [graph.last, graph.constant(1, TensorProto.INT64)])
    elif name == "Einsum":
        graph.add(name, [graph.last, graph.normal(terms)], equation="ab,b->a")
    else:
        graph.add(name, [graph.last, graph.constant([1], TensorProto.INT64)], keepdims=1)
    graph.outputs.append((graph.last, TensorProto.FLOAT))
    return graph.model()


SUMS = ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceL1", "ReduceSumSquare", "MatMul", "Gemm", "CumSum", "Einsum")


def in_turn(model: onnx.ModelProto, given: Array) -> Array:
    """What a graph of the kind ``sums`` gives where the terms are added one after the other."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    node = model.graph.node[-1]
    given = np.abs(given) if len(model.graph.node) > 1 else given
    others = [constants[name] for name in node.input[1:]]

    def added(terms: Array) -> Array:
        return np.add.accumulate(terms, axis=1, dtype=np.float32)

    def product(matrix: Array) -> Array:
        return np.stack([added(given * column)[:, -1] for column in matrix.T], 1)

    ways: dict[str, Callable[[], Array]] = {
        "ReduceSum": lambda: added(given)[:, -1:],
        "ReduceMean": lambda: added(given)[:, -1:] / np.float32(given.shape[1]),
        "ReduceL1": lambda: added(np.abs(given))[:, -1:],
        "ReduceL2": lambda: np.sqrt(added(given * given)[:, -1:]),
        "ReduceSumSquare": lambda: added(given * given)[:, -1:],
        "MatMul": lambda: product(others[0]),
        "Gemm": lambda: product(others[0].T) + others[1],
        "Einsum": lambda: product(others[0][:, None])[:, 0],
        "CumSum": lambda: added(given),
    }
    return ways[node.op_type]()


def faulty(model: onnx.ModelProto, fault: str, seed: int) -> onnx.ModelProto | None:
    """The graph with a fault; None where it has nothing to plant it in."""
    rng = np.random.default_rng([seed, 99])
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    if fault == "overflow":
        return _overflowing(changed)
    prefix = {"wrong scale": "scale", "zero point off by one": "zero", "dropped bias": "bias"}[fault]
    places = [tensor for tensor in graph.initializer if tensor.name.startswith(prefix)]
    chosen = places[int(rng.integers(len(places)))]
    array = numpy_helper.to_array(chosen)
    new = {
        "scale": lambda: array * np.float32(rng.choice([0.5, 0.9, 1.1, 2.0])),
        "zero": lambda: array + array.dtype.type(rng.choice([-1, 1])),
        "bias": lambda: np.zeros_like(array),
    }[prefix]()
    chosen.CopyFrom(numpy_helper.from_array(np.asarray(new, array.dtype), chosen.name))
    return changed


def _overflowing(model: onnx.ModelProto) -> onnx.ModelProto:
    """The last value of a graph in half goes through numbers that half does not have."""
    graph, last = model.graph, model.graph.node[-1]
    factors = {"up": 60_000.0, "down": 1 / 60_000.0}
    graph.initializer.extend(helper.make_tensor(name, TensorProto.FLOAT16, [], [by]) for name, by in factors.items())
    before = last.input[0]
    last.input[0] = "back"
    # Twice, because what a Softmax gives is at most one.
    steps = [(before, "up", "far"), ("far", "up", "farther"), ("farther", "down", "near"), ("near", "down", "back")]
    nodes = [helper.make_node("Mul", [value, by], [result]) for value, by, result in steps]
    for place, node in enumerate(nodes, len(graph.node) - 1):
        graph.node.insert(place, node)
    return model
