"""The three adapters on PyTorch's runtime. Each test has a process of its own, because inference mode belongs to one."""

from __future__ import annotations

import shutil
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.compilers import torch_adapter
from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.torch_compile import TorchCompile, TorchCompileFlags
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError, FlagError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from tests.support.apart import with_torch

pytestmark = pytest.mark.long

TARGET = Target(threads=1)
NARROW = {"simdlen": 256}


def bench(engine: Path) -> Workbench:
    return Workbench(engine.with_name("work"))


def load_where_materials_are_gone(engine: Path) -> str:
    return create("identity").load(engine, 1, TARGET).precision


@pytest.mark.usefixtures("compilers")
def test_an_identity_engine_needs_no_materials(prepared: Path, tmp_path: Path) -> None:
    materials, engine = tmp_path / "materials", tmp_path / "engine"
    shutil.copytree(prepared / "cnn", materials)
    engine.mkdir()
    create("identity").compile(Source(materials), [1, 3], TARGET, engine, bench(engine))
    shutil.rmtree(materials)
    assert with_torch(load_where_materials_are_gone, engine) == "fp32"
    assert not list(engine.rglob("*.npz"))
    assert not list(engine.rglob("*.onnx"))


def modes_over_time(materials: Path, engine: Path) -> list[bool]:
    import torch

    compiler, source = create("identity"), Source(materials)
    seen = [torch.is_inference_mode_enabled()]
    first = compiler.load(engine, 1, TARGET)
    second = compiler.load(engine, 3, TARGET)
    seen.append(torch.is_inference_mode_enabled())
    first.close()
    first.close()
    second.bind(source.example(3)).call()
    seen.append(torch.is_inference_mode_enabled())
    second.close()
    seen.append(torch.is_inference_mode_enabled())
    return seen


@pytest.mark.usefixtures("compilers")
def test_inference_mode_is_on_as_long_as_an_engine_is_open(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1, 3], TARGET, tmp_path, bench(tmp_path))
    assert with_torch(modes_over_time, cnn.directory, tmp_path) == [False, True, True, False]


def load_with_rounded_fp32(engine: Path) -> None:
    import os

    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"
    create("identity").load(engine, 1, TARGET)


@pytest.mark.usefixtures("compilers")
def test_fp32_that_the_environment_rounds_is_refused(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1], TARGET, tmp_path, bench(tmp_path))
    with pytest.raises(UnsupportedError, match="ONEDNN_DEFAULT_FPMATH_MODE=BF16"):
        with_torch(load_with_rounded_fp32, tmp_path)


def weights_layout(engine: Path) -> tuple[object, bool]:
    import torch

    loaded = create("identity", {"memory_format": "channels_last"}).load(engine, 1, TARGET)
    module = loaded._run  # type: ignore[attr-defined]
    return loaded.flags["memory_format"], module[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("compilers")
def test_channels_last_takes_effect(cnn: Source, tmp_path: Path) -> None:
    create("identity").compile(cnn, [1], TARGET, tmp_path, bench(tmp_path))
    assert with_torch(weights_layout, tmp_path) == ("channels_last", True)


def script_without_warnings(materials: Path, engine: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        create("torchscript").compile(Source(materials), [1], TARGET, engine, bench(engine))
        create("torchscript").load(engine, 1, TARGET)
    return [str(warning.message) for warning in caught if "torch.jit" in str(warning.message)]


@pytest.mark.usefixtures("compilers")
def test_the_notice_that_torchscript_is_deprecated_is_not_repeated(cnn: Source, tmp_path: Path) -> None:
    assert with_torch(script_without_warnings, cnn.directory, tmp_path) == []


def test_optimize_for_inference_needs_a_frozen_graph() -> None:
    with pytest.raises(FlagError, match="optimize_for_inference needs freeze"):
        create("torchscript", {"freeze": False, "optimize_for_inference": True})


def compile_with_narrow_vectors(materials: Path, engine: Path) -> object:
    build = create("torch-compile", NARROW).compile(Source(materials), [3], TARGET, engine, bench(engine))
    return build.flags["dynamic_batch"]


def load_and_list_imports(engine: Path) -> tuple[dict[str, object], bool]:
    import sys

    flags = create("torch-compile", NARROW).load(engine, 3, TARGET).flags
    return dict(flags), "torch._inductor" in sys.modules


@pytest.fixture(scope="module")
def narrow(compilers: None, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of torch-compile of a model with a fixed batch size."""
    engine = tmp_path_factory.mktemp("narrow") / "engine"
    engine.mkdir()
    assert with_torch(compile_with_narrow_vectors, prepared / "fixed_batch", engine) is False
    return engine


def test_a_fixed_batch_size_is_compiled_for_it_alone(narrow: Path) -> None:
    flags, _ = with_torch(load_and_list_imports, narrow)
    assert flags["dynamic_batch"] is False
    with pytest.raises(CompileError, match="batch size 1"):
        create("torch-compile", NARROW).load(narrow, 1, TARGET)


def test_loading_a_package_does_not_import_the_compiler(narrow: Path) -> None:
    _, imported = with_torch(load_and_list_imports, narrow)
    assert imported is False


@pytest.mark.skipif("avx512f" not in isa(), reason="this CPU has no wider vectors than 256 bits")
def test_the_width_of_vectors_takes_effect(narrow: Path) -> None:
    flags, _ = with_torch(load_and_list_imports, narrow)
    assert (flags["simdlen"], flags["cpu_isa"]) == (256, "AVX2")


def explain(compiler: str, flags: dict[str, Any], materials: Path, engine: Path, batch: int) -> Explanation:
    create(compiler, flags).compile(Source(materials), [batch], TARGET, engine, bench(engine))
    return create(compiler, flags).explain(engine, batch, TARGET)


@pytest.mark.usefixtures("compilers")
def test_identity_explains_itself_by_what_it_executes(cnn: Source, tmp_path: Path) -> None:
    found = with_torch(explain, "identity", {}, cnn.directory, tmp_path, 3)
    assert found.nodes_before == found.nodes_after == len(found.kernels)
    assert found.count("operation")["aten::convolution"] == 2
    assert found.count("precision") == {"float32": len(found.kernels)}
    assert set(found.count("layout")) == {"nchw"}
    assert [kernel.name for kernel in found.kernels if kernel.operation == "aten::convolution"] == ["0", "3.body.0"]


@pytest.mark.usefixtures("compilers")
def test_channels_last_shows_in_the_explanation(cnn: Source, tmp_path: Path) -> None:
    found = with_torch(explain, "identity", {"memory_format": "channels_last"}, cnn.directory, tmp_path, 3)
    assert {kernel.layout for kernel in found.kernels if kernel.operation == "aten::convolution"} == {"nhwc"}


@pytest.mark.usefixtures("compilers")
def test_torchscript_explains_what_freezing_left(cnn: Source, tmp_path: Path) -> None:
    found = with_torch(explain, "torchscript", {}, cnn.directory, tmp_path, 3)
    assert found.nodes_before is not None
    assert found.nodes_after is not None
    assert found.nodes_after < found.nodes_before  # batch norms are folded
    assert "aten::batch_norm" not in found.count("operation")
    assert found.facts["operators_saved"] == found.nodes_after


@pytest.mark.usefixtures("compilers")
def test_torchscript_says_what_it_did_not_fold(cnn: Source, tmp_path: Path) -> None:
    found = with_torch(explain, "torchscript", {"freeze": False}, cnn.directory, tmp_path, 3)
    assert found.count("operation")["aten::batch_norm"] == 2
    assert found.nodes_after == found.nodes_before


@pytest.mark.usefixtures("compilers")
def test_torch_compile_explains_its_generated_code(cnn: Source, tmp_path: Path) -> None:
    found = with_torch(explain, "torch-compile", {"freezing": True}, cnn.directory, tmp_path, 3)
    assert found.nodes_before == 10
    assert found.nodes_after == len(found.kernels)
    assert found.facts["generated_kernels"] + found.facts["extern_kernels"] == found.nodes_after  # type: ignore[operator]
    assert found.code_bytes is not None
    assert found.code_bytes > 10_000
    assert ("add", "mean") in {kernel.fused for kernel in found.kernels}
    assert found.count("implementation")["mkldnn"] >= 2
    assert found.facts["device"] == "cpu"


def test_flags_without_effect_are_reported_so() -> None:
    flags = TorchCompile(TorchCompileFlags(gemm_backends="all", weight_prepack=True))._in_force(TARGET)
    assert flags["gemm_backends"] == "aten"
    assert flags["weight_prepack"] is False
    on_gpu = TorchCompile(TorchCompileFlags(freezing=True, simdlen=256))._in_force(Target(accelerator="cuda"))
    assert on_gpu["weight_prepack"] is False
    assert on_gpu["simdlen"] is None


TORCH = ["identity", "torchscript", "torch-compile"]


@pytest.mark.parametrize("name", TORCH)
def test_precisions_of_the_gpu_are_refused_on_the_cpu(name: str) -> None:
    for precision in ("tf32", "fp16"):
        with pytest.raises(UnsupportedError, match=f"runs {precision} on cuda only; on the CPU it runs fp32, bf16"):
            create(name).check(Target(precision=precision))
    create(name).check(Target(precision="bf16"))


@pytest.mark.parametrize("name", TORCH)
def test_a_gpu_is_looked_for_before_torch_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: None)
    monkeypatch.setattr(probes, "gpu_obstacle", lambda: "nvidia-smi lists none")
    with pytest.raises(UnsupportedError, match=f"{name} on cuda needs an NVIDIA GPU: nvidia-smi lists none"):
        create(name).check(Target(accelerator="cuda"))


ADA = probes.Gpu("NVIDIA L4", 23034, "555.42.06", "8.9")


@pytest.mark.parametrize("name", TORCH)
def test_a_build_of_torch_without_cuda_is_refused_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: ADA)
    monkeypatch.setattr(torch_adapter, "built_for", lambda: "")
    with pytest.raises(UnsupportedError, match="needs a PyTorch built for CUDA"):
        create(name).check(Target(accelerator="cuda"))
    monkeypatch.setattr(torch_adapter, "built_for", lambda: "13.0")
    create(name).check(Target(accelerator="cuda", precision="fp16"))


@pytest.mark.parametrize(("override", "refused"), [("0", "tf32"), ("1", "fp32")])
def test_a_variable_that_decides_about_tf32_is_refused(
    override: str, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: ADA)
    monkeypatch.setattr(torch_adapter, "built_for", lambda: "13.0")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    with pytest.raises(UnsupportedError, match=f"NVIDIA_TF32_OVERRIDE={override} makes {refused} something else"):
        create("identity").check(Target(accelerator="cuda", precision=refused))


def test_engines_for_a_gpu_require_its_cuda_and_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: ADA)
    monkeypatch.setattr(torch_adapter, "built_for", lambda: "13.0")
    on_gpu, on_cpu = (create("torch-compile").requires(Target(accelerator=where)) for where in ("cuda", "cpu"))
    assert on_gpu == {**on_cpu, "cuda": "13.0", "gpu": "compute capability 8.9"}
    assert create("identity").requires(Target(accelerator="cuda")) == {"torch": on_cpu["torch"], "cuda": "13.0"}


@pytest.mark.parametrize(
    ("line", "version"),
    [("cuda: _Optional[str] = '13.0'", "13.0"), ("cuda = None", ""), ('cuda: Optional[str] = "12.6"', "12.6")],
)
def test_the_cuda_version_is_read_without_torch(
    line: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\ngit_version = 'abc'\n")
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(torch_adapter, "find_spec", lambda name: spec)
    assert torch_adapter.built_for() == version


def test_an_engine_of_the_other_accelerator_is_refused() -> None:
    with pytest.raises(CompileError, match="engine of torchscript was compiled for cpu, not for cuda"):
        torch_adapter.same_accelerator("torchscript", {"accelerator": "cpu"}, Target(accelerator="cuda"))


def state_on_a_gpu(precision: Any, cudnn_benchmark: bool) -> dict[str, Any]:
    """What `configure` sets, where the questions about the GPU are answered for it."""
    import torch

    from mlflow_ngraph.compilers.torch_runtime import configure

    torch.cuda.get_device_capability = lambda: (8, 9)
    torch.cuda.get_device_name = lambda: ADA.name
    flags = configure(Target(accelerator="cuda", precision=precision), cudnn_benchmark=cudnn_benchmark)
    actual = {"matmul": torch.backends.cuda.matmul.allow_tf32, "benchmark": torch.backends.cudnn.benchmark}
    return {**flags, **actual}


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)])
def test_tf32_is_on_when_it_is_asked_for(precision: str, tf32: bool) -> None:
    state = with_torch(state_on_a_gpu, precision, tf32)
    assert state["matmul"] is state["cudnn_allow_tf32"] is tf32
    assert state["float32_matmul_precision"] == ("high" if tf32 else "highest")
    assert state["benchmark"] is state["cudnn_benchmark"] is tf32
    assert state["compute_capability"] == "8.9"
    assert state["transfers"] == "outside"


def repetitions() -> list[list[str]]:
    """The order of events of two calls of each kind, where the CPU plays the device."""
    import torch

    from mlflow_ngraph.compilers.torch_runtime import with_transfers, without_transfers

    host = [torch.ones(2), torch.full((2,), 3.0)]
    told: list[list[str]] = []
    for make in (
        lambda run, wait: without_transfers(run, host, wait),
        lambda run, wait: with_transfers(run, host, "cpu", wait),
    ):
        events: list[str] = []

        def run(left: torch.Tensor, right: torch.Tensor, events: list[str] = events) -> tuple[torch.Tensor, ...]:
            events.append(f"run {left.sum():g} {right.sum():g}")
            return left + right, left * right

        invocation = make(run, lambda events=events: events.append("wait"))
        for _ in range(2):
            invocation.call()
            host[0] += 1
        events.extend(str(array.tolist()) for array in invocation.outputs())
        told.append(events)
        host[0][...] = 1
    return told


@pytest.mark.usefixtures("compilers")
def test_a_call_ends_when_the_device_is_done() -> None:
    outside, inside = with_torch(repetitions)
    # Without transfers the device has the inputs that were bound, here the very same memory.
    assert outside == ["run 2 6", "wait", "run 4 6", "wait", "[5.0, 5.0]", "[6.0, 6.0]"]
    # With transfers every call brings the inputs as they are now.
    assert inside == ["run 2 6", "wait", "run 4 6", "wait", "[5.0, 5.0]", "[6.0, 6.0]"]


def fold_error(directory: Path) -> float:
    """Largest error of a compiled fold of a strided input."""
    import numpy as np

    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.preparing import prepare
    from mlflow_ngraph.workloads.registry import create as workload

    inputs = {"inputs": [{"name": "windows", "shape": ["batch", 2, 49, 9, 4]}]}
    ref = WorkloadRef("torch", "tests.workloads.models:strided_fold", inputs)
    materials, engine = directory / "materials", directory / "engine"
    prepare(workload(ref, Init()), materials, batch_sizes=[2], formats=["exported"], seed=0)
    engine.mkdir()
    compiler, source = create("torch-compile"), Source(materials)
    compiler.compile(source, [2], TARGET, engine, bench(engine))
    invocation = compiler.load(engine, 2, TARGET).bind(source.example(2))
    invocation.call()
    return float(np.abs(invocation.outputs()[0] - source.reference(2)[0]).max())


@pytest.mark.usefixtures("compilers")
def test_folding_a_strided_input_writes_nowhere_else(tmp_path: Path) -> None:
    """Inductor's own decomposition corrupts the heap."""
    assert with_torch(fold_error, tmp_path) < 1e-5
