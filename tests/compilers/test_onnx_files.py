"""Old and odd ONNX files: every compiler that starts from one runs it, and gives what the baseline gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.compilers.registry import create as create_compiler
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from tests.support.apart import apart
from tests.support.closeness import assert_close

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
    for batch, outputs in apart(compiler, outputs_of, compiler, source.directory, directory, batches).items():
        for output, expected in zip(outputs, source.reference(batch), strict=True):
            assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
            assert_close(output, expected, rtol=1e-4, atol=1e-5)


def outputs_of(
    compiler: str, materials: Path, directory: Path, batches: Sequence[int]
) -> Mapping[int, Sequence[NDArray[Any]]]:
    kind = COMPILERS.get(compiler)
    adapter, target, source = kind(kind.flags_type()), Target(threads=1), Source(materials)
    outputs = {}
    for group in adapter.engines(batches):
        engines = directory / f"{compiler}-{group[0]}"
        engines.mkdir()
        adapter.compile(source, group, target, engines, Workbench(directory / "work"))
        for batch in group:
            engine = adapter.load(engines, batch, target)
            bound = engine.bind(source.example(batch))
            bound.call()
            outputs[batch] = bound.outputs()
            engine.close()
    return outputs


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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("compiler", QUICK)
def test_initializers_among_the_inputs(of_version_3: Source, compiler: str, tmp_path: Path) -> None:
    assert [spec.name for spec in of_version_3.inputs] == ["image"]
    assert_runs(of_version_3, compiler, tmp_path)


LONG = "n" * 300
NAMES = ("gpu_0/data:0", "a, b é\t\"<&'", LONG, "1.x", "file")


@pytest.fixture(scope="module")
def with_odd_names(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Names of every kind; an input that nothing reads, a number without axes, an empty input, outputs that are inputs."""
    directory = tmp_path_factory.mktemp("odd")
    first, second, unused, factor, empty = NAMES
    path = saved(
        directory / "odd: näme, 1.onnx",
        [
            helper.make_node("Add", [first, second], ["sum"]),
            helper.make_node("Mul", ["sum", factor], ["scaled, 1"]),
            helper.make_node("Identity", [first], ["copy/of:first"]),
            helper.make_node("Concat", ["scaled, 1", empty], ["joined"], axis=1),
        ],
        [
            value(first, ["N", 2]),
            value(second, ["N", 2]),
            value(unused, ["N", 1]),
            value(factor, []),
            value(empty, ["N", 0]),
        ],
        [value(name, ["N", 2]) for name in ("scaled, 1", "copy/of:first", "joined")],
        [],
    )
    return prepared(path, directory / "materials")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("compiler", QUICK)
def test_odd_names_shapes_and_outputs(with_odd_names: Source, compiler: str, tmp_path: Path) -> None:
    assert tuple(spec.name for spec in with_odd_names.inputs) == NAMES
    assert [spec.shape for spec in with_odd_names.inputs[3:]] == [(), ("batch", 0)]
    assert_runs(with_odd_names, compiler, tmp_path)


NEWEST = onnx.defs.onnx_opset_version()


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("opset", [7, 9, 13, 18, 21, NEWEST])
def test_every_set_of_operators_from_seven_on(opset: int, tmp_path: Path) -> None:
    """With a second domain, weights in another file, and one batch size."""
    rng = np.random.default_rng(0)
    weights = {"kernel": rng.standard_normal((4, 3, 3, 3)), "bias": rng.standard_normal(4)}
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["convolved"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "AveragePool", ["convolved"], ["pooled"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]
        ),
        helper.make_node("Relu", ["pooled"], ["result"]),
    ]
    content = helper.make_graph(
        nodes,
        "graph",
        [value("image", [2, 3, 9, 9])],
        [value("result", [2, 4, 4, 4])],
        [constant(name, weight.astype(np.float32)) for name, weight in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "net.onnx"
    model = helper.make_model(content, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    onnx.save(model, str(path), save_as_external_data=True, location="net: weights.bin", size_threshold=0)
    source = prepared(path, tmp_path / "materials", [2])
    assert source.materials.reference_by.startswith("torch")
    for compiler in ["identity", "onnxruntime", "openvino"]:
        if opset < NEWEST or compiler == "identity":  # runtimes are released after the standard
            assert_runs(source, compiler, tmp_path, [2])


def of_unknown_size(path: Path) -> Path:
    """As many places as there are positive numbers; all numbers in a row; places as the batch is long."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["where"]),
        helper.make_node("Reshape", ["x", "row"], ["all"]),
        helper.make_node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
    ]
    outputs = [value("where", [2, "count"], TensorProto.INT64), value("all", ["numbers"]), value("sums", ["N"])]
    constants = [constant("row", np.array([-1])), constant("last", np.array([1]))]
    return saved(path, nodes, [value("x", ["N", 4])], outputs, constants)


def of_size_wrongly_inferred(path: Path) -> Path:
    """A window that would begin beyond the last pixel is none, and the runtime's inference of shapes counts it."""
    pool = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[4, 4], pads=[1, 1, 1, 1], ceil_mode=1
    )
    return saved(path, [pool], [value("x", ["N", 2, 6, 6])], [value("y", ["N", 2, "height", "width"])], [])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("written", [of_unknown_size, of_size_wrongly_inferred])
@pytest.mark.parametrize("dynamic", [True, False])
def test_outputs_whose_size_onnxruntime_cannot_know(
    written: Callable[[Path], Path], dynamic: bool, tmp_path: Path
) -> None:
    """They are as large as they come out, at every call and for every input: as in a session that nothing is bound to."""
    source = prepared(written(tmp_path / "net.onnx"), tmp_path / "materials")
    pairs = apart("onnxruntime", outputs_and_a_session_s, source.directory, tmp_path, dynamic)
    assert len(pairs) == len(BATCHES) * len(FACTORS)
    for outputs, wanted in pairs:
        for output, other in zip(outputs, wanted, strict=True):
            assert (output.dtype, output.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(output, other)


FACTORS = (1.0, -1.0, 0.0)


def outputs_and_a_session_s(
    materials: Path, directory: Path, dynamic: bool
) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """What an engine gives for inputs of several signs, and what a session of the runtime by itself does."""
    import onnxruntime

    adapter, target, source = (
        create_compiler("onnxruntime", {"dynamic_batch": dynamic}),
        Target(threads=1),
        Source(materials),
    )
    (directory / "engine").mkdir()
    adapter.compile(source, BATCHES, target, directory / "engine", Workbench(directory / "work"))
    session = onnxruntime.InferenceSession(str(source.onnx()))
    pairs: list[tuple[Sequence[Any], Sequence[Any]]] = []
    for batch in BATCHES:
        engine = adapter.load(directory / "engine", batch, target)
        for factor in FACTORS:
            x = source.example(batch)[0] * np.float32(factor)
            bound = engine.bind([x])
            for _ in range(3):
                bound.call()
            pairs.append((bound.outputs(), session.run(None, {"x": x})))
        engine.close()
    return pairs
