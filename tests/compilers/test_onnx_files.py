"""Old and odd ONNX files: every compiler that starts from one runs it, and gives what the baseline gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.export import prepare
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.registry import create

QUICK = ["identity", "torchscript", "onnxruntime", "openvino", "tvm"]
BATCHES = (1, 3)


def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, content: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(content), name)


def saved(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any], **versions: int
) -> Path:
    content = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opset = helper.make_opsetid("", versions.get("opset", 18))
    onnx.save(helper.make_model(content, opset_imports=[opset], ir_version=versions.get("ir", 9)), str(path))
    return path


def prepared(path: Path, directory: Path, batches: Sequence[int] = BATCHES, **options: Any) -> Source:
    workload = create(WorkloadRef("onnx", str(path), options), Init())
    prepare(workload, directory, batch_sizes=batches, formats=["module", "onnx"], seed=0)
    return Source(directory)


def assert_runs(source: Source, compiler: str, directory: Path, batches: Sequence[int] = BATCHES) -> None:
    kind = COMPILERS.get(compiler)
    adapter, target = kind(kind.flags_type()), Target(threads=1)
    for group in adapter.engines(batches):
        engines = directory / f"{compiler}-{group[0]}"
        engines.mkdir()
        adapter.compile(source, group, target, engines, Workbench(directory / "work"))
        for batch in group:
            engine = adapter.load(engines, batch, target)
            bound = engine.bind(source.example(batch))
            bound.call()
            for output, expected in zip(bound.outputs(), source.reference(batch), strict=True):
                assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
                np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
            engine.close()


@pytest.fixture(scope="module")
def of_version_3(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """As exporters of 2017 wrote them: every initializer is an input. Two are equal: ONNX Runtime keeps one of such."""
    directory = tmp_path_factory.mktemp("old")
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    sizes = {name: np.array([4], np.int64) for name in ("bias_shape", "shift_shape")}
    constants = [constant("weight", weight), *(constant(name, size) for name, size in sizes.items())]
    half = constant("", np.array([0.5], np.float32))
    path = saved(
        directory / "old.onnx",
        [
            helper.make_node("ConstantOfShape", ["bias_shape"], ["bias"], value=half),
            helper.make_node("ConstantOfShape", ["shift_shape"], ["shift"], value=half),
            helper.make_node("Gemm", ["image", "weight", "bias"], ["scores"], transB=1),
            helper.make_node("Mul", ["scores", "shift"], ["result"]),
        ],
        [
            value("weight", [4, 3]),
            value("image", ["N", 3]),
            *(value(name, [1], TensorProto.INT64) for name in sizes),
        ],
        [value("result", ["N", 4])],
        constants,
        ir=3,
        opset=9,
    )
    return prepared(path, directory / "materials")


@pytest.mark.parametrize("compiler", QUICK)
def test_initializers_among_the_inputs(of_version_3: Source, compiler: str, tmp_path: Path) -> None:
    assert [spec.name for spec in of_version_3.inputs] == ["image"]
    assert_runs(of_version_3, compiler, tmp_path)
