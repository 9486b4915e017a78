"""Products of 8-bit integers on processors without VNNI, where fast kernels saturate: the verdict says so, and how to avoid it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph.compilers import host
from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph_testing.steps import within
from tests.support.onnx_models import OnnxSource, residual_block
from tests.support.zoo.quick import Verdicts, verdicts

WITHOUT, WITH = "x86_64 avx avx2 fma", "x86_64 avx2 avx512f avx512_vnni"
CASES = [("onnxruntime", {}), ("onnxruntime", {"precise_int8": True}), ("openvino", {})]


def quantised(path: Path, largest: int) -> OnnxSource:
    """A matrix of weights from minus ``largest`` to ``largest``, between roundings to 8 bits."""
    weights = np.random.default_rng(0).choice([-largest, largest], (64, 32)).astype(np.int8)
    constants = {
        "w": weights,
        "w scale": np.float32(0.01),
        "w zero": np.int8(0),
        "x scale": np.float32(0.02),
        "x zero": np.uint8(128),
        "y scale": np.float32(0.1),
        "y zero": np.uint8(128),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x scale", "x zero"], ["x8"]),
        helper.make_node("DequantizeLinear", ["x8", "x scale", "x zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w scale", "w zero"], ["wf"]),
        helper.make_node("MatMul", ["xf", "wf"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "y scale", "y zero"], ["y8"]),
        helper.make_node("DequantizeLinear", ["y8", "y scale", "y zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return OnnxSource(path, (), ())


def _said(directory: Path) -> Verdicts:
    for name, largest in (("whole", 127), ("narrow", 63)):
        quantised(directory / f"{name}.onnx", largest)
    files = {name: {"scheme": "onnx", "target": str(directory / f"{name}.onnx")} for name in ("whole", "narrow")}
    return verdicts(files, CASES, [2], directory)


@pytest.mark.usefixtures("compilers")
def test_what_saturates_is_refused_with_the_cure_and_the_cures_are_right(tmp_path: Path) -> None:
    said = within(600.0, _said, tmp_path)
    assert {said["narrow", place, 2] for place in range(len(CASES))} == {("ok", "")}, "seven bits never saturate"
    assert said["whole", 1, 2] == ("ok", ""), "precise_int8"
    for place in (0, 2):
        verdict, reason = said["whole", place, 2]
        if verdict == "ok":
            continue
        assert verdict == "parity_failed"
        assert host.saturates_8_bit(), "nothing saturates with VNNI"
        assert "reduce_range" in reason
        assert ("precise_int8" in reason) == (place == 0)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_cause_is_known_of_quantised_models_on_such_processors_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = quantised(tmp_path / "q.onnx", 127), residual_block(tmp_path)
    for machine, known in ((WITHOUT, True), (WITH, False), ("aarch64 asimd", False)):
        monkeypatch.setattr(host, "isa", lambda machine=machine: machine)
        compiler = create(name, {})
        assert bool(compiler.known_cause(source, 1, Target())) is known  # type: ignore[arg-type] # as much of a source as is read
        assert not compiler.known_cause(other, 1, Target())  # type: ignore[arg-type]


def test_what_is_precise_has_no_such_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "isa", lambda: WITHOUT)
    compiler = create("onnxruntime", {"precise_int8": True})
    assert not compiler.known_cause(quantised(tmp_path / "q.onnx", 127), 1, Target())  # type: ignore[arg-type]
