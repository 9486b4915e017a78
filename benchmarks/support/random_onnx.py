"""Random ONNX graphs: equal seeds give equal graphs, which the standard's checker and its reference evaluator accept.

A graph grows node by node. A node is drawn with its attributes and constants, its shapes are inferred, and it is run by the
reference evaluator; one that is no node of the opset, or gives numbers that nobody can compare, is drawn again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]
OPSETS = (11, 13, 17, 18, 20, 22)
BATCH = 2
LARGEST = 1e4
"""Numbers beyond which a node is drawn again: what follows would overflow."""
MOST_ELEMENTS = 20_000
OF_UNARY = 0.4
"""How many of the operators without attributes are kept: there are many, and little can be wrong with them."""
LATEST = 0.55
"""How often a node takes the value that was made last, so that graphs are deep."""


class UnfitError(Exception):
    """A node that cannot be, with the values that there are."""


@dataclass
class Growing:
    """A graph in the making."""

    rng: np.random.Generator
    opset: int
    values: dict[str, Array] = field(default_factory=dict)
    """What each value is for the inputs that the graph is made with."""
    inputs: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    _waiting: dict[str, Array] = field(default_factory=dict)
    """Constants of the node that is drawn."""

    def chance(self, share: float = 0.5) -> bool:
        """Whether something happens."""
        return bool(self.rng.random() < share)

    def among(self, *choices: Any) -> Any:
        """One of several."""
        return choices[int(self.rng.integers(len(choices)))]

    def whole(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, fits: Callable[[Array], bool] = lambda array: array.dtype == np.float32) -> str:
        """A value that fits, the latest one more often than others."""
        names = [name for name, array in self.values.items() if fits(array)]
        if not names:
            raise UnfitError("no such value")
        return names[-1] if self.chance(LATEST) else str(self.among(*names))

    def floats(self, low: int = 0, high: int = 5) -> tuple[str, Array]:
        """A value of float32 with so many axes, and its array."""
        name = self.pick(lambda array: array.dtype == np.float32 and low <= array.ndim <= high)
        return name, self.values[name]

    def constant(self, array: Array) -> str:
        """A new initializer."""
        name = f"c{len(self.constants) + len(self._waiting)}"
        self._waiting[name] = array
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        """An initializer of random numbers."""
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def ints(self, *values: int) -> str:
        """An initializer of whole numbers."""
        return self.constant(np.array(values, np.int64))

    def axis(self, array: Array) -> int:
        """One of the axes, counted from either end."""
        return self.whole(-array.ndim, array.ndim - 1)

    def add(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> None:
        """Append a node, if it is one.

        Raises
        ------
        UnfitError
            The opset has no such node, or its numbers are none.
        """
        names = [f"v{len(self.values) + place}" for place in range(outputs)]
        chosen = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(operator, list(inputs), names, **chosen)
        known = {**self.constants, **self._waiting}
        try:
            results = _run(node, {name: {**known, **self.values}[name] for name in inputs if name}, known, self.opset)
        finally:
            waiting, self._waiting = self._waiting, {}
        self.constants.update(waiting)
        self.nodes.append(node)
        self.used.update(inputs)
        self.values.update(zip(names, results, strict=True))

    def model(self) -> onnx.ModelProto:
        """The graph, whose outputs are all that nothing uses."""
        outputs = [name for node in self.nodes for name in node.output if name not in self.used]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_declared(name, self.values[name]) for name in self.inputs if name in self.used],
            [_declared(name, self.values[name]) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def _declared(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _run(node: onnx.NodeProto, given: dict[str, Array], constants: dict[str, Array], opset: int) -> list[Array]:
    """What the reference evaluator makes of one node, where shape inference says the same."""
    fixed = [numpy_helper.from_array(array, name) for name, array in given.items() if name in constants]
    free = [_declared(name, array) for name, array in given.items() if name not in constants]
    wanted = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    graph = helper.make_graph([node], "one", free, wanted, fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
            feeds = {name: array for name, array in given.items() if name not in constants}
            results = [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
    except Exception as error:
        raise UnfitError(str(error)) from error
    for result, value in zip(results, inferred.graph.output, strict=True):
        kind = value.type.tensor_type
        if not kind.elem_type:
            raise UnfitError("a type that cannot be inferred")
        shape = tuple(axis.dim_value for axis in kind.shape.dim)
        if result.shape != shape or result.dtype != helper.tensor_dtype_to_np_dtype(kind.elem_type):
            raise UnfitError("the reference evaluator contradicts the standard's shapes")
        if not 0 < result.size <= MOST_ELEMENTS:
            raise UnfitError("nothing, or too much")
        if result.dtype.kind == "f" and not (np.isfinite(result).all() and np.abs(result).max() < LARGEST):
            raise UnfitError("not finite")
    return results


Draw = Callable[[Growing], None]
OPERATORS: dict[str, Draw] = {}
"""How a node, or a few that belong together, is drawn, by name."""


def drawn(*names: str) -> Callable[[Callable[[Growing, str], None]], Callable[[Growing, str], None]]:
    """Register a function for operators."""

    def register(function: Callable[[Growing, str], None]) -> Callable[[Growing, str], None]:
        for name in names:
            OPERATORS[name] = lambda graph, name=name: function(graph, name)  # type: ignore[misc]
        return function

    return register


def random_graph(seed: int, operators: Sequence[str] = ()) -> onnx.ModelProto:
    """A graph of 3 to 15 nodes with one to three inputs of fixed shapes.

    Parameters
    ----------
    operators : Sequence[str]
        Those to draw from; all by default.
    """
    graph = Growing(np.random.default_rng([seed, 7]), 0)
    graph.opset = graph.among(*OPSETS)
    for place in range(graph.whole(1, 3)):
        name = f"x{place}"
        graph.inputs.append(name)
        graph.values[name] = graph.rng.standard_normal(_shape(graph)).astype(np.float32)
    if graph.chance(0.2):
        graph.inputs.append("indices")
        graph.values["indices"] = graph.rng.integers(0, 2, (BATCH, graph.whole(1, 4)))
    if graph.chance(0.15):
        graph.inputs.append("mask")
        graph.values["mask"] = graph.rng.random((BATCH, graph.whole(1, 6))) < 1 / 2
    wanted, names = graph.whole(3, 15), list(operators or OPERATORS)
    for _ in range(40 * wanted):
        if len(graph.nodes) >= wanted:
            break
        try:
            name = graph.among(*names)
            if name not in UNARY or graph.chance(OF_UNARY):
                OPERATORS[name](graph)
        except UnfitError:
            graph._waiting.clear()  # noqa: SLF001 - its own module
    return graph.model()


def _shape(graph: Growing) -> tuple[int, ...]:
    rank = graph.among(2, 2, 3, 3, 4, 4, 4, 5)
    sizes = [graph.whole(1, 7) if rank > 3 else graph.whole(2, 12) for _ in range(rank - 2)]
    return (BATCH, graph.among(2, 3, 4, 4, 6, 8), *sizes)


UNARY = (
    *(
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Ceil",
        "Cos",
        "Cosh",
        "Erf",
        "Exp",
        "Floor",
        "Identity",
    ),
    *("Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Sqrt", "Tan", "Tanh", "HardSwish"),
)


@drawn(*UNARY)
def _unary(graph: Growing, name: str) -> None:
    graph.add(name, [graph.floats()[0]])


@drawn("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Selu", "HardSigmoid", "Shrink", "Gelu")
def _parametric(graph: Growing, name: str) -> None:
    known = {
        "Selu": ("alpha", "gamma"),
        "HardSigmoid": ("alpha", "beta"),
        "Shrink": ("bias", "lambd"),
        "Gelu": (),
    }.get(name, ("alpha",))
    attributes: dict[str, Any] = {one: float(graph.rng.uniform(0.1, 2)) for one in known if graph.chance(0.7)}
    if name == "Gelu":
        attributes["approximate"] = graph.among(None, "none", "tanh")
    graph.add(name, [graph.floats()[0]], **attributes)


@drawn("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Mod", "PRelu", "Pow")
def _binary(graph: Growing, name: str) -> None:
    first, array = graph.floats()
    if name == "Pow":
        exponent = graph.among(np.float32(2), np.float32(3), np.float32(-1), np.int64(2), np.float32(0.5), np.int32(3))
        graph.add(name, [first, graph.constant(np.asarray(exponent))])
        return
    second = _beside(graph, array, one_way=name == "PRelu")
    if name in ("Max", "Min", "Mean", "Sum") and graph.chance(0.3):
        graph.add(name, [first, second, _beside(graph, array)])
        return
    swapped = name != "PRelu" and graph.chance(0.3)
    attributes = {"fmod": 1} if name == "Mod" else {}
    graph.add(name, [second, first] if swapped else [first, second], **attributes)


def _beside(graph: Growing, array: Array, *, one_way: bool = False) -> str:
    """Another operand: a value that fits, or a constant some of whose axes are one or missing."""
    if not one_way and graph.chance(0.4):
        return graph.pick(lambda other: other.dtype == np.float32 and _fits(other, array))
    shape = tuple(size if graph.chance(0.7) else 1 for size in array.shape)
    return graph.normal(*shape[graph.whole(0, max(0, array.ndim - 1)) :] if graph.chance(0.6) else shape)


def _fits(one: Array, other: Array) -> bool:
    try:
        return bool(np.broadcast_shapes(one.shape, other.shape))
    except ValueError:
        return False


@drawn("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _compared(graph: Growing, name: str) -> None:
    first, array = graph.floats()
    graph.add(name, [first, _beside(graph, array)])


@drawn("And", "Or", "Xor", "Not")
def _logic(graph: Growing, name: str) -> None:
    first = graph.pick(lambda array: array.dtype == bool)
    if name == "Not":
        graph.add(name, [first])
        return
    graph.add(name, [first, graph.pick(lambda array: array.dtype == bool and _fits(array, graph.values[first]))])


@drawn("Where")
def _where(graph: Growing, name: str) -> None:
    condition = graph.pick(lambda array: array.dtype == bool)
    first = graph.pick(lambda array: array.dtype == np.float32 and _fits(array, graph.values[condition]))
    graph.add(name, [condition, first, _beside(graph, graph.values[first])])


@drawn("IsNaN", "IsInf")
def _asked(graph: Growing, name: str) -> None:
    graph.add(name, [graph.floats()[0]])


@drawn("Clip")
def _clip(graph: Growing, name: str) -> None:
    first, _ = graph.floats()
    low = graph.constant(np.float32(graph.rng.uniform(-2, 0)).reshape(())) if graph.chance(0.7) else ""
    high = graph.constant(np.float32(graph.rng.uniform(0, 2)).reshape(())) if graph.chance(0.7) else ""
    graph.add(name, [first, low, high] if high else [first, low] if low else [first])


@drawn("Cast")
def _cast(graph: Growing, name: str) -> None:
    kind = graph.among(*("FLOAT", "DOUBLE", "INT32", "INT64", "BOOL", "FLOAT16"))
    first = graph.pick(lambda array: array.dtype.kind in "fib")
    graph.add(name, [first], to=getattr(onnx.TensorProto, kind))
    if kind in ("DOUBLE", "FLOAT16") or graph.chance(0.6):
        graph.add(name, [graph.nodes[-1].output[0]], to=onnx.TensorProto.FLOAT)


REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)


@drawn(*REDUCTIONS)
def _reduced(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    known = onnx.defs.get_schema(name, graph.opset)
    axes: list[int] | None = None
    if graph.chance(0.75):
        chosen = graph.rng.permutation(array.ndim)[: graph.whole(1, array.ndim)]
        axes = [int(axis) - (array.ndim if graph.chance(0.4) else 0) for axis in chosen]
    attributes: dict[str, Any] = {"keepdims": graph.among(None, 0, 1)}
    if "noop_with_empty_axes" in known.attributes:
        attributes["noop_with_empty_axes"] = graph.among(None, 0, 1)
    if "axes" in known.attributes:
        graph.add(name, [first], axes=axes, **attributes)
    else:
        graph.add(name, [first] if axes is None else [first, graph.ints(*axes)], **attributes)


@drawn("ArgMax", "ArgMin")
def _arg(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    last = graph.among(None, 0, 1) if graph.opset >= 12 else None
    graph.add(name, [first], axis=graph.axis(array), keepdims=graph.among(None, 0, 1), select_last_index=last)


@drawn("TopK")
def _top_k(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    axis = graph.axis(array)
    count = graph.ints(graph.whole(1, array.shape[axis]))
    graph.add(name, [first, count], 2, axis=axis, largest=graph.among(None, 0, 1), sorted=1)


@drawn("Softmax", "LogSoftmax", "Hardmax")
def _softmax(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    graph.add(name, [first], axis=graph.axis(array) if graph.chance(0.8) else None)


def _windows(graph: Growing, sizes: Sequence[int], *, dilated: bool = True) -> dict[str, Any]:
    """Attributes of windows that fit over an image."""
    kernel = [graph.whole(1, min(3, size)) for size in sizes]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if graph.chance(0.6):
        found["strides"] = [graph.whole(1, 3) for _ in sizes]
    if dilated and graph.chance(0.4):
        found["dilations"] = [graph.whole(1, 2) for _ in sizes]
    way = graph.rng.random()
    if way < 0.45:
        found["pads"] = [graph.whole(0, max(0, width - 1)) for width in kernel * 2]
    elif way < 0.65 and all(
        stride <= width for stride, width in zip(found.get("strides", [1] * len(sizes)), kernel, strict=True)
    ):
        found["auto_pad"] = graph.among("SAME_UPPER", "SAME_LOWER", "VALID")
    return found


@drawn("Conv", "ConvTranspose")
def _convolved(graph: Growing, name: str) -> None:
    first, array = graph.floats(3)
    sizes, channels = array.shape[2:], array.shape[1]
    group = graph.among(*[number for number in (1, 1, 2, channels) if channels % number == 0])
    windows = _windows(graph, sizes)
    kernel = windows["kernel_shape"]
    outputs = group * graph.whole(1, 3)
    shape = (outputs, channels // group) if name == "Conv" else (channels, outputs // group)
    inputs = [first, graph.normal(*shape, *kernel, scale=0.5)]
    if graph.chance(0.7):
        inputs.append(graph.normal(outputs))
    if name == "ConvTranspose":
        windows.pop("auto_pad", None)
        if "strides" in windows and graph.chance(0.5):
            windows["output_padding"] = [graph.whole(0, stride - 1) for stride in windows["strides"]]
    if graph.chance(0.3):
        windows.pop("kernel_shape")
    graph.add(name, inputs, group=group if group > 1 or graph.chance() else None, **windows)


@drawn("MaxPool", "AveragePool", "LpPool")
def _pooled(graph: Growing, name: str) -> None:
    first, array = graph.floats(3)
    known = onnx.defs.get_schema(name, graph.opset).attributes
    windows = _windows(graph, array.shape[2:], dilated="dilations" in known)
    if "ceil_mode" in known and "auto_pad" not in windows:
        windows["ceil_mode"] = graph.among(None, 0, 1)
    if name == "AveragePool":
        windows["count_include_pad"] = graph.among(None, 0, 1)
    if name == "LpPool":
        windows["p"] = graph.among(None, 1, 2, 3)
    graph.add(name, [first], **windows)


@drawn("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(graph: Growing, name: str) -> None:
    graph.add(name, [graph.floats(3)[0]])


@drawn("BatchNormalization")
def _batch_normalization(graph: Growing, name: str) -> None:
    first, array = graph.floats(2)
    channels = array.shape[1]
    variance = graph.constant(np.asarray(graph.rng.uniform(0.5, 2, channels), np.float32))
    statistics = [graph.normal(channels) for _ in range(3)]
    graph.add(name, [first, *statistics, variance], epsilon=graph.among(None, 1e-3))


@drawn("InstanceNormalization", "GroupNormalization")
def _instance_normalization(graph: Growing, name: str) -> None:
    first, array = graph.floats(3)
    channels = array.shape[1]
    groups = graph.among(*[number for number in (1, 2, channels) if channels % number == 0])
    size = groups if name == "GroupNormalization" and graph.opset < 21 else channels
    extra = {"num_groups": groups} if name == "GroupNormalization" else {}
    graph.add(name, [first, graph.normal(size), graph.normal(size)], epsilon=graph.among(None, 1e-3), **extra)


@drawn("LayerNormalization")
def _layer_normalization(graph: Growing, name: str) -> None:
    first, array = graph.floats(2)
    axis = graph.axis(array)
    shape = array.shape[axis:]
    inputs = [first, graph.normal(*shape)]
    if graph.chance():
        inputs.append(graph.normal(*shape))
    graph.add(name, inputs, axis=axis, epsilon=graph.among(None, 1e-3))


@drawn("LRN")
def _lrn(graph: Growing, name: str) -> None:
    first, _ = graph.floats(4, 4)
    size = graph.among(1, 3, 5)  # the reference evaluator is wrong for even ones, and ONNX Runtime refuses them
    graph.add(
        name, [first], size=size, alpha=graph.among(None, 0.5), beta=graph.among(None, 0.5), bias=graph.among(None, 2.0)
    )


@drawn("LpNormalization")
def _lp_normalization(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    graph.add(name, [first], axis=graph.axis(array), p=graph.among(None, 1, 2))


@drawn("MeanVarianceNormalization")
def _mean_variance(graph: Growing, name: str) -> None:
    first, _ = graph.floats(4, 4)
    graph.add(name, [first], axes=graph.among(None, [0, 2, 3], [1], [2, 3]))


@drawn("Gemm")
def _gemm(graph: Growing, name: str) -> None:
    first, array = graph.floats(2, 2)
    turned, other, outputs = graph.chance(), graph.chance(), graph.whole(1, 6)
    rows, inner = array.shape[::-1] if turned else array.shape
    inputs = [first, graph.normal(*((outputs, inner) if other else (inner, outputs)), scale=0.5)]
    if graph.chance(0.7):
        inputs.append(graph.normal(*graph.among((outputs,), (1, outputs), (rows, 1), (rows, outputs), ())))
    graph.add(
        name,
        inputs,
        transA=int(turned),
        transB=int(other),
        alpha=graph.among(None, 0.5),
        beta=graph.among(None, 0.25),
    )


@drawn("MatMul")
def _matmul(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    inner = array.shape[-1]
    shape = graph.among((inner, graph.whole(1, 5)), (inner,), (*array.shape[:-2], inner, graph.whole(1, 5)))
    if graph.chance(0.2) and array.ndim >= 2:
        graph.add(name, [graph.normal(graph.whole(1, 4), array.shape[-2]), first])
        return
    graph.add(name, [first, graph.normal(*shape, scale=0.5)])


@drawn("Einsum")
def _einsum(graph: Growing, name: str) -> None:
    first, array = graph.floats(2, 4)
    letters = "abcd"[: array.ndim]
    last = array.shape[-1]
    way = graph.whole(0, 3)
    if way == 0:
        graph.add(name, [first], equation=f"{letters}->{letters[::-1]}")
    elif way == 1:
        graph.add(name, [first, graph.normal(last, 3)], equation=f"{letters},{letters[-1]}z->{letters[:-1]}z")
    elif way == 2:
        graph.add(name, [first, first], equation=f"...{letters[-1]},...{letters[-1]}->...")
    else:
        graph.add(name, [first, graph.normal(*array.shape)], equation=f"{letters},{letters}->{letters[0]}")


@drawn("Transpose")
def _transpose(graph: Growing, name: str) -> None:
    first, array = graph.floats(2)
    graph.add(
        name, [first], perm=[int(axis) for axis in graph.rng.permutation(array.ndim)] if graph.chance(0.8) else None
    )


@drawn("Reshape")
def _reshape(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    sizes = [int(size) for size in array.shape]
    way = graph.whole(0, 3)
    if way == 0:
        sizes = [sizes[0], -1]
    elif way == 1:
        sizes = [*([0] * (array.ndim - 1)), -1, 1]
    elif way == 2:
        sizes = [sizes[0] * (sizes[1] if len(sizes) > 1 else 1), *sizes[2:]]
    else:
        sizes = [sizes[-1], -1, *sizes[:1]]
    graph.add(name, [first, graph.ints(*sizes)])


@drawn("Flatten")
def _flatten(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    graph.add(name, [first], axis=graph.whole(-array.ndim, array.ndim) if graph.chance(0.8) else None)


@drawn("Squeeze", "Unsqueeze")
def _squeezed(graph: Growing, name: str) -> None:
    first, array = graph.floats(1, 4)
    if name == "Squeeze":
        ones = [axis for axis, size in enumerate(array.shape) if size == 1]
        if not ones:
            raise UnfitError("no axis of one")
        axes = graph.among(None, ones, ones[:1], [ones[-1] - array.ndim])
    else:
        axes = graph.among([0], [array.ndim], [-1], [1, 0])
    if graph.opset < 13:
        graph.add(name, [first], axes=axes)
    else:
        graph.add(name, [first] if axes is None else [first, graph.ints(*axes)])


@drawn("Concat")
def _concat(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    axis = graph.axis(array)

    def beside(other: Array) -> bool:
        return (
            other.dtype == np.float32
            and other.ndim == array.ndim
            and all(
                one == two
                for place, (one, two) in enumerate(zip(other.shape, array.shape, strict=True))
                if place != axis % array.ndim
            )
        )

    graph.add(name, [first, *(graph.pick(beside) for _ in range(graph.whole(1, 2)))], axis=axis)


@drawn("Split")
def _split(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    axis = graph.axis(array)
    size, count = array.shape[axis], graph.whole(2, 3)
    if graph.chance(0.4):
        even = {"num_outputs": count} if graph.opset >= 18 else {}
        if size % count and not even:
            raise UnfitError("no even parts")
        graph.add(name, [first], count, axis=axis, **even)
        return
    if size < count:
        raise UnfitError("too small")
    cuts = sorted(int(cut) + 1 for cut in graph.rng.permutation(size - 1)[: count - 1])
    parts = [end - start for start, end in zip([0, *cuts], [*cuts, size], strict=True)]
    if graph.opset < 13:
        graph.add(name, [first], count, axis=axis, split=parts)
    else:
        graph.add(name, [first, graph.ints(*parts)], count, axis=axis)


@drawn("Slice")
def _slice(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    axes = [int(axis) for axis in graph.rng.permutation(array.ndim)[: graph.whole(1, array.ndim)]]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = array.shape[axis]
        step = graph.among(1, 1, 2, -1, -2)
        bounds = (graph.whole(-size, size // 2), graph.among(size, -1, 2**31 - 1, 2**63 - 1))
        backwards = (graph.among(-1, size - 1, 99), graph.among(-size - 1, 0, -(2**31)))
        start, end = bounds if step > 0 else backwards
        starts.append(start)
        ends.append(end)
        steps.append(step)
    signed = [axis - array.ndim if graph.chance(0.3) else axis for axis in axes]
    inputs = [first, graph.ints(*starts), graph.ints(*ends), graph.ints(*signed)]
    graph.add(name, [*inputs, graph.ints(*steps)] if set(steps) != {1} or graph.chance() else inputs)


@drawn("Gather", "GatherElements", "GatherND")
def _gathered(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    axis = graph.axis(array)
    size = array.shape[axis]
    kind = graph.among(np.int64, np.int32)
    if name == "Gather":
        if graph.chance(0.3) and size > 1:
            graph.add(
                name,
                [first, graph.pick(lambda other: other.dtype == np.int64 and 0 <= other.min() <= other.max() < 2)],
                axis=axis,
            )
            return
        shape = graph.among((), (2,), (2, 3), (1,))
        graph.add(name, [first, graph.constant(np.asarray(graph.rng.integers(-size, size, shape), kind))], axis=axis)
    elif name == "GatherElements":
        shape = [graph.whole(1, length) for length in array.shape]
        graph.add(name, [first, graph.constant(graph.rng.integers(-size, size, shape).astype(kind))], axis=axis)
    else:
        batch = graph.whole(0, array.ndim - 1)
        depth = graph.whole(1, array.ndim - batch)
        spots = [
            graph.rng.integers(-length, length, (*array.shape[:batch], 3))
            for length in array.shape[batch : batch + depth]
        ]
        inputs = [first, graph.constant(np.stack(spots, -1).astype(np.int64))]
        graph.add(name, inputs, batch_dims=batch or None)


@drawn("ScatterElements", "ScatterND")
def _scattered(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    reductions = {11: (None,), 13: (None,), 17: (None, "none", "add", "mul")}.get(
        graph.opset, (None, "none", "add", "mul", "max", "min")
    )
    reduction = graph.among(*reductions)
    if name == "ScatterND":
        depth = graph.whole(1, array.ndim)
        flat = graph.rng.permutation(int(np.prod(array.shape[:depth])))[:3]
        spots = np.stack(np.unravel_index(flat, array.shape[:depth]), -1).astype(np.int64)
        updates = graph.normal(len(flat), *array.shape[depth:])
        graph.add(name, [first, graph.constant(spots), updates], reduction=reduction)
        return
    axis = graph.axis(array)
    shape = [graph.whole(1, length) for length in array.shape]
    places = np.argsort(graph.rng.random(array.shape), axis)[tuple(slice(length) for length in shape)]
    places = np.where(graph.rng.random(shape) < 1 / 4, places - array.shape[axis], places)
    graph.add(
        name, [first, graph.constant(places.astype(np.int64)), graph.normal(*shape)], axis=axis, reduction=reduction
    )


@drawn("Expand", "Tile")
def _repeated(graph: Growing, name: str) -> None:
    first, array = graph.floats(1, 4)
    if name == "Tile":
        graph.add(name, [first, graph.ints(*(graph.whole(1, 2) for _ in array.shape))])
        return
    shape = [graph.whole(1, 3) if size == 1 else graph.among(1, size) for size in array.shape]
    graph.add(name, [first, graph.ints(*([graph.whole(1, 2)] if graph.chance(0.3) else []), *shape)])


@drawn("Pad")
def _pad(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    mode = graph.among(None, "constant", "reflect", "edge", *(["wrap"] if graph.opset >= 19 else []))
    most = [min(3, size - 1) if mode == "reflect" else 2 for size in array.shape]
    least = -1 if mode in (None, "constant") and min(array.shape) > 2 else 0
    pads = [graph.whole(least, limit) if graph.chance(0.6) else 0 for limit in [*most, *most]]
    inputs = [first, graph.ints(*pads)]
    if mode in (None, "constant") and graph.chance():
        inputs.append(graph.constant(np.float32(graph.rng.uniform(-2, 2)).reshape(())))
    graph.add(name, inputs, mode=mode)


@drawn("DepthToSpace", "SpaceToDepth")
def _blocks(graph: Growing, name: str) -> None:
    first, _ = graph.floats(4, 4)
    extra = {"mode": graph.among(None, "DCR", "CRD")} if name == "DepthToSpace" else {}
    graph.add(name, [first], blocksize=2, **extra)


@drawn("Trilu")
def _trilu(graph: Growing, name: str) -> None:
    first, _ = graph.floats(2)
    inputs = [first, graph.constant(np.array(graph.whole(-2, 2)))] if graph.chance(0.6) else [first]
    graph.add(name, inputs, upper=graph.among(None, 0, 1))


@drawn("OneHot")
def _one_hot(graph: Growing, name: str) -> None:
    first = graph.pick(lambda array: array.dtype == np.int64 and array.ndim < 4)
    inputs = [first, graph.constant(np.array([graph.whole(2, 5)])), graph.constant(np.array([-0.5, 2.0], np.float32))]
    graph.add(name, inputs, axis=graph.among(None, -1, 0, 1))


@drawn("CumSum")
def _cum_sum(graph: Growing, name: str) -> None:
    first, array = graph.floats(1)
    place = graph.constant(np.array(graph.axis(array)))
    graph.add(name, [first, place], exclusive=graph.among(None, 0, 1), reverse=graph.among(None, 0, 1))


@drawn("ReverseSequence")
def _reverse_sequence(graph: Growing, name: str) -> None:
    first, array = graph.floats(2)
    time = graph.whole(0, 1)
    lengths = graph.rng.integers(1, array.shape[time] + 1, array.shape[1 - time])
    graph.add(name, [first, graph.constant(lengths)], time_axis=time, batch_axis=1 - time)


@drawn("Resize")
def _resize(graph: Growing, name: str) -> None:
    first, array = graph.floats(3)
    mode = graph.among("nearest", "linear", "cubic" if array.ndim == 4 else "linear")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": graph.among(
            None, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"
        ),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = graph.among(None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if mode == "cubic":
        attributes["cubic_coeff_a"] = graph.among(None, -0.5)
        attributes["exclude_outside"] = graph.among(None, 0, 1)
    if mode != "nearest" and graph.opset >= 18:
        attributes["antialias"] = graph.among(None, None, 0, 1)
    spatial = array.shape[2:]
    if graph.chance():
        sizes = [*array.shape[:2], *(graph.whole(1, 2 * size) for size in spatial)]
        region, scales = ("", "") if graph.opset >= 13 else (graph.constant(np.zeros(0, np.float32)),) * 2
        graph.add(name, [first, region, scales, graph.ints(*sizes)], **attributes)
        return
    factors = [1.0, 1.0, *(graph.among(0.5, 1.5, 2.0, 3.0, 0.8) for _ in spatial)]
    region = "" if graph.opset >= 13 else graph.constant(np.zeros(0, np.float32))
    graph.add(name, [first, region, graph.constant(np.array(factors, np.float32))], **attributes)


@drawn("GridSample")
def _grid_sample(graph: Growing, name: str) -> None:
    first, array = graph.floats(4, 4)
    grid = graph.constant(graph.rng.uniform(-1.2, 1.2, (array.shape[0], 3, 4, 2)).astype(np.float32))
    modes = ("bilinear", "nearest") if graph.opset < 20 else ("linear", "nearest", "cubic")
    graph.add(
        name,
        [first, grid],
        mode=graph.among(None, *modes),
        padding_mode=graph.among(None, "zeros", "border", "reflection"),
        align_corners=graph.among(None, 0, 1),
    )


@drawn("LSTM", "GRU", "RNN")
def _recurrent(graph: Growing, name: str) -> None:
    first, array = graph.floats(3, 3)
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[name], graph.whole(1, 5)
    way = graph.among(None, "forward", "reverse", "bidirectional")
    directions = 2 if way == "bidirectional" else 1
    inputs = [
        first,
        graph.normal(directions, gates * hidden, array.shape[2], scale=0.5),
        graph.normal(directions, gates * hidden, hidden, scale=0.5),
    ]
    if graph.chance(0.7):
        inputs.append(graph.normal(directions, 2 * gates * hidden))
    extra = {"linear_before_reset": graph.among(None, 0, 1)} if name == "GRU" else {}
    graph.add(name, inputs, 2, hidden_size=hidden, direction=way, **extra)


@drawn("QuantizeLinear")
def _quantised(graph: Growing, name: str) -> None:
    """There and back, as exported models have it."""
    first, array = graph.floats(1)
    kind = graph.among(np.uint8, np.int8)
    channels = graph.opset >= 13 and array.ndim > 1 and graph.chance(0.4)
    shape = (array.shape[1],) if channels else ()
    scale = graph.rng.uniform(0.01, 0.1, shape).astype(np.float32)
    zero = graph.rng.integers(100, 140, shape) if kind == np.uint8 else graph.rng.integers(-9, 10, shape)
    names = [graph.constant(np.asarray(scale)), graph.constant(np.asarray(zero, kind))]
    axis = {"axis": 1} if channels else {}
    graph.add(name, [first, *names], **axis)
    if graph.chance(0.85):
        graph.add("DequantizeLinear", [graph.nodes[-1].output[0], *names], **axis)


@drawn("DynamicQuantizeLinear")
def _dynamically_quantised(graph: Growing, name: str) -> None:
    graph.add(name, [graph.floats(1)[0]], 3)
    graph.add("DequantizeLinear", list(graph.nodes[-1].output))


@drawn("Shape")
def _shaped(graph: Growing, name: str) -> None:
    """A shape that another value takes, computed in the graph."""
    first, array = graph.floats(1)
    graph.add(name, [first])
    shape = graph.nodes[-1].output[0]
    if graph.chance():
        graph.add("ConstantOfShape", [shape], value=helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [1.5]))
        graph.add("Add", [first, graph.nodes[-1].output[0]])
    else:
        other = graph.pick(lambda one: one.dtype == np.float32 and one.size == array.size)
        graph.add("Reshape", [other, shape])
