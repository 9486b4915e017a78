"""The adapter for NVIDIA TensorRT 10 and 11: engines for one GPU, built from ONNX."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlflow_ngraph.compilers import cuda
from mlflow_ngraph.compilers.accelerator import architecture, require_gpu
from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Mode,
    Occupation,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import package
from mlflow_ngraph.compilers.reasons import reported
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.compilers.tensorrt.flags import TensorRTFlags
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.tensorrt.building import BuildPlan
    from mlflow_ngraph.workloads.materials import Source

_AMPERE = (8, 0)
_IN_FLIGHT = 2
"""Requests in async mode by default: while one computes, the other is started."""


class TensorRT(Compiler[TensorRTFlags]):
    """Builds a strongly typed network: the precision is that of the ONNX model, which is converted for 16 bits."""

    name: ClassVar[str] = "tensorrt"
    summary: ClassVar[str] = "NVIDIA TensorRT 10 and 11"
    program: ClassVar[str] = "machine code for the GPU"
    flags_type: ClassVar[type[Flags]] = TensorRTFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16", "fp16")
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")
    accelerators: ClassVar[tuple[str, ...]] = ("cuda",)
    runtime_modules: ClassVar[tuple[str, ...]] = ("tensorrt", "cuda.bindings.runtime")
    compile_modules: ClassVar[tuple[str, ...] | None] = ("tensorrt", "cuda.bindings.runtime", "onnx")

    @classmethod
    def availability(cls) -> Availability:
        found = package("tensorrt", "tensorrt", "pip install tensorrt (on a Jetson it comes with JetPack)")
        bindings = cuda.bindings()
        obstacle = probes.gpu_obstacle()
        # All of it at once: each takes long to mend.
        lacks = {
            found.reason: found.hint,
            bindings.reason: bindings.hint,
            f"no NVIDIA GPU: {obstacle}" if obstacle else "": "install the driver of an NVIDIA GPU",
        }
        lacks.pop("", None)
        return Availability(not lacks, found.version, "; ".join(lacks), "; ".join(lacks.values()))

    @property
    def occupies(self) -> Occupation:
        return "machine"  # the builder chooses kernels by timing them

    @property
    def expected_compile_s(self) -> float:
        return 60.0

    @property
    def expected_slowdown(self) -> float:
        return 0.5

    def requires(self, target: Target) -> dict[str, str]:
        return {
            # Also for version-compatible engines: an older version does not load those of a newer one.
            "tensorrt": package("tensorrt", "tensorrt", "").version or "",
            "platform": platform.machine(),
            "gpu": self._gpu_requirement(probes.gpu()),
        }

    def _gpu_requirement(self, gpu: probes.Gpu | None) -> str:
        """Equal on all GPUs that load each other's engines."""
        if gpu is None:
            return "none"
        since_ampere = architecture(gpu) >= _AMPERE
        if self.flags.hardware_compatibility == "ampere_plus" and since_ampere:
            return "compute capability 8.0 or later"
        if self.flags.hardware_compatibility == "same_compute_capability":
            return f"compute capability {gpu.compute_capability}"
        return f"{gpu.name}, compute capability {gpu.compute_capability}"

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def check(self, target: Target) -> None:
        super().check(target)
        require_gpu(self.name, target)

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        shared = len(batch_sizes) > 1 and source.dynamic("onnx")
        in_force: dict[str, FlagValue] = {}
        with reported(self.name):
            from mlflow_ngraph.compilers.tensorrt.building import build

            for group in [tuple(batch_sizes)] if shared else [(batch,) for batch in batch_sizes]:
                file = source.onnx(None if source.dynamic("onnx") else group[0])
                plan = build(file, source.inputs, group, self.flags, target, bench)
                with bench.stage("save"):
                    _write(directory, None if shared else group[0], plan)
                in_force.update(plan.flags)
        facts: dict[str, FlagValue] = {
            **self.flags.model_dump(),
            **in_force,
            "dynamic_batch": shared,
            "requests": self._requests(target),
        }
        with bench.stage("save"):
            Saved.of(self.name, source, target, facts).write(directory)
        return Build(facts, self.requires(target), "onnx")

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = Saved.read(directory, self.name, target)
        with reported(self.name):
            from mlflow_ngraph.compilers.tensorrt.running import Deserialized, TensorRTEngine

            plan, said = _find(directory, batch, saved)
            loaded = Deserialized(plan, version_compatible=bool(saved.facts["version_compatible"]))
            flags = {
                **saved.facts,
                "cuda_graph": self.flags.cuda_graph,
                "requests": self._requests(target),
                "tensorrt_version": loaded.trt.__version__,
                "gpu": require_gpu(self.name, target).name,
                "compute_capability": cuda.compute_capability(),
                "layers": int(loaded.engine.num_layers),
                "transfers": target.transfers,
                # The kernels are started by the one thread that calls.
                "threads": 1,
            }
            return TensorRTEngine(loaded, saved, said["outputs"], batch, target, flags)

    def _requests(self, target: Target) -> int:
        """Inferences in flight."""
        return 1 if target.mode == "sync" else self.flags.requests or _IN_FLIGHT

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        self.check(target)
        saved = Saved.read(directory, self.name, target)
        with reported(self.name):
            from mlflow_ngraph.compilers.tensorrt.inspection import kernels, layout_changes
            from mlflow_ngraph.compilers.tensorrt.running import Deserialized

            plan, said = _find(directory, batch, saved)
            loaded = Deserialized(plan, version_compatible=bool(saved.facts["version_compatible"]))
            try:
                text = _inspect(loaded, saved, batch)
            finally:
                loaded.close()
            (directory / f"layers-b{batch}.json").write_text(text, encoding="utf-8")
            information = json.loads(text)
        found = kernels(information)
        return Explanation(
            nodes_before=said["nodes"],
            nodes_after=len(found),
            layout_changes=layout_changes(found),
            kernels=found,
            facts={"tensorrt_version": str(saved.facts["tensorrt_version"]), "plan_bytes": plan.stat().st_size},
        )


def _inspect(loaded: Any, saved: Saved, batch: int) -> str:
    """TensorRT's own description of the engine, with the shapes of a batch size."""
    trt, engine = loaded.trt, loaded.engine
    context = loaded.context()
    for spec in saved.inputs:
        context.set_input_shape(spec.name, spec.resolve(batch))
    inspector = engine.create_engine_inspector()
    # Formats of an engine with a free batch size are not told without one.
    inspector.execution_context = context
    text: str = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return text


def _write(directory: Path, batch: int | None, plan: BuildPlan) -> None:
    path = directory / _file(batch)
    path.write_bytes(plan.serialized)
    said = {"outputs": list(plan.outputs), "nodes": plan.nodes}
    path.with_suffix(".json").write_text(json.dumps(said, indent=1), encoding="utf-8")


def _find(directory: Path, batch: int, saved: Saved) -> tuple[Path, Mapping[str, Any]]:
    """The serialised engine for a batch size, and what lies beside it."""
    path = directory / _file(None if saved.facts["dynamic_batch"] else batch)
    if not path.is_file():
        raise CompileError(f"{directory} holds no engine for batch size {batch}")
    said: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return path, said


def _file(batch: int | None) -> str:
    return "model.plan" if batch is None else f"model-b{batch}.plan"
