"""ONNX models in 16 bits, in runtimes that run here."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto

from mlflow_ngraph.parity import TOLERANCES, compare
from mlflow_ngraph.workloads.materials import Source


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bits_keep_the_types_at_the_border(cnn: Source, precision: Any) -> None:
    from mlflow_ngraph.compilers.tensorrt.precision import in_precision

    model = in_precision(onnx.load(str(cnn.onnx())), precision)
    onnx.checker.check_model(model)
    wanted = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[precision]
    weights = [tensor.data_type for tensor in model.graph.initializer if tensor.data_type != TensorProto.INT64]
    assert set(weights) == {wanted}
    border = (*model.graph.input, *model.graph.output)
    assert {value.type.tensor_type.elem_type for value in border} == {TensorProto.FLOAT}
    other = {"fp16": TensorProto.BFLOAT16, "bf16": TensorProto.FLOAT16}[precision]
    assert other not in {attribute.i for node in model.graph.node for attribute in node.attribute}


def test_float16_loads_and_runs_in_another_runtime(cnn: Source) -> None:
    import onnxruntime

    from mlflow_ngraph.compilers.tensorrt.precision import in_precision

    model = in_precision(onnx.load(str(cnn.onnx())), "fp16")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = dict(zip([spec.name for spec in cnn.inputs], cnn.example(3), strict=True))
    parity = compare(session.run(None, inputs), cnn.reference(3))
    assert parity.cosine >= TOLERANCES["fp16"].cosine
    assert parity.max_rel <= TOLERANCES["fp16"].max_rel


def test_weights_are_rounded_to_bfloat16_once() -> None:
    import ml_dtypes

    from mlflow_ngraph.compilers.tensorrt.precision import in_precision

    # Beyond float16's range, below it, and halfway between two values of bfloat16 once float16 has rounded it.
    values = np.array([1e30, -1e30, 1e-20, 1.00390625 + 2**-20], np.float32)
    weight = onnx.numpy_helper.from_array(values, "w")
    constant = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(values))
    nodes = [constant, onnx.helper.make_node("Add", ["x", "w"], ["y"]), onnx.helper.make_node("Mul", ["y", "c"], ["z"])]
    border = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "z")]
    graph = onnx.helper.make_graph(nodes, "g", border[:1], border[1:], [weight])
    model = in_precision(onnx.helper.make_model(graph), "bf16")
    found = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    found += [onnx.numpy_helper.to_array(a.t) for node in model.graph.node for a in node.attribute if a.HasField("t")]
    exact = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert len(found) == 2
    for array in found:
        np.testing.assert_array_equal(np.asarray(array).astype(np.float32), exact)


def test_branches_are_converted_too() -> None:
    from mlflow_ngraph.compilers.tensorrt.precision import in_precision

    helper = onnx.helper
    constant = onnx.numpy_helper.from_array(np.full(4, 1 + 2**-9, np.float32))
    branches = {}
    for name, operator in (("then_branch", "Add"), ("else_branch", "Mul")):
        nodes = [
            helper.make_node("Constant", [], [f"{name}_c"], value=constant),
            helper.make_node(operator, ["x", f"{name}_c"], [f"{name}_y"]),
        ]
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])
        branches[name] = helper.make_graph(nodes, name, [], [output])
    border = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "z")]
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    graph = helper.make_graph(
        [helper.make_node("If", ["condition"], ["z"], **branches)], "g", [condition, border[0]], border[1:]
    )
    model = in_precision(helper.make_model(graph), "bf16")
    inner = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")]
    kinds = {a.t.data_type for graph in inner for node in graph.node for a in node.attribute if a.HasField("t")}
    assert kinds == {TensorProto.BFLOAT16}
    x = np.ones(4, np.float32)
    for chosen, expected in ((True, 2.0), (False, 1.0)):
        inputs = {"condition": np.array(chosen), "x": x}
        (found,) = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
        np.testing.assert_array_equal(np.asarray(found), np.full(4, expected, np.float32))
