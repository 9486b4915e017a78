"""Models that a compiler cannot express: an ONNX operator that nobody has, and a file that is no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadRef
from mlflow_ngraph_testing.steps import in_fresh_process

pytestmark = pytest.mark.long

SPEC = TensorSpec("x", "float32", ("batch", 4))
OUTPUT = TensorSpec("y", "float32", ("batch", 4))


@dataclass(frozen=True)
class OnnxSource:
    """As much of a source as compilers read before they fail."""

    path: Path
    inputs: tuple[TensorSpec, ...] = (SPEC,)
    outputs: tuple[TensorSpec, ...] = (OUTPUT,)

    def dynamic(self, _format: str) -> bool:
        return True

    def onnx(self, batch: int | None = None) -> Path:
        return self.path


def write_model(path: Path, domain: str) -> None:
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node("Frobnicate", ["x"], ["y"], domain=domain, name="n0")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))


def compile_file(compiler: str, model: Path, directory: Path) -> None:
    create(compiler).compile(OnnxSource(model), [2], Target(threads=1), directory, Workbench(directory))  # type: ignore[arg-type]


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("domain", ["", "com.acme"])
@pytest.mark.parametrize("compiler", ["onnxruntime", "openvino", "tvm"])
def test_a_missing_operator_is_named(compiler: str, domain: str, tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", domain)
    with pytest.raises(UnsupportedError, match="Frobnicate") as caught:
        in_fresh_process(compile_file, compiler, tmp_path / "model.onnx", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("compiler", ["onnxruntime", "openvino", "tvm"])
def test_a_file_that_is_no_model_fails_in_one_line(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x00not a model" * 50)
    with pytest.raises(CompileError) as caught:
        in_fresh_process(compile_file, compiler, tmp_path / "model.onnx", tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def write_mismatch(path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("Einsum", ["x", "w"], ["y"], name="contract", equation="bi,ij->bj")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    weight = numpy_helper.from_array(np.zeros((3, 4), np.float32), "w")
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (
            "openvino",
            r"^openvino: Einsum .*f32\[\?,4\].*f32\[3,4\].*: Different input dimensions .* must be broadcastable\.$",
        ),
        ("tvm", r"^tvm: Einsum: Cannot broadcast extents 4 and 3$"),
    ],
)
def test_the_reason_is_the_cause_with_the_operator(compiler: str, reason: str, tmp_path: Path) -> None:
    write_mismatch(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match=reason):
        in_fresh_process(compile_file, compiler, tmp_path / "model.onnx", tmp_path)


def _write(path: Path, nodes: list[Any], constants: list[Any], opset: int) -> None:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), str(path))


def write_attention(path: Path) -> None:
    """An operator that TVM's importer takes for another of the same name."""
    import numpy as np
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["q"]),
        helper.make_node("Attention", ["q", "q", "q"], ["a"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Squeeze", ["a", "axes"], ["y"]),
    ]
    _write(path, nodes, [numpy_helper.from_array(np.array([1]), "axes")], 23)


def write_nibbles(path: Path) -> None:
    """Weights of four bits."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = helper.make_tensor("weights", TensorProto.INT4, [4, 4], list(range(-8, 8)))
    _write(path, nodes, [weights, numpy_helper.from_array(np.float32(0.5), "scale")], 21)


def write_truths(path: Path) -> None:
    """Truth values that are compared, for which TVM generates code that LLVM refuses."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
        helper.make_node("IsNaN", ["x"], ["n"]),
        helper.make_node("Equal", ["b", "n"], ["e"]),
        helper.make_node("Cast", ["e"], ["y"], to=TensorProto.FLOAT),
    ]
    _write(path, nodes, [], 18)


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (write_attention, r"^tvm: Attention: KeyError: 'num_heads'$"),
        (write_nibbles, r"^tvm: DequantizeLinear: .*size mismatch$"),
        (write_truths, r"^tvm: equal: LLVM module verification failed .*$"),
    ],
)
def test_what_tvm_cannot_compile_is_its_limit(write: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    write(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match=reason):
        in_fresh_process(compile_file, "tvm", tmp_path / "model.onnx", tmp_path)


def write_bfloat16(path: Path) -> None:
    """What mixed precision makes of a linear layer."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    _write(path, nodes, [], 18)


@pytest.mark.usefixtures("compilers")
def test_the_type_that_an_operator_is_missing_for_is_named(tmp_path: Path) -> None:
    write_bfloat16(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match=r"^onnxruntime has no operator (Relu|Max) for bfloat16$"):
        in_fresh_process(compile_file, "onnxruntime", tmp_path / "model.onnx", tmp_path)


def trace(folder: Path) -> None:
    from mlflow_ngraph.workloads import registry
    from mlflow_ngraph.workloads.materials import Source
    from mlflow_ngraph.workloads.preparing import prepare

    ref = WorkloadRef("torch", "tests.workloads.behaving:Slopes", {"inputs": [{"shape": ["batch", 4]}]})
    prepare(registry.create(ref, Init()), folder / "model", batch_sizes=(2,), formats=("module",), seed=0)
    (folder / "engine").mkdir()
    made = folder / "engine", Workbench(folder)
    create("torchscript").compile(Source(folder / "model"), [2], Target(threads=1), *made)


@pytest.mark.usefixtures("compilers")
def test_what_no_trace_holds_is_a_limit(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"^torchscript: .*behaving\.py"):
        in_fresh_process(trace, tmp_path)
