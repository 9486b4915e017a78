"""Shape arithmetic is computed beforehand, and the model computes what it did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from mlflow_ngraph_tvm.folding import fold_shapes  # noqa: E402

BATCH = 3


def model(nodes: list[Any], *constants: Any, opset: int = 18) -> Any:
    """A model from ``x`` of a free batch size by 4 to ``y``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])
    graph = helper.make_graph(nodes, "g", [x], [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def constant(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.array(value, dtype=np.int64), name)


def with_shape_arithmetic() -> Any:
    """Picks every row by an index that is computed from the batch size, as exports of strided views do."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"], start=0, end=1),
        node("Squeeze", ["shape"], ["batch"]),
        node("Range", ["zero", "batch", "one"], ["rows"]),
        node("Mul", ["rows", "one"], ["index"]),
        node("Gather", ["x", "index"], ["picked"], axis=0),
        node("Concat", ["shape", "minus"], ["wanted"], axis=0),
        node("Reshape", ["picked", "wanted"], ["flat"]),
        node("Mul", ["flat", "weights"], ["y"]),
    ]
    weights = numpy_helper.from_array(np.arange(4, dtype=np.float32), "weights")
    return model(nodes, constant("zero", 0), constant("one", 1), constant("minus", [-1]), weights)


def test_what_follows_from_the_batch_size_is_constant() -> None:
    x = np.random.default_rng(0).normal(size=(BATCH, 4)).astype(np.float32)
    (before,) = ReferenceEvaluator(with_shape_arithmetic()).run(None, {"x": x})
    folded = fold_shapes(with_shape_arithmetic(), {"x": (BATCH, 4)})
    onnx.checker.check_model(folded)
    assert [node.op_type for node in folded.graph.node] == ["Gather", "Reshape", "Mul"]
    (after,) = ReferenceEvaluator(folded).run(None, {"x": x})
    np.testing.assert_array_equal(after, before)


def test_a_model_without_shape_arithmetic_is_left_alone() -> None:
    plain = model([helper.make_node("Relu", ["x"], ["y"])])
    assert fold_shapes(plain, {"x": (BATCH, 4)}) is plain
    assert plain.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_random_and_unknown_operators_are_not_computed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("RandomUniformLike", ["shape"], ["random"], dtype=TensorProto.FLOAT),
        helper.make_node("Frobnicate", ["shape"], ["unknown"]),
        helper.make_node("Sum", ["random", "unknown"], ["y"]),
    ]
    folded = fold_shapes(model(nodes), {"x": (BATCH, 4)})
    assert [node.op_type for node in folded.graph.node] == ["RandomUniformLike", "Frobnicate", "Sum"]
    (shape,) = folded.graph.initializer
    assert numpy_helper.to_array(shape).tolist() == [BATCH, 4]
