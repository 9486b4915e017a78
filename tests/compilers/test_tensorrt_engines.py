"""The control flow of the TensorRT adapter, against stand-ins that have the real names and signatures and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mlflow_ngraph.compilers import host
from mlflow_ngraph.compilers.base import Target, Transfers
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.tensorrt.configuration import TimingCache
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.materials import Source
from tests.compilers.test_tensorrt_api import used
from tests.support.tensorrt_machine import ADA, FP32, Machine, assert_parity


@pytest.mark.parametrize("transfers", ["outside", "inside"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_an_engine_computes_the_models_function(
    machine: Machine, cnn: Source, transfers: Any, cuda_graph: bool
) -> None:
    target = Target(accelerator="cuda", transfers=transfers)
    build, bench = machine.compile(cnn, [3], target, cuda_graph=cuda_graph)
    assert set(bench.seconds) == {"convert", "compile", "save"}
    assert build.export_format == "onnx"
    found, flags = machine.outputs(cnn, 3, target, cuda_graph=cuda_graph)
    assert_parity(found, cnn, 3)
    assert flags["transfers"] == transfers
    assert flags["cuda_graph"] is cuda_graph
    assert ("cudaGraphLaunch" in machine.cuda.calls) is cuda_graph


def calls_of(machine: Machine, work: Callable[[], object]) -> list[str]:
    machine.cuda.calls.clear()
    work()
    return list(machine.cuda.calls)


def test_a_repetition_contains_the_copies_that_were_asked_for_and_waits(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    expected: dict[Transfers, int] = {"outside": 0, "inside": 2}
    for transfers, copies in expected.items():
        engine = create("tensorrt").load(newest.engine, 3, Target(accelerator="cuda", transfers=transfers))
        calls = calls_of(newest, engine.bind(cnn.example(3)).call)
        assert calls.count("cudaMemcpyAsync") == copies
        assert calls[-1] == "cudaStreamSynchronize"
        engine.close()


def test_a_recorded_graph_is_all_that_a_repetition_launches(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    for transfers in ("outside", "inside"):
        target = Target(accelerator="cuda", transfers=transfers)
        engine = create("tensorrt", {"cuda_graph": True}).load(newest.engine, 3, target)
        calls = calls_of(newest, engine.bind(cnn.example(3)).call)
        assert calls == ["cudaGraphLaunch", "cudaStreamSynchronize"]
        engine.close()


def test_bindings_of_one_engine_do_not_disturb_each_other(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    engine = create("tensorrt").load(newest.engine, 3, FP32)
    first = engine.bind(cnn.example(3))
    second = engine.bind([np.zeros_like(array) for array in cnn.example(3)])
    first.call()
    second.call()
    assert_parity(first.outputs(), cnn, 3)
    engine.close()


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp32", "FLOAT"), ("tf32", "FLOAT"), ("bf16", "BF16"), ("fp16", "HALF")]
)
def test_the_network_computes_in_the_precision(machine: Machine, cnn: Source, precision: Any, kind: str) -> None:
    target = Target(accelerator="cuda", precision=precision)
    machine.compile(cnn, [3], target)
    (build,) = machine.trt.builds
    assert ("TF32" in build["flags"]) is (precision == "tf32")
    found, flags = machine.outputs(cnn, 3, target)
    assert_parity(found, cnn, 3, precision)
    assert flags["computes_in"] == f"{kind}:3"
    assert flags["tf32"] is (precision == "tf32")


def test_one_engine_serves_the_batch_sizes_of_a_profile(machine: Machine, cnn: Source) -> None:
    assert create("tensorrt", {"dynamic_batch": True}).engines([1, 3]) == [(1, 3)]
    assert create("tensorrt").engines([1, 3]) == [(1,), (3,)]
    build, _ = machine.compile(cnn, [1, 3], dynamic_batch=True)
    assert build.flags["dynamic_batch"] is True
    (name,) = [spec.name for spec in cnn.inputs]
    assert machine.trt.builds[0]["profiles"] == [{name: ((1, 3, 16, 16), (3, 3, 16, 16))}]
    for batch in (1, 3):
        assert_parity(machine.outputs(cnn, batch, dynamic_batch=True)[0], cnn, batch)
    with pytest.raises(CompileError, match=r"does not take shape \(4, 3, 16, 16\): .*shape is outside"):
        create("tensorrt").load(machine.engine, 4, FP32).bind([np.zeros((4, 3, 16, 16), np.float32)])


def test_a_fixed_batch_size_has_fixed_shapes(newest: Machine, fixed: Source) -> None:
    build, _ = newest.compile(fixed, [3], dynamic_batch=True)
    assert build.flags["dynamic_batch"] is False
    assert newest.trt.builds[0]["profiles"] == []
    assert_parity(newest.outputs(fixed, 3)[0], fixed, 3)
    with pytest.raises(CompileError, match="holds no engine for batch size 1"):
        create("tensorrt").load(newest.engine, 1, FP32)


def test_every_flag_reaches_the_builder_and_is_reported(machine: Machine, cnn: Source) -> None:
    asked: dict[str, Any] = {
        "builder_optimization_level": 5,
        "workspace_mib": 512,
        "timing_cache": False,
        "version_compatible": True,
        "hardware_compatibility": "ampere_plus",
        "sparsity": True,
    }
    build, _ = machine.compile(cnn, [3], **asked)
    (told,) = machine.trt.builds
    assert told["flags"] == {"VERSION_COMPATIBLE", "SPARSE_WEIGHTS"}
    assert told["workspace"] == 512 * 2**20
    assert told["builder_optimization_level"] == 5
    assert told["hardware_compatibility_level"].name == "AMPERE_PLUS"
    assert told["cache"] is None
    found, flags = machine.outputs(cnn, 3, **asked)
    assert_parity(found, cnn, 3)
    fields = create("tensorrt").flags_type.model_fields
    for said in (build.flags, flags):
        assert set(fields) <= set(said)
        assert asked.items() <= said.items()
    assert flags["tensorrt_version"] == machine.trt.module.__version__
    assert flags["compute_capability"] == "8.9"
    assert flags["gpu"] == ADA.name
    assert flags["threads"] == 1


def test_defaults_are_reported_as_the_builder_gives_them_back(newest: Machine, cnn: Source) -> None:
    build, _ = newest.compile(cnn, [3])
    assert build.flags["workspace_mib"] == 8192
    assert build.flags["hardware_compatibility"] == "none"


def test_timings_are_kept_and_added_to_by_the_next_build(newest: Machine, cnn: Source, fixed: Source) -> None:
    build, _ = newest.compile(cnn, [3])
    assert build.flags["timing_cache_reused"] is False
    place = TimingCache.place(newest.trt.module)
    assert place.path.name == "11.4.0.106-NVIDIA-GeForce-RTX-4070-8.9.timing"
    first = set(place.path.read_text().removeprefix("timings:").split())
    assert "Conv" in first
    for file in newest.engine.iterdir():
        file.unlink()
    # Another process, which had another model, ends its build within this one.
    newest.trt.meanwhile = lambda: place.path.write_text("timings:Other")
    build, _ = newest.compile(fixed, [3])
    assert build.flags["timing_cache_reused"] is True
    assert {"Conv", "Other", "Gemm"} <= set(place.path.read_text().removeprefix("timings:").split())
    assert not list(place.path.parent.glob("*.tmp"))


def test_timings_that_are_damaged_are_replaced(newest: Machine, cnn: Source) -> None:
    place = TimingCache.place(newest.trt.module)
    place.path.parent.mkdir(parents=True)
    place.path.write_bytes(b"\x00half a file")
    build, _ = newest.compile(cnn, [3])
    assert build.flags["timing_cache_reused"] is False
    assert place.path.read_text().startswith("timings:")


def test_the_inspector_explains_the_engine(machine: Machine, cnn: Source) -> None:
    machine.compile(cnn, [1, 3], dynamic_batch=True)
    compiler = create("tensorrt", {"dynamic_batch": True})
    found = compiler.explain(machine.engine, 3, FP32)
    nodes = len(onnx.load(str(cnn.onnx())).graph.node)
    assert found.nodes_before == nodes
    assert found.nodes_after == 1 + nodes // 2
    assert found.layout_changes == 1
    assert found.fused_groups == nodes // 2
    assert found.kernels[1].implementation == "sm80_xmma_fprop"
    assert found.kernels[1].precision == "fp16"
    assert found.facts["tensorrt_version"] == machine.trt.module.__version__
    assert (machine.engine / "layers-b3.json").is_file()
    assert machine.cuda.left() == 0


def test_the_search_for_names_sees_all_that_the_adapter_uses(machine: Machine, cnn: Source) -> None:
    machine.compile(cnn, [1, 3], dynamic_batch=True, version_compatible=True, workspace_mib=64)
    machine.outputs(cnn, 3, cuda_graph=True)
    create("tensorrt").explain(machine.engine, 3, FP32)
    assert machine.trt.used
    assert machine.trt.used <= used(machine.trt.listing).found


def test_an_engine_requires_its_version_and_its_gpu(newest: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "version", lambda name: "11.4.0.106")
    required = create("tensorrt").requires(FP32)
    assert required["tensorrt"] == "11.4.0.106"
    assert required["gpu"] == "NVIDIA GeForce RTX 4070, compute capability 8.9"
    same, plus = (
        create("tensorrt", {"hardware_compatibility": level}) for level in ("same_compute_capability", "ampere_plus")
    )
    on_ada = [compiler.requires(FP32)["gpu"] for compiler in (same, plus)]
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu("NVIDIA L4", 23034, "555.42.06", "8.9"))
    assert [compiler.requires(FP32)["gpu"] for compiler in (same, plus)] == on_ada
    assert create("tensorrt").requires(FP32)["gpu"] != required["gpu"]
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu("NVIDIA A100", 40960, "555.42.06", "8.0"))
    assert same.requires(FP32)["gpu"] != on_ada[0]
    assert plus.requires(FP32)["gpu"] == on_ada[1]
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu("Tesla T4", 15360, "555.42.06", "7.5"))
    assert plus.requires(FP32)["gpu"] != on_ada[1]


@pytest.mark.parametrize(("batch_sizes", "sizes"), [([3], [3, 7]), ([1, 3], [0, 7])])
def test_only_the_batch_size_stays_free(batch_sizes: list[int], sizes: list[int], tmp_path: Path) -> None:
    from mlflow_ngraph.compilers.tensorrt.building import _model

    border = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "length"]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", border[:1], border[1:])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "model.onnx"))
    inputs = [TensorSpec("x", "float32", (BATCH, 7))]
    model = _model(tmp_path / "model.onnx", inputs, batch_sizes, "fp32")
    assert [dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim] == sizes


@pytest.mark.parametrize("transfers", ["outside", "inside"])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_requests_in_flight_have_streams_and_memory_of_their_own(
    machine: Machine, cnn: Source, transfers: Any, cuda_graph: bool
) -> None:
    target = Target(accelerator="cuda", mode="async", transfers=transfers)
    flags = {"requests": 3, "cuda_graph": cuda_graph}
    machine.compile(cnn, [3], target, **flags)
    engine = create("tensorrt", flags).load(machine.engine, 3, target)
    invocation = engine.bind(cnn.example(3))
    assert invocation.requests == engine.flags["requests"] == 3
    calls = calls_of(machine, invocation.call)
    assert calls[-3:] == ["cudaStreamSynchronize"] * 3, "all are started before one is waited for"
    assert "cudaStreamSynchronize" not in calls[:-3]
    assert calls.count("cudaGraphLaunch") == (3 if cuda_graph else 0)
    for request in invocation.each():
        assert_parity(request.outputs(), cnn, 3)
    # One alone is an inference, too.
    assert calls_of(machine, invocation.each()[1].call).count("cudaStreamSynchronize") == 1
    engine.close()
    assert machine.cuda.left() == 0


def test_two_requests_are_in_flight_unless_told_otherwise(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    for mode, requests in (("sync", 1), ("async", 2)):
        engine = create("tensorrt").load(newest.engine, 3, Target(accelerator="cuda", mode=mode))  # type: ignore[arg-type]
        assert engine.bind(cnn.example(3)).requests == engine.flags["requests"] == requests
        engine.close()
