"""Single nodes in all their variants: the converter computes what the standard says, or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph_onnx.converter import OnnxModule
from mlflow_ngraph_onnx.values import OPERATORS
from tests.workloads.onnx_sweep import Array, Single, normal, sweeps

SHARE = 13
"""The quick test takes every so-manieth case of an operator."""


def left_open(case: Single) -> bool:
    """Whether the standard does not say what comes out, so that its implementations differ."""
    if case.operator == "Pow":  # a power of whole numbers that is none
        return any(array is not None and array.dtype.kind == "i" and (array < 0).any() for array in case.arrays[1:])
    if case.operator == "Dropout":  # what is in the mask that nothing was dropped with, when it was no truth value
        return case.opset < 10
    if "SAME" in str(case.attributes.get("auto_pad")) and case.operator in ("MaxPool", "AveragePool"):
        # Strides wider than the window make the formula's padding negative: ONNX Runtime refuses that, the reference
        # evaluator reads elsewhere, OpenVINO pads nothing, as here.
        widths, strides = case.attributes["kernel_shape"], case.attributes.get("strides", [1, 1])
        return any(stride > width for width, stride in zip(widths, strides, strict=True))
    return False


def ours(case: Single, model: onnx.ModelProto) -> list[torch.Tensor] | None:
    """What the converter makes of a case, or None where it refuses it or torch does, which preparing tells the user."""
    try:
        module = OnnxModule(model).eval()
    except UnsupportedError:
        return None
    try:
        with torch.inference_mode():
            result = module(*(torch.tensor(case.feeds[value.name]) for value in model.graph.input))
    except Exception:  # noqa: BLE001 - whatever torch says
        return None
    return list(result) if isinstance(result, tuple) else [result]


def engines(case: Single, model: onnx.ModelProto) -> list[list[Array]]:
    """What the reference evaluator and ONNX Runtime make of it, as far as they can."""
    found = []
    for run in (
        lambda: ReferenceEvaluator(model).run(None, case.feeds),
        lambda: onnxruntime.InferenceSession(model.SerializeToString()).run(None, case.feeds),
    ):
        try:
            found.append([np.asarray(value) for value in run()])
        except Exception:  # noqa: BLE001 - either lacks something
            continue
    return found


def same(outputs: Sequence[torch.Tensor], expected: Sequence[Array]) -> bool:
    """Whether outputs have the same types, shapes and numbers."""
    if len(outputs) != len(expected):
        return False
    for output, wanted in zip(outputs, expected, strict=True):
        if str(output.dtype).removeprefix("torch.") != wanted.dtype.name or output.shape != wanted.shape:
            return False
        tolerance = {"float32": 2e-5, "float64": 1e-9}.get(wanted.dtype.name, 2e-3) if output.is_floating_point() else 0
        found = output.double() if output.is_floating_point() else output
        wide = wanted.astype(np.float64) if output.is_floating_point() else wanted
        if not np.allclose(found.numpy(), wide, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True


def wrong(share: int) -> tuple[list[str], int]:
    """The cases whose outputs are those of neither engine, and how many were compared."""
    onnxruntime.set_default_logger_severity(4)
    found, compared = [], 0
    for sweep in sweeps():
        for case in list(sweep)[::share]:
            try:
                model = case.model()
            except onnx.shape_inference.InferenceError:
                continue  # the standard has no such node
            outputs = None if left_open(case) else ours(case, model)
            expected = engines(case, model) if outputs is not None else []
            compared += bool(expected)
            if outputs is not None and expected and not any(same(outputs, values) for values in expected):
                found.append(str(case))
    return found, compared


@pytest.mark.usefixtures("compilers")
@pytest.mark.filterwarnings("ignore")
def test_variants_of_operators_conform_or_are_refused() -> None:
    found, compared = wrong(SHARE)
    assert not found
    assert compared > 500


@pytest.mark.slow
@pytest.mark.usefixtures("compilers")
@pytest.mark.filterwarnings("ignore")
def test_all_variants_of_operators_conform_or_are_refused() -> None:
    found, compared = wrong(1)
    assert not found
    assert compared > 7000


def test_operators_know_attributes_of_the_standard_only() -> None:
    standard = {name for schema in onnx.defs.get_all_schemas_with_history() for name in schema.attributes}
    assert {name for operator in OPERATORS.values() for name in operator.attributes} <= standard


def converted(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Array], outputs: Sequence[str], opset: int) -> Any:
    """What a graph of some nodes gives; its inputs are a, b and so on."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in zip("abc", inputs, strict=False)
    ]
    wanted = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph(list(nodes), "graph", values, wanted)
    module = OnnxModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])).eval()
    return module(*(torch.tensor(array) for array in inputs))


BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Greater": np.greater}


@pytest.mark.parametrize("name", BINARY)
def test_operands_were_aligned_by_an_attribute_once(name: str) -> None:
    first, second = normal(2, 3, 3, 3), normal(3)
    node = helper.make_node(name, ["a", "b"], ["y"], axis=1, broadcast=1)
    wanted = BINARY[name](first, second[:, None, None])
    np.testing.assert_allclose(converted([node], [first, second], ["y"], 6), wanted, rtol=1e-6)


def test_slopes_were_of_channels_once() -> None:
    values, slopes = normal(2, 3, 3), normal(3)
    found = converted([helper.make_node("PRelu", ["a", "b"], ["y"])], [values, slopes], ["y"], 6)
    np.testing.assert_allclose(found, np.where(values < 0, values * slopes[:, None], values), rtol=1e-6)


def test_an_output_that_is_left_out_is_no_input_of_others() -> None:
    """Both are written as an empty name."""
    values, scale = normal(4, 5), np.ones(5, np.float32)
    nodes = [
        helper.make_node("LayerNormalization", ["a", "b"], ["n", "", "d"]),
        helper.make_node("Clip", ["a", "", "high"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["high"], value_float=0.5))
    found, _ = converted(nodes, [values, scale], ["y", "d"], 17)
    np.testing.assert_array_equal(found, np.minimum(values, np.float32(0.5)))


REFUSED: dict[str, tuple[onnx.NodeProto, int]] = {
    "BatchNormalization with more": (helper.make_node("BatchNormalization", list("abbbb"), ["y"], more=1), 15),
    "LayerNormalization with stash_type 11": (
        helper.make_node("LayerNormalization", ["a", "b"], ["y"], stash_type=11),
        17,
    ),
    "Cast to FLOAT8E4M3FN": (helper.make_node("Cast", ["a"], ["y"], to=onnx.TensorProto.FLOAT8E4M3FN), 19),
    "Dropout in training mode": (helper.make_node("Dropout", ["a"], ["y"]), 6),
    "Constant with value_string": (helper.make_node("Constant", [], ["y"], value_string="a"), 19),
    "Relu with 2 outputs": (helper.make_node("Relu", ["a"], ["y", "z"]), 19),
    "GlobalMaxPool of a matrix": (helper.make_node("GlobalMaxPool", ["a"], ["y"]), 19),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_would_be_another_function_is_refused(reason: str) -> None:
    node, opset = REFUSED[reason]
    with pytest.raises(UnsupportedError, match=rf"^PyTorch baseline cannot run {reason} \(opset {opset}\)$"):
        converted([node], [normal(4, 5), normal(5)], ["y"], opset)


def test_a_constant_of_a_type_that_torch_lacks_is_refused() -> None:
    weights = helper.make_tensor("weights", onnx.TensorProto.INT4, [2], [1, -2])
    value = helper.make_tensor_value_info("y", onnx.TensorProto.INT4, [2])
    graph = helper.make_graph([helper.make_node("Identity", ["weights"], ["y"])], "graph", [], [value], [weights])
    with pytest.raises(UnsupportedError, match=r"^PyTorch baseline has no element type int4 \(constant weights\)$"):
        OnnxModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
