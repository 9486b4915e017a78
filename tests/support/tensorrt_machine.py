"""A machine with a GPU and TensorRT, as far as the adapter can see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mlflow_ngraph.compilers.base import Build, Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.devices import probes
from mlflow_ngraph.parity import TOLERANCES, compare
from mlflow_ngraph.workloads.materials import Source
from tests.support.cuda_standin import CudaStandIn
from tests.support.tensorrt_listed import LISTINGS
from tests.support.tensorrt_standin import TensorRTStandIn

ADA = probes.Gpu("NVIDIA GeForce RTX 4070", 12282, "555.42.06", "8.9")
FP32 = Target(accelerator="cuda")


@dataclass
class Machine:
    """A machine with a GPU and TensorRT, as far as the adapter can see."""

    trt: TensorRTStandIn
    cuda: CudaStandIn
    engine: Path

    def compile(
        self, source: Source, batch_sizes: list[int], target: Target = FP32, **flags: Any
    ) -> tuple[Build, Workbench]:
        bench = Workbench(self.engine.with_name("work"))
        return create("tensorrt", flags).compile(source, batch_sizes, target, self.engine, bench), bench

    def outputs(self, source: Source, batch: int, target: Target = FP32, **flags: Any) -> tuple[list[Any], Any]:
        """The outputs of a second call on other memory than the first, and the flags."""
        engine = create("tensorrt", flags).load(self.engine, batch, target)
        invocation = engine.bind(source.example(batch))
        invocation.call()
        invocation.call()
        found = invocation.outputs()
        engine.close()
        assert self.cuda.left() == 0, "something of the GPU was not freed"
        return found, engine.flags


@pytest.fixture(params=LISTINGS)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One for each version of TensorRT."""
    yield from _machine(request.param, tmp_path, monkeypatch)


@pytest.fixture
def newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One with the newest version, for what has nothing to do with versions."""
    yield from _machine(list(LISTINGS)[-1], tmp_path, monkeypatch)


def _machine(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    cuda = CudaStandIn("12.9.2" if version.startswith("10.") else "13.5.0")
    trt = TensorRTStandIn(version, cuda)
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = cuda.module  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), ("tensorrt", trt.module)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda.module)
    monkeypatch.setattr(probes, "gpu", lambda: ADA)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = tmp_path / "engine"
    engine.mkdir()
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)
    yield Machine(trt, cuda, engine)


def assert_parity(found: list[Any], source: Source, batch: int, precision: str = "fp32") -> None:
    reference = source.reference(batch)
    assert [array.dtype for array in found] == [array.dtype for array in reference]
    parity = compare(found, reference)
    assert parity.cosine >= TOLERANCES[precision].cosine
    assert parity.max_rel <= TOLERANCES[precision].max_rel
