"""Miscompilations that were reported to their authors and still show with old releases on the package index.

Each is a network of 16 to 20 nodes, most of them ordinary layers, in which the reported nodes stand in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto

from .networks import Net, of_images, of_integers, of_rows
from .old_releases import Release

_OLD_NUMPY = "numpy<2"
ORT_1_18 = Release("onnxruntime", "1.18.1", ("onnxruntime==1.18.1", _OLD_NUMPY))
ORT_1_20 = Release("onnxruntime", "1.20.1", ("onnxruntime==1.20.1",))
ORT_1_24 = Release("onnxruntime", "1.24.1", ("onnxruntime==1.24.1",))
ORT_1_27 = Release("onnxruntime", "1.27.0", ("onnxruntime==1.27.0",))
OV_2024 = Release("openvino", "2024.0.0", ("openvino==2024.0.0", _OLD_NUMPY))
OV_2025 = Release("openvino", "2025.2.0", ("openvino==2025.2.0",))
OV_2026 = Release("openvino", "2026.1.0", ("openvino==2026.1.0",))
TVM_0_25 = Release("tvm", "0.25.0", ("apache-tvm==0.25.0", "apache-tvm-ffi==0.1.12", "onnx"))

_INT, _BIG, _BYTE = np.int64, TensorProto.INT64, TensorProto.UINT8
_IDS, _BYTES = 2**45, 256
"""Below which inputs of such types are drawn."""


@dataclass(frozen=True)
class Case:
    """One report."""

    name: str
    report: str
    """Project and number."""
    what: str
    """What is computed wrongly."""
    release: Release
    guilty: tuple[str, ...]
    """Operators of which any may be named: where several are compiled to one, none is wrong by itself."""
    model: Callable[[], onnx.ModelProto]
    largest: int = 0
    """Integers of the inputs are drawn below it; 0 where no input is of integers."""


def _padded_average(net: Net, value: str) -> str:
    padded = net("Pad", value, net.constant([0, 0, 1, 1, 0, 0, 1, 1], _INT))
    return net("AveragePool", padded, kernel_shape=[3, 3])


def _transposed_by_nothing(net: Net, value: str) -> str:
    product = net("MatMul", net("Transpose", value, perm=[0, 1]), net.weight(16, 16))
    return net("Add", product, net.weight(16))


def _truth_of_integers(net: Net, value: str) -> str:
    whole = net("Cast", net("Mul", value, net.constant(1.7)), to=TensorProto.INT32)
    return net("Cast", net("Cast", whole, to=TensorProto.BOOL), to=TensorProto.FLOAT)


def _negative_scale(net: Net, value: str) -> str:
    step, zero = net.constant(-0.05), net.constant(0, np.int8)
    quantised = net("DequantizeLinear", net("QuantizeLinear", value, step, zero), step, zero)
    pooled = net("MaxPool", quantised, kernel_shape=[2, 2], strides=[2, 2])
    return net("DequantizeLinear", net("QuantizeLinear", pooled, step, zero), step, zero)


def _folded_weights(net: Net, value: str) -> str:
    weights = net.constant(np.arange(256) * 37 % 256 - 128, np.int8)
    numbers = net("DequantizeLinear", weights, net.constant(0.01))
    return net("MatMul", value, net("Reshape", numbers, net.constant([16, 16], _INT)))


def _last_windows(net: Net, value: str) -> str:
    return net(
        "AveragePool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1, count_include_pad=1
    )


def _padded_at_the_end(net: Net, value: str) -> str:
    return net("AveragePool", value, kernel_shape=[5, 1], auto_pad="SAME_LOWER", count_include_pad=1)


def _window_in_padding(operator: str, net: Net, value: str) -> str:
    return net(operator, value, kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4, ceil_mode=1)


def _sum_of_products(net: Net, value: str) -> str:
    products = net("Mul", net("Unsqueeze", value, net.constant([2], _INT)), net.weight(64, 4))
    return net("Add", net("ReduceSum", products, net.constant([-1], _INT), keepdims=0), net.weight(64))


def _mean_of_axes(net: Net, value: str) -> str:
    return net("ReduceMean", value, net.constant([2, 3], _INT))


def _upsampled(net: Net, value: str) -> str:
    return net("ConvTranspose", value, net.weight(4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])


def _of_large_numbers(net: Net, value: str) -> str:
    return net("ReduceLogSumExp", net("Mul", value, net.constant(120.0)), axes=[1], keepdims=1)


def _through_large_integers(net: Net, value: str) -> str:
    large = net("Cast", net("Mul", value, net.constant(1e12)), to=TensorProto.INT64)
    return net("Cast", large, to=TensorProto.FLOAT)


def _elements_from_the_end(net: Net, value: str) -> str:
    return net("GatherElements", value, net.constant([[-1, -3, 2, -5]] * 8, _INT), axis=1)


def _places_from_the_end(net: Net, value: str) -> str:
    return net("GatherND", value, net.constant([[-1, -1], [0, -2], [3, 5]], _INT))


def _class_from_the_end(net: Net, value: str) -> str:
    label = net("Cast", net("Floor", net("Mul", value, net.constant(4.9))), to=TensorProto.INT64)
    return net("OneHot", label, net.constant(5, _INT), net.constant([0, 1]))


def _resized(net: Net, value: str) -> str:
    return net("Resize", value, "", net.constant([1, 1, 1.3, 1.3]), mode="linear")


def _folded_remainder(net: Net, value: str) -> str:
    rest = net("Mod", net.constant(np.arange(16) - 8, _INT), net.constant(3, _INT))
    return net("Mul", value, net("Cast", rest, to=TensorProto.FLOAT))


def _doubled_bytes(net: Net, value: str) -> str:
    return net("Add", value, value)


def _tripled_bytes(net: Net, value: str) -> str:
    return net("Mul", value, net.constant(3, np.uint8))


def _less_than_nothing(net: Net, value: str) -> str:
    return net("Sub", net.constant(7, np.uint8), value)


def _images(pattern: Callable[[Net, str], str], size: int = 12, opset: int = 17) -> Callable[[], onnx.ModelProto]:
    return partial(of_images, pattern, 2, 4, size, size, opset=opset)


def _rows(
    pattern: Callable[[Net, str], str], samples: int = 8, width: int = 16, opset: int = 17
) -> Callable[[], onnx.ModelProto]:
    return partial(of_rows, pattern, samples, width, opset=opset)


def _integers(pattern: Callable[[Net, str], str], kind: int) -> Callable[[], onnx.ModelProto]:
    return partial(of_integers, pattern, 8, 16, kind=kind, largest=_BYTES if kind == _BYTE else _IDS)


CASES: tuple[Case, ...] = (
    Case(
        "pad-average",
        "onnxruntime#22177",
        "Pad is fused into an AveragePool that does not count it",
        ORT_1_20,
        ("Pad", "AveragePool"),
        _images(_padded_average),
    ),
    Case(
        "identity-transpose",
        "onnxruntime#32228",
        "A Transpose that keeps the order becomes a transposed factor of Gemm",
        ORT_1_27,
        ("Transpose", "MatMul", "Add"),
        _rows(_transposed_by_nothing, samples=16),
    ),
    Case(
        "cast-cast",
        "onnxruntime#11994",
        "A Cast to integers between two others is left out",
        ORT_1_18,
        ("Cast",),
        _rows(_truth_of_integers),
    ),
    Case(
        "negative-scale",
        "onnxruntime#21176",
        "MaxPool of quantised numbers ignores that their scale is negative",
        ORT_1_18,
        ("QuantizeLinear", "DequantizeLinear", "MaxPool"),
        _images(_negative_scale, opset=19),
    ),
    Case(
        "folded-int8",
        "onnxruntime#28491",
        "Constants in int8 that are negative become 0 when DequantizeLinear is folded",
        ORT_1_24,
        ("DequantizeLinear", "Reshape", "MatMul"),
        _rows(_folded_weights, opset=19),
    ),
    Case(
        "last-windows",
        "onnxruntime#29629",
        "AveragePool divides windows that end beyond the padding by their whole size",
        ORT_1_27,
        ("AveragePool",),
        _images(_last_windows),
    ),
    Case(
        "padding-at-end",
        "onnxruntime#24681",
        "AveragePool of opset 19 leaves out the padding at the end",
        ORT_1_24,
        ("AveragePool",),
        _images(_padded_at_the_end, opset=19),
    ),
    Case(
        "average-in-padding",
        "onnxruntime#16351",
        "AveragePool has windows that lie in padding alone",
        ORT_1_20,
        ("AveragePool",),
        _images(partial(_window_in_padding, "AveragePool"), size=17),
    ),
    Case(
        "largest-in-padding",
        "onnx#5236",
        "MaxPool has windows that lie in padding alone",
        ORT_1_18,
        ("MaxPool",),
        _images(partial(_window_in_padding, "MaxPool"), size=17),
    ),
    Case(
        "sum-of-products",
        "openvino#23616",
        "Mul, ReduceSum and Add become one matrix product with a wrong bias",
        OV_2024,
        ("Unsqueeze", "Mul", "ReduceSum", "Add"),
        _rows(_sum_of_products, width=64),
    ),
    Case(
        "mean-of-axes",
        "openvino#25169",
        "ReduceMean of opset 18 takes the mean over all axes",
        OV_2024,
        ("ReduceMean",),
        _images(_mean_of_axes, opset=18),
    ),
    Case(
        "softsign",
        "openvino#31252",
        "Softsign behind a Relu is computed wrongly",
        OV_2025,
        ("Relu", "Softsign"),
        _images(lambda net, value: net("Softsign", value)),
    ),
    Case(
        "upsampled",
        "openvino#31007",
        "ConvTranspose pads by itself to a shape that is too large",
        OV_2025,
        ("ConvTranspose",),
        _images(_upsampled),
    ),
    Case(
        "dilated-average",
        "openvino#30842",
        "AveragePool ignores dilations",
        OV_2025,
        ("AveragePool",),
        _images(
            lambda net, value: net("AveragePool", value, kernel_shape=[2, 2], dilations=[2, 2]),
            opset=19,
        ),
    ),
    Case(
        "norm-of-axes",
        "openvino#38238",
        "ReduceL1 before opset 18 is taken over all axes",
        OV_2026,
        ("ReduceL1",),
        _rows(lambda net, value: net("ReduceL1", value, axes=[1]), opset=13),
    ),
    Case(
        "log-sum-exp",
        "openvino#35648",
        "ReduceLogSumExp overflows",
        OV_2026,
        ("ReduceLogSumExp",),
        _rows(_of_large_numbers),
    ),
    Case(
        "large-cast",
        "openvino#35896",
        "Cast to int64 ends where int32 does",
        OV_2026,
        ("Cast",),
        _rows(_through_large_integers),
    ),
    Case(
        "average-shape",
        "openvino#33369",
        "AveragePool has windows that lie in padding alone",
        OV_2026,
        ("AveragePool",),
        _images(partial(_window_in_padding, "AveragePool"), size=17),
    ),
    Case(
        "sum-of-bytes",
        "openvino#35647",
        "Add of uint8 ends at 255",
        OV_2026,
        ("Add",),
        _integers(_doubled_bytes, _BYTE),
        _BYTES,
    ),
    Case(
        "product-of-bytes",
        "openvino#35646",
        "Mul of uint8 ends at 255",
        OV_2026,
        ("Mul",),
        _integers(_tripled_bytes, _BYTE),
        _BYTES,
    ),
    Case(
        "difference-of-bytes",
        "openvino#33518",
        "Sub of uint8 ends at 0",
        OV_2026,
        ("Sub",),
        _integers(_less_than_nothing, _BYTE),
        _BYTES,
    ),
    Case(
        "size-of-ids",
        "openvino#35890",
        "Abs of int64 keeps 32 bits",
        OV_2026,
        ("Abs",),
        _integers(lambda net, value: net("Abs", value), _BIG),
        _IDS,
    ),
    Case(
        "sums-of-ids",
        "openvino#35837",
        "CumSum of int64 keeps 32 bits",
        OV_2026,
        ("CumSum",),
        _integers(lambda net, value: net("CumSum", value, net.constant(1, _INT)), _BIG),
        _IDS,
    ),
    Case(
        "quotient-of-ids",
        "openvino#37766",
        "Div of int64 keeps 32 bits",
        OV_2026,
        ("Div",),
        _integers(lambda net, value: net("Div", value, net.constant(11, _INT)), _BIG),
        _IDS,
    ),
    Case(
        "clipped-ids",
        "openvino#37957",
        "Clip of int64 keeps 32 bits",
        OV_2026,
        ("Clip",),
        _integers(
            lambda net, value: net("Clip", value, net.constant(-100, _INT), net.constant(2**40, _INT)),
            _BIG,
        ),
        _IDS,
    ),
    Case(
        "elements-from-end",
        "tvm#20217",
        "GatherElements does not count negative indices from the end",
        TVM_0_25,
        ("GatherElements",),
        _rows(_elements_from_the_end),
    ),
    Case(
        "places-from-end",
        "tvm#20217",
        "GatherND does not count negative indices from the end",
        TVM_0_25,
        ("GatherND",),
        _rows(_places_from_the_end),
    ),
    Case(
        "class-from-end",
        "tvm#20217",
        "OneHot does not count negative indices from the end",
        TVM_0_25,
        ("OneHot",),
        _rows(_class_from_the_end),
    ),
    Case(
        "resized",
        "tvm#19570",
        "Resize takes the ratio of sizes for the scale",
        TVM_0_25,
        ("Resize",),
        _images(_resized),
    ),
    Case(
        "folded-remainder",
        "tvm#20170",
        "Mod of constants has the sign of the dividend",
        TVM_0_25,
        ("Mod", "Cast", "Mul"),
        _rows(_folded_remainder),
    ),
)
