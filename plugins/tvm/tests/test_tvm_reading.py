"""TVM reads a model as a study prepares it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from mlflow_ngraph_testing.steps import in_fresh_process
from tests.support.installed import needs

pytestmark = [needs("tvm"), pytest.mark.usefixtures("processes")]


def read(path: Path) -> str:
    from mlflow_ngraph_tvm import lowering

    return str(lowering.read(path, {"x": [1, 3]}))


def test_weights_in_a_file_that_is_a_hard_link_are_read(tmp_path: Path) -> None:
    """The materials of a study link to the user's files; the loader of onnx takes that for an attack."""
    weight = onnx.numpy_helper.from_array(np.full((3, 3), 2.0, np.float32), "w")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3]) for name in ("x", "y")]
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:], [weight]), ir_version=10)
    file = tmp_path / "model.onnx"
    onnx.save(model, file, save_as_external_data=True, location="weights", size_threshold=0)
    os.link(tmp_path / "weights", tmp_path / "another")
    assert "matmul" in in_fresh_process(read, file)
