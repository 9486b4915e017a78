"""Common base of the adapters of TensorRT and TensorRT for RTX: engines from ONNX, one for each kind of GPU."""

from __future__ import annotations

import json
import platform
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mlflow_ngraph.compilers import cuda
from mlflow_ngraph.compilers.accelerator import require_gpu
from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    FlagValue,
    Mode,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import package
from mlflow_ngraph.compilers.reasons import translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.tensorrt.flags import SharedFlags
from mlflow_ngraph.compilers.tensorrt.library import Edition
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.tensorrt.building import BuildPlan, Configuration
    from mlflow_ngraph.compilers.tensorrt.running import Deserialized
    from mlflow_ngraph.workloads.materials import Source

LISTED = ".layers.txt"
"""The suffix of the file, beside an engine, in which its builder lists the layers."""
AMPERE = (8, 0)
SINCE_AMPERE = "compute capability 8.0 or later"
"""Requirement of an engine for all GPUs since Ampere."""
NO_GPU = "none"
_IN_FLIGHT = 2
"""Requests in async mode by default: while one computes, the other is started."""

F = TypeVar("F", bound=SharedFlags)


class TensorRTFamily(Compiler[F]):
    """Builds a strongly typed network in the precision of the ONNX model, which is converted for 16 bits."""

    edition: ClassVar[Edition]
    program: ClassVar[str] = "machine code for the GPU"
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16", "fp16")
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")
    accelerators: ClassVar[tuple[str, ...]] = ("cuda",)
    threaded: ClassVar[bool] = False

    @classmethod
    def building(cls) -> Availability:
        """Check that the library itself is installed."""
        return package(cls.edition.modules[-1], cls.edition.distribution, cls.edition.install)

    @classmethod
    def availability(cls) -> Availability:
        library, bindings, obstacle = cls.building(), cuda.bindings(), probes.gpu_obstacle()
        # All of it at once: each takes long to mend.
        lacks = {
            library.reason: library.hint,
            bindings.reason: bindings.hint,
            f"no NVIDIA GPU: {obstacle}" if obstacle else "": "install the driver of an NVIDIA GPU",
        }
        lacks.pop("", None)
        return Availability(not lacks, library.version, "; ".join(lacks), "; ".join(lacks.values()))

    @property
    def expected_slowdown(self) -> float:
        return 0.5

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def check(self, target: Target) -> None:
        super().check(target)
        if not target.build_for:
            require_gpu(self.name, target)

    def requires(self, target: Target) -> dict[str, str]:
        return {
            # Also for version-compatible engines: an older version does not load those of a newer one.
            self.name: self.building().version or "",
            "platform": platform.machine(),
            "gpu": self._required_gpu(target),
        }

    @abstractmethod
    def _required_gpu(self, target: Target) -> str:
        """GPU requirement, equal on all GPUs that load each other's engines."""

    @abstractmethod
    def _configuration(self, target: Target) -> Configuration:
        """Builder settings of this edition."""

    @abstractmethod
    def _deserialized(self, plan: Path, saved: EngineSpec) -> Deserialized:
        """Load an engine from disk."""

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        shared = len(batch_sizes) > 1 and source.dynamic("onnx")
        in_force: dict[str, FlagValue] = {}
        with translated_errors(self.name):
            from mlflow_ngraph.compilers.tensorrt.building import build

            for group in [tuple(batch_sizes)] if shared else [(batch,) for batch in batch_sizes]:
                file = source.onnx(None if source.dynamic("onnx") else group[0])
                configuration = self._configuration(target)
                plan = build(self.edition, configuration, file, source.inputs, group, target, bench)
                with bench.stage("save"):
                    _write(directory, None if shared else group[0], plan)
                in_force.update(plan.flags)
        facts: dict[str, FlagValue] = {
            **self.flags.model_dump(),
            **in_force,
            "dynamic_batch": shared,
            "requests": self._requests(target),
        }
        made = Build(facts, self.requires(target), "onnx")
        EngineSpec.of(self, made, source, batch_sizes, target, facts).write(directory)
        return made

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = self._saved(directory, target)
        with translated_errors(self.name):
            from mlflow_ngraph.compilers.tensorrt.running import TensorRTEngine

            plan, said = find(directory, batch, saved)
            loaded = self._deserialized(plan, saved)
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

    def _saved(self, directory: Path, target: Target) -> EngineSpec:
        """Read the specification of an engine that this machine can load.

        Raises `UnsupportedError` for another device: NVIDIA's runtime may end the process.
        """
        saved = EngineSpec.read_for(self, directory, target)
        if target.build_for:
            raise UnsupportedError(f"{self.name} loads an engine for {target.build_for} there alone, not here")
        return saved

    def _requests(self, target: Target) -> int:
        return 1 if target.mode == "sync" else self.flags.requests or _IN_FLIGHT

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        self.check(target)
        saved = self._saved(directory, target)
        with translated_errors(self.name):
            from mlflow_ngraph.compilers.tensorrt.inspection import kernels, layout_changes

            plan, said = find(directory, batch, saved)
            with closing(self._deserialized(plan, saved)) as loaded:
                text = _inspect(loaded, saved, batch)
            (directory / f"layers-b{batch}.json").write_text(text, encoding="utf-8")
            information = json.loads(text)
        layers = kernels(information)
        return Explanation(
            nodes_before=said["nodes"],
            nodes_after=len(layers),
            layout_changes=layout_changes(layers),
            kernels=layers,
            facts=plan_facts(plan, saved),
        )


def _inspect(loaded: Any, saved: EngineSpec, batch: int) -> str:
    """TensorRT's own description of the engine at a batch size."""
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
    if plan.listing:
        path.with_suffix(LISTED).write_text(plan.listing, encoding="utf-8")


def plan_facts(plan: Path, saved: EngineSpec) -> dict[str, str | int | float | bool]:
    """Facts of a serialised engine for explanations."""
    return {"tensorrt_version": str(saved.facts["tensorrt_version"]), "plan_bytes": plan.stat().st_size}


def find(directory: Path, batch: int, saved: EngineSpec) -> tuple[Path, Mapping[str, Any]]:
    """The serialised engine for a batch size, and its files."""
    path = directory / _file(None if saved.facts["dynamic_batch"] else batch)
    if not path.is_file():
        raise CompileError(f"{directory} holds no engine for batch size {batch}")
    said: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return path, said


def _file(batch: int | None) -> str:
    return "model.plan" if batch is None else f"model-b{batch}.plan"
