"""The adapter of TensorRT for RTX with the real library, as far as it runs without a GPU: it builds, and loads nothing."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Build, Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.tensorrt.library import library
from mlflow_ngraph.compilers.tensorrt_rtx.adapter import TensorRTRTX
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from tests.compilers.test_tensorrt_api import COMPILERS, NAMES, Uses

INSTALLED = TensorRTRTX.building()
ADA = Target(accelerator="cuda", build_for="gpu:sm89")

needs_the_library = pytest.mark.skipif(not INSTALLED.available, reason=f"tensorrt-rtx: {INSTALLED.reason}")


def build(source: Source, directory: Path, target: Target = ADA, **flags: Any) -> Build:
    compiler = create("tensorrt-rtx", flags)
    compiler.check(target)
    directory.mkdir()
    return compiler.compile(source, [3], target, directory, Workbench(directory.with_name("work")))


def gpu(capability: str) -> probes.Gpu:
    return probes.Gpu(f"a GPU with {capability}", 12282, "580.42", capability)


@needs_the_library
@pytest.mark.parametrize(("capability", "level"), [("sm80", "SM80"), ("sm89", "SM89"), ("sm120", "SM120")])
def test_an_engine_is_built_for_the_gpu_that_is_named(cnn: Source, tmp_path: Path, capability: str, level: str) -> None:
    built = build(cnn, tmp_path / "engine", replace(ADA, build_for=f"gpu:{capability}"))
    assert built.flags["built_for"] == level
    assert built.flags["computes_in"] == "FLOAT:3"
    assert built.flags["tf32"] is False
    assert (tmp_path / "engine" / "model-b3.plan").stat().st_size > 0


@needs_the_library
@pytest.mark.parametrize(("precision", "computes_in"), [("tf32", "FLOAT:3"), ("fp16", "HALF:3"), ("bf16", "BF16:3")])
def test_the_network_computes_in_the_precision_that_was_asked_for(
    cnn: Source, tmp_path: Path, precision: Any, computes_in: str
) -> None:
    built = build(cnn, tmp_path / "engine", replace(ADA, precision=precision))
    assert built.flags["computes_in"] == computes_in
    assert built.flags["tf32"] is (precision == "tf32")


@needs_the_library
def test_one_engine_may_serve_all_gpus_since_ampere(cnn: Source, tmp_path: Path) -> None:
    built = build(cnn, tmp_path / "engine", hardware_compatibility="ampere_plus")
    assert built.flags["built_for"] == "all since Ampere"
    assert built.requires["gpu"] == "compute capability 8.0 or later"


@needs_the_library
def test_an_operation_that_a_gpu_lacks_is_unsupported_in_the_librarys_words(cnn: Source, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"Cannot compile operation '\w+' for Turing \(SM75\): FP32 GEMM"):
        build(cnn, tmp_path / "engine", replace(ADA, build_for="gpu:sm75"))
    build(cnn, tmp_path / "half", replace(ADA, build_for="gpu:sm75", precision="fp16"))


@needs_the_library
def test_the_builders_own_listing_explains_an_engine_without_its_gpu(cnn: Source, tmp_path: Path) -> None:
    build(cnn, tmp_path / "engine", replace(ADA, precision="fp16"))
    found = create("tensorrt-rtx").explain(tmp_path / "engine", 3, replace(ADA, precision="fp16"))
    assert found.nodes_before
    assert found.nodes_after == len(found.kernels) > 1
    assert any(len(kernel.fused) > 1 for kernel in found.kernels)
    assert {kernel.precision for kernel in found.kernels} >= {"fp16"}
    listed = (tmp_path / "engine" / "model-b3.layers.txt").read_text()
    assert listed.count("LayerType: ") == len(found.kernels)


@needs_the_library
@pytest.mark.parametrize("level", ["same_compute_capability", "ampere_plus"])
def test_a_gpu_that_the_library_does_not_name_has_no_engines(
    cnn: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    refused = pytest.raises(
        UnsupportedError, match=r"tensorrt-rtx [\d.]+ has no engines for sm90: it knows sm75, sm80, "
    )
    with refused:
        build(cnn, tmp_path / "elsewhere", replace(ADA, build_for="gpu:sm90"), hardware_compatibility=level)
    monkeypatch.setattr(probes, "gpu", lambda: gpu("9.0"))
    with refused:
        build(cnn, tmp_path / "here", replace(ADA, build_for=""), hardware_compatibility=level)


def test_the_architecture_of_the_gpu_must_be_said() -> None:
    with pytest.raises(UnsupportedError, match="has to know the architecture of the GPU of gpu: say it as in gpu:sm89"):
        create("tensorrt-rtx").check(replace(ADA, build_for="gpu"))


def test_a_precision_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"bf16 on GPUs of compute capability 8\.0 or later: gpu:sm75 has less"):
        create("tensorrt-rtx").check(replace(ADA, build_for="gpu:sm75", precision="bf16"))
    with pytest.raises(UnsupportedError, match=r"no hardware_compatibility ampere_plus for GPUs .* 7\.5"):
        create("tensorrt-rtx", {"hardware_compatibility": "ampere_plus"}).check(replace(ADA, build_for="gpu:sm75"))


@pytest.mark.parametrize("level", ["same_compute_capability", "ampere_plus"])
def test_the_device_requires_what_was_built_for_it(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    compiler = create("tensorrt-rtx", {"hardware_compatibility": level})
    built = compiler.requires(ADA)
    monkeypatch.setattr(probes, "gpu", lambda: gpu("8.9"))
    assert compiler.requires(replace(ADA, build_for="")) == built
    monkeypatch.setattr(probes, "gpu", lambda: gpu("8.6"))
    assert (compiler.requires(replace(ADA, build_for="")) == built) is (level == "ampere_plus")


@needs_the_library
def test_an_engine_for_another_device_is_not_loaded_here(cnn: Source, tmp_path: Path) -> None:
    build(cnn, tmp_path / "engine")
    compiler = create("tensorrt-rtx")
    with pytest.raises(UnsupportedError, match="loads an engine for gpu:sm89 there alone, not here"):
        compiler.load(tmp_path / "engine", 3, ADA)
    with pytest.raises(UnsupportedError, match="compiled for fp32, not for fp16"):
        compiler.load(tmp_path / "engine", 3, replace(ADA, precision="fp16"))


def exists(trt: ModuleType, kind: str, name: str) -> bool:
    where = trt if kind == "module" else getattr(trt, kind)
    return hasattr(where, name) or name in ("name", "value", "errors", "edition", "listing", "__members__")


@needs_the_library
def test_every_name_that_runs_on_a_gpu_only_exists_in_the_real_library() -> None:
    trt = library(TensorRTRTX.edition)
    files = [*(COMPILERS / "tensorrt").glob("*.py"), *(COMPILERS / "tensorrt_rtx").glob("*.py")]
    classic = ("timing.py", "configuration.py")
    names = {**NAMES, "runtime_config": "IRuntimeConfig", "graphs": "CudaGraphStrategy"}
    found: set[tuple[str, str]] = set()
    for path in files:
        if path.name in classic and path.parent.name == "tensorrt":
            continue  # what TensorRT alone is told
        uses = Uses({"classes": {}, "enums": {}}, names)
        uses.visit(ast.parse(path.read_text(encoding="utf-8")))
        found |= uses.found
    assert {(kind, name) for kind, name in found if not exists(trt, kind, name)} == set()
    assert ("IRuntimeConfig", "cuda_graph_strategy") in found
    assert ("Runtime", "get_engine_validity") in found
