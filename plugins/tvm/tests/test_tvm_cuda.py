"""TVM for GPUs, as far as it goes without one: code is generated, candidates are built, and nothing is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.probes import Gpu
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_testing.steps import in_fresh_process
from tests.support.installed import needs

pytestmark = [
    needs("tvm"),
    pytest.mark.skipif(bool(probes.gpus()), reason="these are for machines without a GPU"),
]

GPU = Gpu(name="A GPU", memory_mib=16384, driver="550.54", compute_capability="8.9")
BATCH = 3


def lowered(materials: Path) -> tuple[Any, Any]:
    """The kernels of the small CNN and the target."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    import tvm

    from mlflow_ngraph_tvm import lowering, targets

    source = Source(materials)
    target = tvm.target.Target(targets.gpu(GPU, targets.host("native", 2)))
    module = lowering.read(source.onnx(BATCH), {spec.name: spec.resolve(BATCH) for spec in source.inputs})
    return lowering.lower(module, target, prepack=False).module, target


def generate(materials: Path) -> tuple[list[str], str, str]:
    """The kernels of the engine, their CUDA source, and the architecture."""
    module, target = lowered(materials)
    from mlflow_ngraph_tvm import kernels, lowering

    executable = lowering.build(lowering.scheduled(module, target, None, prepack=False), target)
    (device,) = [imported for host in executable.mod.imports for imported in host.imports]
    return kernels.called(executable.as_text()), device.inspect_source("cuda"), str(target.attrs["arch"])


def search(materials: Path, work: Path) -> tuple[int, list[str]]:
    """Candidates that were built for the first convolution, and why they could not be measured."""
    module, target = lowered(materials)
    from mlflow_ngraph_tvm import targets
    from mlflow_ngraph_tvm.flags import TVMFlags
    from mlflow_ngraph_tvm.pool import Pool
    from mlflow_ngraph_tvm.records import Records
    from mlflow_ngraph_tvm.tuning import Search

    targets.register_intrinsics()
    flags = TVMFlags(trials=3, candidates=3, population=8, generations=0, cost_model="random")
    told: list[str] = []
    found = Search(module, target, flags, Records(work / "tuning"), 2, told.append)
    with Pool(work / "pool", 2, 1, 120.0) as pool:
        found.run(pool)
    assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules
    return found.trials, [line for line in told if "candidate" in line]


@pytest.mark.usefixtures("compilers")
def test_default_schedules_give_kernels_for_the_gpu(prepared: Path) -> None:
    names, source, arch = in_fresh_process(generate, prepared / "cnn")
    assert arch == "sm_89"
    assert len(names) >= 3
    for name in names:
        assert f"{name}_kernel" in source
    assert source.count("__global__") >= len(names)
    assert "threadIdx.x" in source


@pytest.mark.usefixtures("compilers")
def test_candidates_of_a_search_are_built_and_only_the_gpu_is_missing(prepared: Path, tmp_path: Path) -> None:
    trials, reasons = in_fresh_process(search, prepared / "cnn", tmp_path)
    assert trials == 3
    assert len(reasons) == 3
    for reason in reasons:
        assert "measuring a candidate" in reason
        assert "cuda is not enabled" in reason


def refuse(materials: Path, work: Path) -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]
    compiler = create("tvm")
    target = Target(threads=1, accelerator="cuda")
    work.mkdir()
    compiler.compile(Source(materials), [BATCH], target, work, Workbench(work / "work"))


@pytest.mark.usefixtures("compilers")
def test_without_a_driver_the_gpu_is_what_is_missing(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="nvidia-smi"):
        in_fresh_process(refuse, prepared / "cnn", tmp_path / "engine")


@pytest.mark.usefixtures("compilers")
def test_a_gpu_that_tvm_does_not_find_is_refused_before_any_work(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'NVIDIA Test, 16384, 550.54, 8.9'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    with pytest.raises(UnsupportedError, match=r"does not find NVIDIA Test.*libcuda"):
        in_fresh_process(refuse, prepared / "cnn", tmp_path / "engine")


def test_what_an_engine_needs_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gpus", lambda: (GPU,))
    monkeypatch.setattr(probes, "gpu", lambda: GPU)
    needs = create("tvm").requires(Target(accelerator="cuda"))
    assert needs["gpu"] == "8.9"
    assert set(needs) > set(create("tvm").requires(Target()))
