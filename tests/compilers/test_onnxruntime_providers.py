"""Every node runs where it was asked to, or it is said where it ran instead."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from mlflow_ngraph.compilers.base import Precision, Target, Workbench
from mlflow_ngraph.compilers.onnxruntime import OnnxRuntimeFlags
from mlflow_ngraph.compilers.onnxruntime.build import Installed, _read, installed
from mlflow_ngraph.compilers.onnxruntime.flags import ProviderName
from mlflow_ngraph.compilers.onnxruntime.providers import (
    CPU,
    PROVIDERS,
    choose,
    count_nodes,
    nodes_by_provider,
    set_tf32,
    with_options,
)
from mlflow_ngraph.compilers.onnxruntime.running import _waiting, _with_transfers
from mlflow_ngraph.compilers.onnxruntime.session import captured_stderr, options, reason
from mlflow_ngraph.compilers.onnxruntime.session import create as create_session
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source

ort = pytest.importorskip("onnxruntime")

GPU = Target(threads=1, accelerator="cuda")
TF32 = Target(threads=1, accelerator="cuda", precision="tf32")
A_GPU = probes.Gpu("NVIDIA Example", 1024, "1.0", "9.0")
BUILT = ort.get_available_providers()
needs_openvino = pytest.mark.skipif(
    PROVIDERS["openvino"].runtime_name not in BUILT, reason="needs the package onnxruntime-openvino"
)
needs_cuda_build = pytest.mark.skipif(
    PROVIDERS["cuda"].runtime_name not in BUILT or probes.gpu() is not None,
    reason="needs the package onnxruntime-gpu on a machine without a GPU",
)


def compiled(source: Any, directory: Path, **flags: object) -> dict[str, Any]:
    bench = Workbench(directory.with_name("work"))
    return dict(create("onnxruntime", flags).compile(source, [2], Target(threads=1), directory, bench).flags)


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_the_accelerator_calls_for_its_provider(accelerator: Any) -> None:
    assert choose(None, Target(accelerator=accelerator)).name == accelerator


@pytest.mark.parametrize(
    ("name", "other"), [("cpu", "cuda"), ("openvino", "cuda"), ("cuda", "cpu"), ("tensorrt", "cpu")]
)
def test_a_provider_that_runs_elsewhere_is_refused(name: ProviderName, other: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"provider {name} runs on .*, not on {other}"):
        create("onnxruntime", {"provider": name}).check(Target(accelerator=other))


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_precision_that_a_provider_lacks_is_refused(name: ProviderName) -> None:
    provider = PROVIDERS[name]
    for precision in get_args(Precision):
        target = Target(accelerator=provider.accelerator, precision=precision)
        if precision in provider.precisions:
            assert choose(name, target) is provider
        else:
            with pytest.raises(UnsupportedError, match=f"{name} does not run {precision}"):
                choose(name, target)


@pytest.mark.usefixtures("processes")
def test_a_gpu_is_needed_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: None)
    with pytest.raises(UnsupportedError, match="onnxruntime on cuda needs an NVIDIA GPU"):
        create("onnxruntime").check(GPU)
    monkeypatch.setattr(probes, "gpu", lambda: A_GPU)
    create("onnxruntime").check(GPU)
    assert "NVIDIA Example" in create("onnxruntime").requires(GPU)["gpu"]


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"cpu"}))
def test_a_provider_that_is_not_in_the_build_is_an_error(name: ProviderName, cnn: Source) -> None:
    provider, flags, target = PROVIDERS[name], OnnxRuntimeFlags(), Target(threads=1)
    if provider.runtime_name in BUILT:
        pytest.skip(f"this build has {provider.runtime_name}")
    with pytest.raises(UnsupportedError, match=rf"has no {provider.runtime_name}: install {provider.package} "):
        create_session(cnn.onnx(), options(flags, target, "all"), with_options(provider, flags, target, None))


def test_compiling_for_it_is_unsupported_too(cnn: Source, tmp_path: Path) -> None:
    if PROVIDERS["openvino"].runtime_name in BUILT:
        pytest.skip("this build has OpenVINO")
    with pytest.raises(UnsupportedError, match="onnxruntime-openvino"):
        compiled(cnn, tmp_path, provider="openvino")


@needs_cuda_build
@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_provider_that_cannot_start_is_an_error_with_its_own_reason(
    name: ProviderName, cnn: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: A_GPU)
    provider, flags = PROVIDERS[name], OnnxRuntimeFlags()
    with pytest.raises(UnsupportedError, match=rf"cannot start {provider.runtime_name}: lib\w+\.so"):
        create_session(cnn.onnx(), options(flags, GPU, "all"), with_options(provider, flags, GPU, None))


def test_the_file_format_of_the_cpu_provider_is_not_silently_replaced() -> None:
    with pytest.raises(UnsupportedError, match="save_format ort"):
        create("onnxruntime", {"provider": "openvino", "save_format": "ort"}).check(Target())


def test_an_engine_is_loaded_with_the_provider_that_it_was_compiled_for(cnn: Source, tmp_path: Path) -> None:
    create("onnxruntime").compile(cnn, [1], Target(threads=1), tmp_path, Workbench(tmp_path))
    with pytest.raises(CompileError, match="compiled for the provider cpu, not for openvino"):
        create("onnxruntime", {"provider": "openvino"}).load(tmp_path, 1, Target(threads=1))


def test_nodes_are_counted_by_provider(cnn: Source, tmp_path: Path) -> None:
    import onnx

    create("onnxruntime").compile(cnn, [1], Target(threads=1), tmp_path, Workbench(tmp_path))
    engine = create("onnxruntime").load(tmp_path, 1, Target(threads=1))
    nodes = onnx.load(str(tmp_path / "model.onnx"), load_external_data=False).graph.node
    counted = f"{CPU}:{len(nodes)}" if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info") else CPU
    assert engine.flags["nodes_by_provider"] == counted
    assert engine.flags["fallback_nodes"] == 0
    assert engine.flags["providers"] == CPU


def test_flags_that_the_provider_does_not_read_have_no_value_in_force(cnn: Source, tmp_path: Path) -> None:
    flags = {"cuda_graph": True, "cudnn_conv_algo_search": "heuristic"}
    create("onnxruntime", flags).compile(cnn, [1], Target(threads=1), tmp_path, Workbench(tmp_path))
    engine = create("onnxruntime", flags).load(tmp_path, 1, Target(threads=1))
    assert engine.flags["cuda_graph"] is None
    assert engine.flags["cudnn_conv_algo_search"] is None
    assert engine.flags["provider"] == "cpu"


def test_nodes_that_fell_back_are_told_with_their_operators() -> None:
    parts = [("Wanted", ["Conv", "Relu", "Gemm"]), (CPU, ["NonZero"]), (CPU, ["Shape"]), (CPU, ["Shape"])]
    assert count_nodes(parts, "Wanted").facts() == {
        "nodes_by_provider": f"{CPU}:3,Wanted:3",
        "fallback_nodes": 3,
        "fallback_operators": "NonZero:1,Shape:2",
    }
    assert count_nodes([("Wanted", ["Conv"])], "Wanted").facts()["fallback_operators"] is None


def test_a_provider_that_took_nothing_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=f"Wanted took none of the model's 3 nodes: all would run on {CPU}"):
        count_nodes([(CPU, ["Conv", "Relu"]), (CPU, ["Shape"])], "Wanted")


def test_a_runtime_that_does_not_tell_is_trusted_with_one_provider_only() -> None:
    assert nodes_by_provider(SimpleNamespace(get_providers=lambda: [CPU]), CPU) is None
    with pytest.raises(UnsupportedError, match=r"1\.24"):
        nodes_by_provider(SimpleNamespace(get_providers=lambda: ["Wanted", CPU]), "Wanted")


def test_tf32_is_an_option_of_the_cuda_provider() -> None:
    flags = OnnxRuntimeFlags(cudnn_conv_algo_search="heuristic", cuda_graph=True)
    for target, use in ((GPU, "0"), (TF32, "1")):
        ((name, given),) = with_options(PROVIDERS["cuda"], flags, target, None)
        assert name == PROVIDERS["cuda"].runtime_name
        assert given == {"use_tf32": use, "cudnn_conv_algo_search": "HEURISTIC", "enable_cuda_graph": "1"}


@pytest.mark.parametrize(("precision", "fp16", "bf16"), [("fp32", "0", "0"), ("fp16", "1", "0"), ("bf16", "0", "1")])
def test_tensorrt_gets_its_precision_and_a_cache_and_cuda_behind_it(
    precision: Precision, fp16: str, bf16: str, tmp_path: Path
) -> None:
    target = Target(accelerator="cuda", precision=precision)
    first, second = with_options(PROVIDERS["tensorrt"], OnnxRuntimeFlags(cuda_graph=True), target, tmp_path)
    assert first[1]["trt_fp16_enable"] == fp16
    assert first[1]["trt_bf16_enable"] == bf16
    assert first[1]["trt_engine_cache_path"] == str(tmp_path)
    assert first[1]["trt_cuda_graph_enable"] == "1"
    # A graph of the one within a graph of the other cannot be recorded.
    assert second == (
        PROVIDERS["cuda"].runtime_name,
        {"use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE", "enable_cuda_graph": "0"},
    )


def test_tf32_is_turned_off_for_tensorrt_before_its_libraries_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    where = "mlflow_ngraph.compilers.onnxruntime.providers._has_loaded"
    # Set first, so that what the function sets is undone with it.
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    set_tf32(PROVIDERS["cuda"], "fp32")
    set_tf32(PROVIDERS["tensorrt"], "tf32")
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    monkeypatch.setattr(where, lambda library: True)
    with pytest.raises(UnsupportedError, match="NVIDIA_TF32_OVERRIDE=0"):
        set_tf32(PROVIDERS["tensorrt"], "fp32")
    monkeypatch.setattr(where, lambda library: False)
    set_tf32(PROVIDERS["tensorrt"], "fp32")
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
    for name in ("cuda", "tensorrt"):
        with pytest.raises(UnsupportedError, match="rules tf32 out"):
            set_tf32(PROVIDERS[name], "tf32")


CUDA_LOG = (
    "\x1b[1;31m2026-01-01 09:07:18.2 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] /src/core/"
    "provider_bridge_ort.cc:2043 onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : "
    "FAIL : Failed to load library /lib/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open "
    "shared object file: No such file or directory\n\x1b[m\n\x1b[0;93m2026-01-01 09:07:18.2 [W:onnxruntime:Default, "
    "onnxruntime_pybind_state.cc:1295 CreateExecutionProviderFactoryInstance] Failed to create CUDAExecutionProvider."
)
OPENVINO_LOG = (
    "2026-01-01 09:12:27.5 [E:onnxruntime:Default, provider_bridge_ort.cc:2310 Create] /src/openvino_provider_factory"
    ".cc:141 std::string onnxruntime::openvino_ep::ParseDeviceType(std::shared_ptr<OVCore>, const onnxruntime::"
    "ProviderOptions&) [ERROR] [OpenVINO] Device GPU is not available\n"
)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (CUDA_LOG, "libcublasLt.so.13: cannot open shared object file: No such file or directory"),
        (OPENVINO_LOG, "[OpenVINO] Device GPU is not available"),
        ("2026-01-01 [E:onnxruntime:, session.cc:1 Run] out of luck\n", "out of luck"),
        ("nothing of the kind", "it does not say why"),
    ],
)
def test_the_reason_is_found_in_the_runtimes_log(log: str, words: str) -> None:
    assert reason(log) == words


def test_what_is_overheard_is_still_heard_by_others(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as heard:
        os.write(2, b"from C++\n")
    assert heard.text == "from C++\n"
    assert capfd.readouterr().err == "from C++\n"
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"


def test_the_build_is_the_one_that_an_import_finds(tmp_path: Path) -> None:
    found = installed()
    if found is not None:
        assert found.version == ort.__version__
        assert create("onnxruntime").requires(Target())["onnxruntime_build"] == found.package
    record = tmp_path / "build_and_package_info.py"
    record.write_text("package_name = 'onnxruntime-gpu'\n__version__ = '1.2.3'\ncuda_version = '13.0'\n")
    assert _read(record) == Installed("onnxruntime-gpu", "1.2.3")
    record.write_text("package_name =\n")
    assert _read(record) is None


def test_a_timed_call_on_a_gpu_waits_and_copies_as_asked() -> None:
    done: list[str] = []

    def copied() -> list[Any]:
        done.append("back")
        return []

    binding = SimpleNamespace(synchronize_outputs=lambda: done.append("wait"), copy_outputs_to_cpu=copied)
    _waiting(lambda: done.append("run"), binding)()
    assert done == ["run", "wait"]
    done.clear()
    invocation = _with_transfers(lambda: done.append("run"), binding, [lambda: done.append("there")])
    invocation.call()
    invocation.outputs()
    assert done == ["there", "run", "back"]


@needs_openvino
def test_operators_that_openvino_lacks_run_on_the_cpu_and_are_reported(tmp_path: Path) -> None:
    from tests.support.onnx_models import determinants

    (engine := tmp_path / "engine").mkdir()
    flags = compiled(determinants(tmp_path, ["Relu", "Exp"]), engine, provider="openvino")
    assert flags["nodes_by_provider"] == f"{CPU}:1,OpenVINOExecutionProvider:2"
    assert flags["fallback_nodes"] == 1
    assert flags["fallback_operators"] == "Det:1"
    found = create("onnxruntime", {"provider": "openvino"}).explain(engine, 2, Target(threads=1))
    assert [(kernel.provider, kernel.fused) for kernel in found.kernels] == [
        ("OpenVINOExecutionProvider", ("relu0", "exp1")),
        (CPU, ()),
    ]


@needs_openvino
def test_a_model_of_which_openvino_takes_nothing_is_unsupported(tmp_path: Path) -> None:
    from tests.support.onnx_models import determinants

    (engine := tmp_path / "engine").mkdir()
    with pytest.raises(UnsupportedError, match="OpenVINOExecutionProvider took none of the model's 1 nodes"):
        compiled(determinants(tmp_path, []), engine, provider="openvino")
