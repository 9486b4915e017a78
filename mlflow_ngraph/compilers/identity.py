"""The adapter ``identity``, eager PyTorch: runs the live module without compilation; the default baseline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from mlflow_ngraph.compilers.base import Build, Engine, Flags, Occupation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.reasons import translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.torch_adapter import TorchAdapter, TorchFlags
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    import torch

    from mlflow_ngraph.workloads.materials import Source

_MODEL = "model"
"""The folder of an engine that holds the workload's reference, its files and its weights."""

_MOVES = ("aten::clone", "aten::_to_copy", "aten::copy_", "aten::contiguous")
"""Operators that copy a tensor into another layout or element type."""


class IdentityFlags(TorchFlags):
    """Options of eager execution."""

    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Layout of images and convolution weights: NCHW, or NHWC, in which some convolutions are faster."""


class Identity(TorchAdapter[IdentityFlags]):
    """Adapter of eager execution: runs the live module in inference mode."""

    name: ClassVar[str] = "identity"
    summary: ClassVar[str] = "PyTorch eager, the baseline"
    program: ClassVar[str] = "the model's own Python code, as it is installed here"
    flags_type: ClassVar[type[Flags]] = IdentityFlags
    formats: ClassVar[tuple[Format, ...]] = ("module",)
    # Files are linked, nothing is compiled.
    compile_modules: ClassVar[tuple[str, ...] | None] = ()
    needs_module: ClassVar[bool] = True
    shared: ClassVar[bool] = False

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        raise UnsupportedError(f"identity compiles nothing that could be taken to {device}")

    @property
    def occupies(self) -> Occupation:
        return "processor"

    @property
    def expected_compile_s(self) -> float:
        return 1.0

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        with bench.stage("save"):
            _copy_model(source, directory / _MODEL)
        build = Build(self.flags.model_dump(), self.requires(target), "module")
        EngineSpec.of(self, build, source, batch_sizes, target, {}).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        import torch

        from mlflow_ngraph.compilers.torch_runtime import TorchEngine, configure, in_precision
        from mlflow_ngraph.workloads.materials import Source

        self.check(target)
        EngineSpec.read_for(self, directory, target)
        flags = configure(target, cudnn_benchmark=self.flags.cudnn_benchmark)
        with translated_errors(self.name):
            module = in_precision(Source(directory / _MODEL).module(), target.precision)
            layout: torch.memory_format = {
                "contiguous": torch.contiguous_format,
                "channels_last": torch.channels_last,
            }[self.flags.memory_format]
            module = module.to(target.accelerator, memory_format=layout)
        in_force = {**flags, "memory_format": self.flags.memory_format}
        return TorchEngine(module, target, in_force, layout)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.torch_operators import executed_operators

        with closing(self.load(directory, batch, target)) as engine:
            kernels = executed_operators(engine, EngineSpec.read_for(self, directory, target).inputs, batch)
        moves = sum(kernel.operation in _MOVES for kernel in kernels)
        # Eager execution takes the model as it is.
        return Explanation(len(kernels), len(kernels), moves, tuple(kernels))


def _copy_model(source: Source, directory: Path) -> None:
    """Copy materials of the model alone, without exports and arrays."""
    from mlflow_ngraph.workloads.file import linked
    from mlflow_ngraph.workloads.materials import WEIGHTS
    from mlflow_ngraph.workloads.registry import create

    # Fails here, with the reason, if there is no module.
    source.export_seconds("module")
    directory.mkdir()
    materials = source.materials
    create(materials.ref, materials.init).localise(source.directory).localise(directory)
    linked(source.directory / WEIGHTS, directory / WEIGHTS)
    alone = replace(materials, formats={"module": materials.formats["module"]}, batch_sizes=[])
    alone.write(directory)
