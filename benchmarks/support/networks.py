"""Small ONNX networks of ordinary layers around a few nodes that are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_IR_VERSION = 8
"""That of the oldest release that reads the networks."""


class Net:
    """Nodes that are added one after the other. Values are known by their names.

    Parameters
    ----------
    opset : int
        Version of the operators.
    """

    def __init__(self, opset: int = 17) -> None:
        self._opset = opset
        self._rng = np.random.default_rng(0)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []

    def input(self, *shape: int, kind: int = TensorProto.FLOAT) -> str:
        """An input of the network."""
        name = f"in_{len(self._inputs)}"
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, content: Any, dtype: Any = np.float32) -> str:
        """A constant that is told."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """A constant that is drawn, of a size that keeps values as large as they are."""
        inner = float(np.prod(shape[1:])) if len(shape) > 2 else float(shape[0])  # of a convolution
        return self.constant(self._rng.standard_normal(shape) / np.sqrt(inner))

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The first output of a node."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def convolved(self, value: str, channels: int, blocks: int) -> str:
        """Residual blocks of three nodes each."""
        for _ in range(blocks):
            inner = self("Conv", value, self.weight(channels, channels, 3, 3), pads=[1, 1, 1, 1])
            value = self("Relu", self("Add", inner, value))
        return value

    def dense(self, value: str, width: int, blocks: int) -> str:
        """Layers of three nodes each."""
        for _ in range(blocks):
            inner = self("MatMul", value, self.weight(width, width))
            value = self("Tanh", self("Add", inner, self.weight(width)))
        return value

    def scaled(self, value: str, blocks: int) -> str:
        """Three nodes each for each number by itself, whatever the shape is."""
        for _ in range(blocks):
            inner = self("Add", self("Mul", value, self.constant(0.75)), self.constant(0.25))
            value = self("LeakyRelu", inner, alpha=0.5)
        return value

    def model(self, output: str) -> onnx.ModelProto:
        """The network with this value as its output."""
        graph = helper.make_graph(
            self._nodes, "network", self._inputs, [onnx.ValueInfoProto(name=output)], self._constants
        )
        opsets = [helper.make_opsetid("", self._opset)]
        model = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), strict_mode=True, data_prop=True
        )
        del model.graph.value_info[:]
        onnx.checker.check_model(model)
        return model


Pattern = Callable[[Net, str], str]
"""Adds the nodes that are looked at behind a value, and gives the value that comes out."""
Samples = Mapping[str, NDArray[Any]]


def of_images(pattern: Pattern, *shape: int, opset: int = 17) -> onnx.ModelProto:
    """The pattern behind nine nodes of convolutions and before six nodes, on images of a shape."""
    net = Net(opset)
    value = net.convolved(net.input(*shape), shape[1], 3)
    return net.model(net.scaled(pattern(net, value), 2))


def of_rows(pattern: Pattern, *shape: int, opset: int = 17) -> onnx.ModelProto:
    """The pattern behind nine nodes of dense layers and before six nodes, on rows of features."""
    net = Net(opset)
    value = net.dense(net.input(*shape), shape[-1], 3)
    return net.model(net.scaled(pattern(net, value), 2))


def of_integers(pattern: Pattern, *shape: int, kind: int, largest: int, opset: int = 17) -> onnx.ModelProto:
    """The pattern on integers that are an input, and what it gives beside dense layers on rows of features.

    Parameters
    ----------
    largest : int
        What they are divided by, so that they count as much as the features.
    """
    net = Net(opset)
    beside = net.dense(net.input(*shape), shape[-1], 3)
    found = net("Cast", pattern(net, net.input(*shape, kind=kind)), to=TensorProto.FLOAT)
    share = net("Div", found, net.constant(largest))
    return net.model(net.scaled(net("Add", share, beside), 2))
