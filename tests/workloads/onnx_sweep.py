"""Single ONNX nodes with all combinations of their attributes, on inputs that reach their edges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Array = NDArray[Any]


@dataclass(frozen=True)
class Sweep:
    """An operator, and what to vary; every combination is a case that the standard may know or not."""

    operator: str
    inputs: Sequence[Any]
    """Alternatives; None leaves an optional input out."""
    attributes: Mapping[str, Sequence[Any]]
    """Values of each attribute; None leaves it out."""
    opsets: Sequence[int] = (22,)
    outputs: int = 1
    constants: frozenset[int] = frozenset()
    """Positions of the inputs that are initializers, as shapes and axes often are."""

    def __iter__(self) -> Iterator[Single]:
        combinations = itertools.product(*self.attributes.values())
        for opset, values, arrays in itertools.product(self.opsets, combinations, self.inputs):
            given = dict(zip(self.attributes, values, strict=True))
            chosen = {name: value for name, value in given.items() if value is not None}
            yield Single(self.operator, opset, chosen, arrays, self.outputs, self.constants)


@dataclass(frozen=True)
class Single:
    """A graph of one node, and its inputs."""

    operator: str
    opset: int
    attributes: Mapping[str, Any]
    arrays: Sequence[Array | None]
    outputs: int
    constants: frozenset[int]

    def __str__(self) -> str:
        shapes = ", ".join("-" if array is None else f"{array.dtype}{list(array.shape)}" for array in self.arrays)
        told = [repr(array.tolist()) for array in self.arrays if array is not None and array.dtype == np.int64]
        return f"{self.operator}-{self.opset} {dict(self.attributes)} ({shapes}) {' '.join(told)[:100]}"

    @property
    def feeds(self) -> dict[str, Array]:
        """What is given when the graph runs."""
        return {
            f"i{place}": array
            for place, array in enumerate(self.arrays)
            if array is not None and place not in self.constants
        }

    def model(self) -> onnx.ModelProto:
        """The graph."""
        names = ["" if array is None else f"i{place}" for place, array in enumerate(self.arrays)]
        outputs = [f"o{place}" for place in range(self.outputs)]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        constants = [
            onnx.numpy_helper.from_array(array, f"i{place}")
            for place, array in enumerate(self.arrays)
            if array is not None and place in self.constants
        ]
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        wanted = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        graph = helper.make_graph([node], "single", given, wanted, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


_RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    """Numbers around zero."""
    return _RNG.standard_normal(shape).astype(np.float32)


def single(values: Any) -> Array:
    """Given numbers, with as many axes as the lists that they are in."""
    return np.array(values, np.float32)


def whole(low: int, high: int, *shape: int, kind: Any = np.int64) -> Array:
    """Whole numbers."""
    return _RNG.integers(low, high, shape).astype(kind)


def ints(*values: int) -> Array:
    """A vector of whole numbers."""
    return np.array(values, np.int64)


def number(value: int) -> Array:
    """A whole number without axes."""
    return np.array(value, np.int64)


def _unit(shape: Sequence[int]) -> Array:
    return _RNG.uniform(0.1, 0.9, tuple(shape)).astype(np.float32)


MATRIX, BLOCK, IMAGE = normal(4, 5), normal(3, 4, 5), normal(2, 4, 7, 6)
EDGES = np.array(
    [-np.inf, -3e37, -30.0, -2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 21.0, 30.0, 3e37, np.inf], np.float32
)
WHOLE = whole(-9, 9, 3, 4, kind=np.int32)
BLOCKS = whole(-9, 9, 2, 3, 4)
EMPTY = np.zeros((0, 3), np.float32)
HALF = BLOCK.astype(np.float16)
KEEP: dict[str, Sequence[Any]] = {"keepdims": (None, 0, 1)}

UNARY = [
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
    "IsNaN",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "HardSwish",
]
_NAN = np.array([np.nan, 1.0, -1.0], np.float32)
BINARY = ["Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Pow"]
POOLED: dict[str, Sequence[Any]] = {
    "kernel_shape": ([3, 2], [1, 4]),
    "strides": (None, [2, 3]),
    "pads": (None, [1, 1, 1, 1], [0, 1, 2, 0]),
    "ceil_mode": (None, 1),
}
REDUCTIONS = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]


def _sweeps() -> Iterator[Sweep]:
    yield from (Sweep(name, [[MATRIX], [EDGES], [_unit((3, 2))], [EMPTY], [HALF], [WHOLE]], {}) for name in UNARY)
    pairs = [
        [BLOCK, normal(5)], [normal(3, 1, 5), normal(4, 1)], [BLOCK, single(2.0).reshape(())], [EMPTY, normal(3)],
        [WHOLE, whole(1, 5, 4, kind=np.int32)], [WHOLE, whole(-5, 0, 3, 1, kind=np.int32)], [ints(7, -7, 9), ints(2, 2, -4)],
        [ints(2**62 + 1, -(2**62) - 1), ints(3, 3)],
    ]  # fmt: skip
    yield from (Sweep(name, pairs, {}, (7, 14, 22)) for name in BINARY)
    yield from (Sweep(name, pairs, {}, (22,), constants=frozenset({0, 1})) for name in BINARY)
    yield Sweep(
        "Pow",
        [
            [np.abs(MATRIX), ints(2)],
            [WHOLE, single([2.5])],
            [whole(0, 4, 3), single([0.5, 2.0, 3.0])],
            [HALF, normal(5)],
        ],
        {},
        (12, 15),
    )
    logic = [[WHOLE > 0, WHOLE < 3], [WHOLE > 0, np.array([True, False, True, False])]]
    yield from (Sweep(name, logic, {}) for name in ("And", "Or", "Xor", "Equal"))
    yield Sweep("Not", [[WHOLE > 0]], {})
    bits = [[whole(0, 99, 4, kind=kind), whole(0, 99, 4, kind=kind)] for kind in (np.int32, np.uint8, np.int64)]
    yield from (Sweep(name, bits, {}) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    yield Sweep("BitwiseNot", [pair[:1] for pair in bits], {})
    for name in ("Max", "Min", "Sum", "Mean"):
        yield Sweep(
            name,
            [
                [BLOCK],
                [BLOCK, normal(5)],
                [BLOCK, normal(5), normal(4, 1)],
                [_NAN, normal(3)],
                [WHOLE, WHOLE.T.copy().T],
            ],
            {},
            (8, 13),
        )
    remainders = [[WHOLE, whole(1, 5, 4, kind=np.int32)], [WHOLE, whole(-5, 0, 4, kind=np.int32)], [MATRIX, normal(5)]]
    yield Sweep("Mod", remainders, {"fmod": (None, 0, 1)}, (10, 13))
    yield Sweep("Where", [[WHOLE > 0, normal(3, 4), normal(4)], [np.array([True]), normal(3, 1), normal(1, 4)]], {})
    yield Sweep("Clip", [[EDGES], [MATRIX]], {"min": (None, -1.0), "max": (None, 0.5)}, (6,))
    low, high = single(-0.5).reshape(()), single(0.5).reshape(())
    yield Sweep(
        "Clip",
        [
            [EDGES, low, high],
            [EDGES, None, high],
            [EDGES, low],
            [EDGES, high, low],
            [EDGES],
            [WHOLE, np.int32(-2).reshape(()), None],
        ],
        {},
        (11, 13),
    )
    for to in (1, 2, 3, 6, 7, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22):
        yield Sweep(
            "Cast",
            [[single([-2.7, -0.5, 0.0, 0.49, 1.5, 2.5, 100.7])], [whole(-3, 9, 5)], [MATRIX > 0]],
            {"to": (to,)},
            (13, 22),
        )
    yield Sweep(
        "Cast",
        [[single([-1e6, -300.0, -0.3, 0.3, 1e6, np.inf, np.nan])]],
        {"to": (17, 18, 19, 20), "saturate": (None, 0, 1)},
        (19, 22),
    )
    yield Sweep("CastLike", [[MATRIX * 9, WHOLE], [MATRIX * 9, HALF], [WHOLE, MATRIX > 0]], {}, (15, 22))
    yield Sweep("Dropout", [[MATRIX]], {"ratio": (None, 0.3)}, (7, 10), outputs=2)
    yield Sweep(
        "Dropout", [[MATRIX], [MATRIX, low], [MATRIX, high, np.array(False)]], {"seed": (None, 1)}, (12, 22), outputs=2
    )
    yield Sweep("IsInf", [[EDGES]], {"detect_negative": (None, 0, 1), "detect_positive": (None, 0, 1)}, (10, 20))
    for name in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Selu"):
        yield Sweep(name, [[EDGES], [MATRIX], [HALF]], {"alpha": (None, 0.3, 2.5)})
    yield Sweep("LeakyRelu", [[MATRIX]], {"alpha": (-0.5,)}, (6, 16))
    yield Sweep("Selu", [[MATRIX]], {"gamma": (None, 0.3)}, (6, 22))
    yield Sweep("Swish", [[MATRIX]], {"alpha": (None, 0.3)}, (24,))
    yield Sweep("HardSigmoid", [[EDGES], [MATRIX]], {"alpha": (None, 0.4), "beta": (None, 0.1)}, (6, 22))
    yield Sweep("Shrink", [[EDGES], [MATRIX], [WHOLE]], {"lambd": (None, 1.5), "bias": (None, 1.0)}, (9,))
    yield Sweep("PRelu", [[BLOCK, normal(5)], [BLOCK, normal(4, 1)], [WHOLE, WHOLE[:1].copy()]], {}, (9, 16))
    yield Sweep("Gelu", [[EDGES[1:-1]], [MATRIX]], {"approximate": (None, "none", "tanh")}, (20,))
    for name in ("Softmax", "LogSoftmax"):
        yield Sweep(name, [[BLOCK], [normal(2, 3, 4, 5)], [EMPTY]], {"axis": (None, 0, 1, 2, -1, -2)}, (6, 11, 12, 13))
    yield from _shaping()
    yield from _layers()


def _shaping() -> Iterator[Sweep]:
    yield Sweep(
        "Shape", [[BLOCK], [EMPTY]], {"start": (None, 0, 1, -1, -9, 9), "end": (None, 0, 2, -1, 9, -9)}, (15, 21)
    )
    yield Sweep("Size", [[BLOCK], [EMPTY], [single(1).reshape(())]], {})
    for fixed in (frozenset[int](), frozenset({1})):
        shapes = [ints(5, -1), ints(0, 0, -1), ints(-1), ints(0, 20), ints(3, 5, 4), ints(1, 3, 0, 5)]
        yield Sweep("Reshape", [[BLOCK, shape] for shape in shapes], {"allowzero": (None, 0)}, (5, 14), constants=fixed)
        yield Sweep(
            "Reshape",
            [[EMPTY, shape] for shape in (ints(0, 3), ints(3, 0), ints(0, 7), ints(0), ints(-1, 3))],
            {"allowzero": (None, 1)},
            (14,),
            constants=fixed,
        )
        yield Sweep(
            "Expand",
            [[normal(3, 1), shape] for shape in (ints(3, 4), ints(1), ints(2, 1, 4), ints(3, 0), ints(1, 1), ints())],
            {},
            constants=fixed,
        )
        yield Sweep(
            "Tile", [[MATRIX, ints(2, 1)], [MATRIX, ints(0, 2)], [BLOCK, ints(1, 2, 3)]], {}, (6, 13), constants=fixed
        )
        yield Sweep(
            "Squeeze",
            [[normal(1, 3, 1), axes] for axes in (None, ints(0), ints(-1, 0), ints(2), ints())],
            {},
            (13, 21),
            constants=fixed,
        )
        yield Sweep(
            "Unsqueeze",
            [[MATRIX, axes] for axes in (ints(0), ints(-1), ints(3, 0), ints(-1, 1), ints(2, -4))],
            {},
            (13, 21),
            constants=fixed,
        )
        extremes = 2**63 - 1
        slices = [
            [BLOCK, ints(0, 1), ints(2, 9), None, None], [BLOCK, ints(-9), ints(extremes), ints(-1), ints(2)],
            [BLOCK, ints(-1), ints(-extremes - 1), ints(1), ints(-1)], [BLOCK, ints(extremes), ints(-extremes), ints(2), ints(-2)],
            [BLOCK, ints(3), ints(1), ints(2), ints(1)], [BLOCK, ints(2, -2), ints(0, -99), ints(0, 2), ints(-1, -1)],
            [BLOCK, ints(1), ints(-1), ints(1), None], [BLOCK, ints(-99), ints(-2), ints(2), ints(-1)], [BLOCK, ints(9), ints(10), ints(0), ints(1)],
            [BLOCK, ints(-2), ints(2**31 - 1), ints(2), ints(1)], [BLOCK, ints(-4), ints(-(2**31)), ints(1), ints(-3)],
        ]  # fmt: skip
        yield Sweep("Slice", slices, {}, (10, 13), constants=frozenset({1, 2, 3, 4}) if fixed else fixed)
    yield Sweep(
        "Slice",
        [[BLOCK]],
        {"starts": ([0, 1], [-2, -9]), "ends": ([2, -1], [9, 3]), "axes": (None, [0, 2], [1, 0])},
        (1, 9),
    )
    for axes in (None, [0], [2], [0, 2]):
        yield Sweep("Squeeze", [[normal(1, 3, 1)]], {"axes": (axes,)}, (1, 11))
        yield Sweep("Unsqueeze", [[MATRIX]], {"axes": (axes,)}, (1, 11))
    yield Sweep("Flatten", [[BLOCK], [normal(2, 3, 4, 5)], [EMPTY]], {"axis": (None, 0, 1, 2, 3, -1, -2)}, (9, 21))
    yield Sweep("Transpose", [[BLOCK]], {"perm": (None, [0, 2, 1], [2, 0, 1])})
    yield Sweep("Concat", [[BLOCK, normal(3, 4, 5)], [BLOCK]], {"axis": (0, 1, 2, -1, -3)}, (4, 13))
    yield Sweep("Concat", [[ints(1, 2), ints(3)]], {"axis": (0, -1)}, (13,), constants=frozenset({0, 1}))
    yield Sweep(
        "Split",
        [[normal(6, 9), None], [normal(9, 6), None]],
        {"axis": (None, 0, 1, -1), "num_outputs": (3,)},
        (18,),
        outputs=3,
    )
    yield Sweep("Split", [[normal(7, 8)]], {"axis": (0, 1), "num_outputs": (3,)}, (18,), outputs=3)
    yield Sweep(
        "Split",
        [[normal(6, 6), ints(1, 3, 2)], [normal(6, 6), ints(0, 6, 0)]],
        {"axis": (None, 1, -1)},
        (13, 18),
        outputs=3,
    )
    yield Sweep("Split", [[normal(6, 6)]], {"axis": (None, 1), "split": (None, [1, 3, 2])}, (2, 11), outputs=3)
    for kind in (np.int32, np.int64):
        yield Sweep(
            "Gather",
            [[BLOCK, whole(-3, 3, 2, 2, kind=kind)], [BLOCK, whole(-3, 3, kind=kind).reshape(())]],
            {"axis": (None, 0, 1, -1)},
            (11, 13),
        )
        yield Sweep(
            "GatherElements",
            [[BLOCK, whole(-3, 3, 3, 4, 5, kind=kind)], [BLOCK, whole(-3, 3, 2, 4, 5, kind=kind)]],
            {"axis": (None, 0, 1, -1)},
        )
        for name in ("Scatter", "ScatterElements"):
            for reduction in (None, "add", "mul", "max", "min"):
                spots = np.array([[[0, -1, 2, 1, -3]]], kind).repeat(2, 1)
                yield Sweep(
                    name,
                    [[BLOCK, spots, normal(1, 2, 5)]],
                    {"axis": (None, 0, 1), "reduction": (reduction,)},
                    (9,) if name == "Scatter" else (11, 16, 18),
                )
    yield Sweep(
        "Gather",
        [[ints(4, 5, 6), ints(-1, 0)], [ints(4, 5, 6), number(-2)]],
        {"axis": (None, 0, -1)},
        (13,),
        constants=frozenset({0, 1}),
    )
    yield Sweep(
        "GatherND",
        [
            [BLOCK, ints(1)],
            [BLOCK, ints(-1, -2, 0)],
            [BLOCK, whole(-3, 3, 4, 2)],
            [BLOCK, whole(-3, 3, 3, 2)],
            [BLOCK, whole(-3, 3, 3, 4, 1)],
        ],
        {"batch_dims": (None, 0, 1, 2)},
        (12, 13),
    )
    scattered: list[list[Array | None]] = [
        [BLOCK, np.array([[0], [-1]]), normal(2, 4, 5)],
        [BLOCK, np.array([[0, 1], [-1, -2]]), normal(2, 5)],
        [BLOCK, np.array([[1, 1, 1], [1, 1, 1]]), normal(2)],
    ]
    yield Sweep("ScatterND", scattered[:2], {"reduction": (None, "none", "add", "mul", "max", "min")}, (18,))
    yield Sweep("ScatterND", scattered[2:], {"reduction": ("add",)}, (16, 18))
    yield Sweep("ScatterND", scattered[:2], {}, (11,))
    one = single(1.5).reshape(())
    for mode in (None, "reflect", "edge", "wrap"):
        for fixed in (frozenset[int](), frozenset({1, 2, 3})):
            pads = [
                [MATRIX, ints(1, 2, 0, 3)], [MATRIX, ints(0, -1, 0, 2)], [MATRIX, ints(-1, -1, 0, -1)], [BLOCK, ints(0, 1, 1, 0, 2, 2)],
                [IMAGE, ints(0, 0, 1, 2, 0, 0, 2, 1)], [BLOCK, ints(1, 1, 1, 1, 1, 1)], [BLOCK, ints(0, 0, 4, 0, 0, 4)], [BLOCK, ints(0, 2, -2, 0, 1, 3)],
                [BLOCK, ints(0, 0, 11, 0, 0, 12)], [normal(4), ints(2, 3)], [normal(1, 3), ints(0, 5, 0, 1)],
            ]  # fmt: skip
            yield Sweep("Pad", pads, {"mode": (mode,)}, (11, 19), constants=fixed)
            yield Sweep("Pad", [[*pad, one, None] for pad in pads[:3]], {"mode": (mode,)}, (13, 19), constants=fixed)
            partly = [
                [BLOCK, ints(1, 2), None, ints(2)],
                [BLOCK, ints(1, 2), one, ints(-1)],
                [BLOCK, ints(1, 0, 2, 1), one, ints(2, 1)],
                [BLOCK, ints(1, 1), None, ints(0)],
            ]
            yield Sweep("Pad", partly, {"mode": (mode,)}, (18, 21), constants=fixed)
        yield Sweep(
            "Pad", [[MATRIX]], {"mode": (mode,), "pads": ([1, 2, 0, 3], [0, -1, 0, 2]), "value": (None, 2.5)}, (2,)
        )
    large = [np.array([[2**60 + 1, 5]]), ints(0, 1, 0, 1), number(2**62 + 1), None]
    yield Sweep(
        "Pad",
        [
            large,
            [WHOLE, ints(0, 1, 0, 1), np.int32(7).reshape(()), None],
            [WHOLE > 0, ints(0, 1, 0, 1), np.array(True), None],
        ],
        {},
        (18,),
    )
    yield Sweep(
        "Trilu",
        [
            [BLOCK, None],
            [BLOCK, number(1)],
            [BLOCK, number(-2)],
            [BLOCK, number(9)],
            [BLOCK, number(-9)],
            [WHOLE, None],
        ],
        {"upper": (None, 0, 1)},
        (14,),
    )
    yield Sweep("DepthToSpace", [[normal(2, 8, 2, 3)]], {"blocksize": (2,), "mode": (None, "DCR", "CRD")}, (11, 13))
    yield Sweep("SpaceToDepth", [[normal(2, 3, 4, 6)]], {"blocksize": (2,)}, (1, 13))
    yield Sweep("SpaceToDepth", [[normal(2, 3, 4, 6)]], {"blocksize": (2,), "mode": (None, "DCR", "CRD")}, (28,))
    fills = [
        None,
        *(
            onnx.numpy_helper.from_array(np.array([3], kind))
            for kind in (np.float32, np.int64, np.bool_, np.uint8, np.float16)
        ),
    ]
    for fixed in (frozenset[int](), frozenset({0})):
        yield Sweep(
            "ConstantOfShape",
            [[ints(2, 3)], [ints(4)], [ints()], [ints(0, 2)]],
            {"value": fills},
            (9, 21),
            constants=fixed,
        )
        floats = [
            [single(part).reshape(()) for part in parts]
            for parts in ((0.0, 2.0, 0.5), (5.0, -1.0, -2.0), (0.0, 1.0, 0.3), (3.0, 1.0, 1.0))
        ]
        yield Sweep(
            "Range",
            [
                *floats,
                [number(3), number(11), number(3)],
                [number(3), number(-4), number(-2)],
                [number(3), number(1), number(1)],
            ],
            {},
            (11,),
            constants=frozenset({0, 1, 2}) if fixed else fixed,
        )
        values = single([-1.0, 2.0])
        places = [
            [whole(-6, 9, 2, 3), number(5), values],
            [whole(-6, 9, 2, 3, kind=np.int32), ints(4), values],
            [single([0.0, 2.0, -1.0]), single(3).reshape(()), ints(5, 6)],
            [number(1), number(3), values],
        ]
        yield Sweep(
            "OneHot", places, {"axis": (None, 0, 1, -1, -2)}, (9, 11), constants=frozenset({1, 2}) if fixed else fixed
        )


def _layers() -> Iterator[Sweep]:
    yield Sweep(
        "MatMul",
        [
            [MATRIX, normal(5, 3)],
            [BLOCK, normal(5)],
            [normal(4), BLOCK],
            [normal(5), normal(5)],
            [normal(2, 1, 3, 4), normal(3, 4, 2)],
            [WHOLE, WHOLE.T.copy()],
        ],
        {},
    )
    thirds = (None, normal(3), normal(4, 3), normal(4, 1), normal(1), single(2).reshape(()))
    for left, right in itertools.product((0, 1), (0, 1)):
        a, b = normal(*((5, 4) if left else (4, 5))), normal(*((3, 5) if right else (5, 3)))
        yield Sweep(
            "Gemm",
            [[a, b, c] for c in thirds],
            {"transA": (left,), "transB": (right,), "alpha": (None, 0.5), "beta": (None, 0.0, 2.0)},
            (7, 13),
        )
    yield Sweep(
        "Gemm",
        [[WHOLE, WHOLE.T.copy(), whole(0, 5, 3, kind=np.int32)]],
        {"alpha": (None, 2.0), "beta": (None, 3.0)},
        (13,),
    )
    yield Sweep("Gemm", [[MATRIX, normal(5, 3), normal(3)]], {"broadcast": (1,)}, (6,))
    yield Sweep("Det", [[normal(3, 3)], [normal(2, 4, 3, 3)]], {})
    for equation, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)), ("bij , bjk -> bik", (2, 2, 3), (2, 3, 4)), ("ij,jk", (2, 3), (3, 4)), ("...ii->...i", (2, 3, 3)), ("ii", (3, 3)),
        ("bA,bC", (2, 3), (2, 4)), ("ba", (2, 3)), ("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 2)), ("i,i->", (3,), (3,)), ("ij->", (2, 3)),
    ):  # fmt: skip
        yield Sweep("Einsum", [[normal(*shape) for shape in shapes]], {"equation": (equation,)}, (12,))
    yield from _windows()
    yield from _normalisations()
    for name in REDUCTIONS:
        values = [np.abs(BLOCK), np.abs(BLOCK.astype(np.float16)), np.abs(BLOCKS)]
        for axes in (None, [0], [1, 2], [-1], [0, -1]):
            yield Sweep(
                name,
                [[value] for value in values],
                {"axes": (axes,), **KEEP},
                (11,) if name == "ReduceSum" else (11, 13),
            )
        noop: dict[str, Sequence[Any]] = {"noop_with_empty_axes": (None, 0, 1), **KEEP}
        for fixed in (frozenset[int](), frozenset({0, 1})):
            given = [[value, axes] for value in values for axes in (None, ints(), ints(1), ints(-1, 0), ints(0, 1, 2))]
            yield Sweep(
                name,
                [*given, [np.abs(normal()), None], [ints(3, 4), ints(0)], [ints(3, 4), ints()], [ints(3, 4), None]],
                noop,
                (13, 18) if name == "ReduceSum" else (18,),
                constants=fixed,
            )
    yield Sweep("ReduceMax", [[WHOLE > 0, ints(1)]], KEEP, (20,))
    tied = single([[1, 3, 3, 0], [2, 2, 2, 2], [0, -1, 5, 5]])
    for name in ("ArgMax", "ArgMin"):
        yield Sweep(
            name,
            [[tied], [BLOCK], [WHOLE]],
            {"axis": (None, 0, 1, -1), "select_last_index": (None, 0, 1), **KEEP},
            (12, 13),
        )
    yield Sweep(
        "TopK",
        [[tied, ints(2)], [tied, ints(3)], [WHOLE, ints(1)], [tied, ints(0)]],
        {"axis": (None, 0, 1), "largest": (None, 0, 1), "sorted": (None, 1)},
        (11,),
        outputs=2,
    )
    yield Sweep("TopK", [[tied, ints(2)]], {"axis": (None, 0)}, (10,), outputs=2)
    yield Sweep("TopK", [[tied]], {"axis": (None, 0), "k": (2,)}, (1,), outputs=2)
    steep = single([[1, 1e20, 2], [3, 4, 5], [np.inf, 1, 2]])
    yield Sweep(
        "CumSum",
        [[value, number(axis)] for value in (MATRIX, WHOLE, steep) for axis in (0, 1, -1)],
        {"exclusive": (None, 0, 1), "reverse": (None, 0, 1)},
        (11, 14),
    )
    yield from _resampling()


def _windows() -> Iterator[Sweep]:
    weight, bias = normal(6, 2, 3, 2), normal(6)
    for auto in (None, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        strides: dict[str, Sequence[Any]] = {
            "auto_pad": (auto,),
            "strides": (None, [2, 1], [3, 2]),
            "dilations": (None, [2, 1]),
        }
        pads = (None, [1, 1, 1, 1], [0, 1, 2, 0], [-1, 0, 1, 0]) if auto in (None, "NOTSET") else (None,)
        yield Sweep(
            "Conv", [[IMAGE, weight, bias], [IMAGE, weight, None]], {**strides, "group": (2,), "pads": pads}, (1, 11)
        )
        yield Sweep(
            "ConvTranspose",
            [[normal(2, 4, 4, 3), normal(4, 3, 3, 2), normal(6)], [normal(2, 4, 4, 3), normal(4, 3, 3, 2)]],
            {**strides, "group": (2,), "pads": pads, "output_padding": (None, [1, 0])},
            (1, 11),
        )
    yield Sweep(
        "ConvTranspose",
        [[normal(1, 2, 3, 3), normal(2, 2, 3, 3)]],
        {"output_shape": ([10, 8],), "strides": ([3, 2],), "auto_pad": (None, "SAME_UPPER", "SAME_LOWER")},
        (11,),
    )
    yield Sweep(
        "Conv",
        [[normal(2, 3, 9), normal(4, 3, 3)]],
        {"pads": (None, [2, 1]), "strides": (None, [2]), "dilations": (None, [3])},
    )
    yield Sweep("Conv", [[normal(1, 2, 5, 5, 5), normal(4, 2, 2, 3, 2)]], {"pads": (None, [1, 0, 1, 0, 1, 1])})
    for pool in ("MaxPool", "AveragePool"):
        more: dict[str, Sequence[Any]] = (
            {"count_include_pad": (None, 1)} if pool == "AveragePool" else {"storage_order": (None, 1)}
        )
        opsets = (10, 19, 22) if pool == "AveragePool" else (10, 12, 22)
        yield Sweep(pool, [[IMAGE]], {**POOLED, **more}, opsets)
        yield Sweep(pool, [[IMAGE]], {**POOLED, **more, "dilations": ([2, 1],)}, opsets[1:])
        yield Sweep(
            pool,
            [[IMAGE], [normal(1, 1, 6, 6)]],
            {
                "kernel_shape": ([3, 2],),
                "strides": (None, [2, 3]),
                "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID"),
                "ceil_mode": (None, 1),
                **more,
            },
            opsets,
        )
        yield Sweep(
            pool,
            [[normal(2, 3, 9)]],
            {
                "kernel_shape": ([3],),
                "strides": (None, [2]),
                "pads": (None, [1, 1], [2, 2], [0, 2]),
                "ceil_mode": (None, 1),
                **more,
            },
            opsets[-1:],
        )
        yield Sweep(
            pool,
            [[-np.abs(IMAGE)]],
            {"kernel_shape": ([2, 2],), "strides": ([4, 5],), "pads": ([1, 1, 1, 1],), "ceil_mode": (1,), **more},
            opsets[-1:],
        )
    yield Sweep("MaxPool", [[IMAGE]], {**POOLED, "storage_order": (None, 1)}, (12,), outputs=2)
    yield Sweep(
        "MaxPool",
        [[whole(0, 99, 1, 2, 6, 6, kind=np.uint8)], [whole(-99, 99, 1, 2, 6, 6, kind=np.int8)]],
        POOLED,
        (12,),
    )
    yield from (Sweep(name, [[IMAGE], [BLOCK], [MATRIX]], {}) for name in ("GlobalAveragePool", "GlobalMaxPool"))


def _normalisations() -> Iterator[Sweep]:
    spread = [_unit((4,)), normal(4), normal(4), _unit((4,))]
    yield Sweep(
        "BatchNormalization",
        [[IMAGE, *spread], [MATRIX.T.copy(), *spread]],
        {"epsilon": (None, 0.1), "momentum": (None, 0.5)},
        (9, 14, 15),
    )
    yield Sweep("BatchNormalization", [[IMAGE, *spread]], {"training_mode": (None, 0, 1)}, (14, 15), outputs=3)
    yield Sweep("BatchNormalization", [[IMAGE, *spread]], {}, (9,), outputs=5)
    yield Sweep("BatchNormalization", [[IMAGE, *spread]], {"spatial": (None, 1, 0)}, (7,))
    yield Sweep("BatchNormalization", [[normal(2, 4), *spread]], {"is_test": (None, 0, 1)}, (6,))
    yield Sweep(
        "InstanceNormalization",
        [[IMAGE, normal(4), normal(4)], [normal(2, 4, 9), normal(4), normal(4)]],
        {"epsilon": (None, 0.1)},
        (6, 22),
    )
    for axis, scale in (
        (None, normal(5)),
        (-1, normal(5)),
        (1, normal(4, 5)),
        (-2, normal(4, 5)),
        (0, normal(3, 4, 5)),
        (1, normal(5)),
        (1, normal(4, 1)),
        (-1, normal(1)),
    ):
        options = {"axis": (axis,), "epsilon": (None, 0.1), "stash_type": (None, 1)}
        inputs = [[BLOCK, scale, scale], [BLOCK, scale], [HALF, scale.astype(np.float16)]]
        for outputs in (1, 2, 3):
            yield Sweep("LayerNormalization", inputs, options, (17,), outputs=outputs)
        yield Sweep("RMSNormalization", [[BLOCK, scale], [HALF, scale.astype(np.float16)]], options, (23,))
    wide = normal(2, 6, 3, 2)
    yield Sweep(
        "GroupNormalization",
        [[wide, normal(6), normal(6)]],
        {"num_groups": (1, 2, 3, 6), "epsilon": (None, 0.1), "stash_type": (None, 1)},
        (21,),
    )
    yield from (
        Sweep("GroupNormalization", [[wide, normal(groups), normal(groups)]], {"num_groups": (groups,)}, (18,))
        for groups in (2, 3, 6)
    )
    yield Sweep(
        "LRN",
        [[normal(7, 7, 3, 2)], [normal(4, 4, 3, 3)]],
        {"size": (1, 2, 3, 4, 5, 6), "alpha": (None, 0.5), "beta": (None, 0.5), "bias": (None, 2.0)},
        (1, 13),
    )
    yield Sweep(
        "LpNormalization",
        [[BLOCK], [np.zeros((2, 3), np.float32)], [single([[1e-14, 2e-14], [0, 1]])]],
        {"axis": (None, 0, 1, -1), "p": (None, 1, 2)},
        (1, 22),
    )


def _resampling() -> Iterator[Sweep]:
    square, none = normal(1, 2, 4, 5), np.zeros(0, np.float32)
    scales = [
        single(factors)
        for factors in (
            (1, 1, 2, 2),
            (1, 1, 3, 1),
            (1, 1, 0.6, 0.8),
            (1, 1, 1.5, 2.3),
            (1, 2, 2, 1),
            (2, 1, 1, 1),
            (1, 1, 0.25, 0.2),
        )
    ]
    sizes = [ints(1, 2, 8, 10), ints(1, 2, 3, 7), ints(1, 4, 4, 5), ints(1, 2, 1, 1), ints(1, 2, 9, 5)]
    given = [
        *([square, none, scale, None] for scale in scales),
        *([square, none, none, size] for size in sizes),
        [square, None, scales[0], None],
        [square, None, None, sizes[1]],
    ]
    modes = (
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
        "tf_crop_and_resize",
        "tf_half_pixel_for_nn",
        None,
    )
    for fixed in (frozenset[int](), frozenset({1, 2, 3})):
        whole_modes = modes if fixed else (None, "asymmetric", "align_corners")
        yield Sweep(
            "Resize",
            given,
            {
                "mode": ("nearest",),
                "coordinate_transformation_mode": whole_modes,
                "nearest_mode": (None, "round_prefer_ceil", "floor", "ceil"),
            },
            (11, 19) if fixed else (19,),
            constants=fixed,
        )
        yield Sweep(
            "Resize",
            given,
            {"mode": ("linear", "cubic"), "coordinate_transformation_mode": whole_modes},
            (11, 19) if fixed else (19,),
            constants=fixed,
        )
    fixed = frozenset({1, 2, 3})
    yield Sweep(
        "Resize",
        given,
        {"mode": ("linear", "cubic"), "antialias": (1,), "coordinate_transformation_mode": (None, "align_corners")},
        (18,),
        constants=fixed,
    )
    yield Sweep(
        "Resize",
        given,
        {"mode": ("cubic",), "exclude_outside": (None, 1), "cubic_coeff_a": (-0.5, -0.75)},
        (18,),
        constants=fixed,
    )
    yield Sweep(
        "Resize",
        [[square, None, None, ints(8, 7)]],
        {
            "mode": ("nearest", "linear"),
            "axes": ([2, 3],),
            "keep_aspect_ratio_policy": (None, "stretch", "not_larger", "not_smaller"),
        },
        (18,),
        constants=fixed,
    )
    yield Sweep(
        "Resize",
        [[square, None, None, ints(1, 2, 8, 7)]],
        {
            "mode": ("nearest", "linear"),
            "coordinate_transformation_mode": (None, "asymmetric"),
            "nearest_mode": (None, "floor"),
            "keep_aspect_ratio_policy": (None, "stretch", "not_larger", "not_smaller"),
        },
        (18,),
        constants=fixed,
    )
    yield Sweep(
        "Resize",
        [
            [whole(0, 99, 1, 1, 3, 3, kind=np.uint8), None, scales[0], None],
            [whole(0, 99, 1, 1, 3, 3, kind=np.int32), None, scales[0], None],
        ],
        {
            "mode": ("nearest", "linear"),
            "nearest_mode": (None, "floor"),
            "coordinate_transformation_mode": (None, "asymmetric"),
        },
        (18,),
        constants=fixed,
    )
    yield Sweep(
        "Resize",
        [
            [normal(1, 2, 5), none, single([1, 1, 2]), None],
            [normal(2, 3), none, single([1, 2]), None],
            [normal(1, 1, 3, 3, 3), none, single([1, 1, 2, 2, 2]), None],
        ],
        {
            "mode": ("nearest", "linear", "cubic"),
            "coordinate_transformation_mode": (None, "asymmetric"),
            "nearest_mode": (None, "floor"),
        },
        (18,),
        constants=fixed,
    )
    yield Sweep("Resize", [[square, scale] for scale in scales], {"mode": (None, "nearest", "linear")}, (10,))
    grid = _RNG.uniform(-1.5, 1.5, (2, 3, 4, 2)).astype(np.float32)
    corners = single(
        [[[[-1, -1], [1, 1], [-1, 1], [0, 0]], [[-1.3, 0.2], [1.25, -2.5], [3.0, 3.0], [0.5, -0.5]]]]
    ).repeat(2, 0)
    options = {"padding_mode": (None, "zeros", "border", "reflection"), "align_corners": (None, 0, 1)}
    yield Sweep(
        "GridSample",
        [[IMAGE, grid], [IMAGE, corners]],
        {"mode": (None, "linear", "nearest", "cubic"), **options},
        (20,),
    )
    yield Sweep(
        "GridSample",
        [[IMAGE, grid], [IMAGE, corners]],
        {"mode": (None, "bilinear", "nearest", "bicubic"), **options},
        (16,),
    )
    yield Sweep(
        "GridSample",
        [[normal(1, 2, 3, 4, 3), _RNG.uniform(-1.4, 1.4, (1, 2, 2, 3, 3)).astype(np.float32)]],
        {"mode": (None, "linear", "nearest"), **options},
        (20, 22),
    )


def sweeps() -> list[Sweep]:
    """All of them."""
    return list(_sweeps())
