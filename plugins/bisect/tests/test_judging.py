"""When an output of a part counts as wrong: by the rule that a study judges engines by."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mlflow_ngraph_bisect.judging import judge
from mlflow_ngraph_bisect.onnx_program import OnnxProgram

INPUTS = np.array([[1.0, -2.0, 4.0], [8.0, 0.5, -0.25]], np.float32)


class _One:
    """A program of one node, and its output by whoever computes it."""

    def __init__(self, operator: str, inputs: NDArray[Any] = INPUTS, **attributes: Any) -> None:
        node = helper.make_node(operator, ["x"], ["y"], **attributes)
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, inputs.shape) for name in "x"]
        graph = helper.make_graph([node], "one", values, [onnx.ValueInfoProto(name="y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        self.program = OnnxProgram(onnx.shape_inference.infer_shapes(model), {"x": inputs})
        self.part = self.program.part([0], ["y"])
        (self.exact,), (self.rounded,) = self.program.exact(self.part), self.program.rounded(self.part)

    def problem(self, engine: NDArray[Any], precision: str = "fp32") -> str:
        """Why an output is wrong; empty where it is right."""
        return judge(self.program, self.part, [self.exact], [engine], precision).get("y", "")


def test_rounding_is_not_wrong_and_what_is_beyond_is() -> None:
    one = _One("Tanh")
    assert one.problem(one.rounded) == ""
    assert one.problem(one.rounded * np.float32(1 + 1e-6)) == ""
    assert "times what rounding does to the model itself" in one.problem(one.rounded * np.float32(1 + 1e-5))


def test_coarser_precisions_may_be_further_off() -> None:
    one = _One("Neg")
    found = one.rounded * np.float32(1.01)
    assert one.problem(found)
    assert one.problem(found, "bf16") == ""


def test_a_difference_of_nearly_equal_numbers_may_be_as_far_off_as_their_roundings() -> None:
    one = _One("ReduceSum", np.array([[1000.5, -1000.4]], np.float32))
    assert one.problem(one.rounded * np.float32(1.001)) == ""
    assert one.problem(one.rounded * np.float32(1.1))


def test_integers_have_to_be_equal() -> None:
    one = _One("Cast", to=TensorProto.INT64)
    assert one.problem(one.rounded) == ""
    assert one.problem(one.rounded + (np.arange(6).reshape(2, 3) == 0)) == "16.7 % of the integer outputs differ"


@pytest.mark.parametrize("none", [np.nan, np.inf])
def test_no_number_where_there_is_one_is_wrong(none: float) -> None:
    one = _One("Neg")
    assert one.problem(np.where(INPUTS == 8.0, np.float32(none), one.rounded))


def test_what_the_model_itself_has_no_number_for_is_not_asked_of_an_engine() -> None:
    one = _One("Sqrt")
    assert np.isnan(one.rounded).any()
    assert one.problem(np.full_like(one.rounded, 7.0)) == ""


def test_another_shape_or_type_is_wrong() -> None:
    one = _One("Neg")
    assert "has shape" in one.problem(np.zeros((3, 2), np.float32))
    assert "float64" in one.problem(one.exact)
