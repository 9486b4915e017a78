"""What the TensorRT adapter says when something is missing or goes wrong, against the same stand-ins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from mlflow_ngraph.compilers import host
from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.tensorrt.flags import TensorRTFlags
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from tests.support.tensorrt_machine import FP32, Machine


def test_an_engine_is_loaded_for_its_own_precision_only(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    with pytest.raises(UnsupportedError, match="compiled for fp32, not for tf32"):
        create("tensorrt").load(newest.engine, 3, Target(accelerator="cuda", precision="tf32"))


def test_a_model_with_half_precision_of_its_own_is_not_fp32(newest: Machine, cnn: Source, tmp_path: Path) -> None:
    from mlflow_ngraph.compilers.tensorrt.adapter import TensorRT
    from mlflow_ngraph.compilers.tensorrt.building import build
    from mlflow_ngraph.compilers.tensorrt.configuration import ClassicConfiguration
    from mlflow_ngraph.compilers.tensorrt.precision import in_precision

    file = tmp_path / "half.onnx"
    onnx.save(in_precision(onnx.load(str(cnn.onnx())), "fp16"), str(file))
    configuration = ClassicConfiguration(TensorRTFlags())
    with pytest.raises(UnsupportedError, match="cannot compute all of this model in fp32: 3 in HALF"):
        build(TensorRT.edition, configuration, file, cnn.inputs, [3], FP32, Workbench(tmp_path))


def test_a_level_that_a_version_lacks_is_unsupported(machine: Machine, cnn: Source) -> None:
    flags: dict[str, Any] = {"hardware_compatibility": "same_compute_capability"}
    if machine.trt.module.__version__.startswith("10.3"):
        with pytest.raises(UnsupportedError, match=r"TensorRT 10\.3\.0 has no hardware_compatibility same_compute"):
            machine.compile(cnn, [3], **flags)
    else:
        machine.compile(cnn, [3], **flags)
        assert machine.trt.builds[0]["hardware_compatibility_level"].name == "SAME_COMPUTE_CAPABILITY"


def test_an_operator_that_the_parser_lacks_is_named(machine: Machine, cnn: Source) -> None:
    machine.trt.refuses_operator = "Conv"
    with pytest.raises(
        UnsupportedError, match=r"^tensorrt has no operator Conv \(node \S+\): no importer for this one$"
    ):
        machine.compile(cnn, [3])


def test_the_first_error_of_the_builder_is_the_reason(newest: Machine, cnn: Source) -> None:
    newest.trt.refuses_to_build = "Could not find any implementation for node conv"
    with pytest.raises(CompileError, match=r"^tensorrt: no engine was built: Could not find any implementation"):
        newest.compile(cnn, [3])
    newest.trt.refuses_to_build = "Requested amount of GPU memory could not be allocated: out of memory"
    with pytest.raises(MemoryError, match="out of memory"):
        newest.compile(cnn, [3])


def test_a_plan_of_another_version_or_a_damaged_one_is_refused(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    plan = newest.engine / "model-b3.plan"
    plan.write_text(plan.read_text().replace("11.4.0.106", "10.0.0"))
    with pytest.raises(CompileError, match=r"11\.4\.0\.106 cannot load model-b3\.plan, .*: Version tag does not match"):
        create("tensorrt").load(newest.engine, 3, FP32)
    plan.write_bytes(b"\x00")
    with pytest.raises(CompileError, match="magicTag"):
        create("tensorrt").load(newest.engine, 3, FP32)


def test_an_engine_that_cannot_be_recorded_is_unsupported(newest: Machine, cnn: Source) -> None:
    newest.compile(cnn, [3])
    newest.trt.refuses_capture = True
    engine = create("tensorrt", {"cuda_graph": True}).load(newest.engine, 3, FP32)
    with pytest.raises(UnsupportedError, match=r"cannot be recorded as a CUDA graph: .*cannot be captured"):
        engine.bind(cnn.example(3))


@pytest.mark.parametrize("function", ["cudaMalloc", "cudaMallocHost"])
def test_memory_that_runs_out_is_told_apart(newest: Machine, cnn: Source, function: str) -> None:
    newest.compile(cnn, [3])
    engine = create("tensorrt").load(newest.engine, 3, FP32)
    newest.cuda.fails[function] = "cudaErrorMemoryAllocation"
    with pytest.raises(MemoryError, match="CUDA: said by the driver"):
        engine.bind(cnn.example(3))
    engine.close()
    assert newest.cuda.left() == 0


def test_precisions_need_an_architecture(newest: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu("Tesla T4", 15360, "555.42.06", "7.5"))
    create("tensorrt").check(Target(accelerator="cuda", precision="fp16"))
    with pytest.raises(
        UnsupportedError, match=r"bf16 on GPUs of compute capability 8\.0 or later: this is Tesla T4 with 7\.5"
    ):
        create("tensorrt").check(Target(accelerator="cuda", precision="bf16"))


@pytest.mark.usefixtures("processes")
def test_without_a_gpu_nothing_is_imported(monkeypatch: pytest.MonkeyPatch, cnn: Source, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(probes, "device_tree_model", lambda: "")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(UnsupportedError, match="tensorrt on cuda needs an NVIDIA GPU: nvidia-smi is not installed"):
        create("tensorrt").compile(cnn, [3], FP32, tmp_path, Workbench(tmp_path))
    with pytest.raises(UnsupportedError, match="tensorrt does not run cpu: it runs cuda"):
        create("tensorrt").check(Target())


@pytest.mark.usefixtures("processes")
def test_everything_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_spec", lambda module: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(probes, "device_tree_model", lambda: "")
    found = create("tensorrt").availability()
    assert not found.available
    assert found.reason == (
        "the package tensorrt is not installed; the package cuda-bindings is not installed; "
        "no NVIDIA GPU: nvidia-smi is not installed"
    )


def test_a_package_without_its_libraries_is_no_crash(
    newest: Machine, cnn: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(CompileError, match="tensorrt cannot be imported"):
        newest.compile(cnn, [3])
