"""torch.compile ahead of time: Inductor's C++ kernels in an AOTInductor package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.host import isa, package, with_cpp_compiler
from mlflow_ngraph.compilers.reasons import reported
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source


class TorchCompileFlags(Flags):
    """Options of TorchInductor."""

    dynamic_batch: bool = True
    """Compile once for every batch size, where the model's batch axis is free; else once for each."""
    max_autotune: bool = False
    """Time several kernels for each matrix product and convolution while compiling, and keep the fastest."""
    freezing: bool = False
    """Make the parameters constants, so that they can be folded and packed for oneDNN."""


class TorchCompile(Compiler[TorchCompileFlags]):
    """Compiles the exported program into a package of machine code that needs no model code to load."""

    name: ClassVar[str] = "torch-compile"
    summary: ClassVar[str] = "TorchInductor, compiled ahead of time with AOTInductor"
    flags_type: ClassVar[type[Flags]] = TorchCompileFlags
    formats: ClassVar[tuple[Format, ...]] = ("exported",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "bf16")
    runtime_modules: ClassVar[tuple[str, ...]] = ("torch",)
    compile_modules: ClassVar[tuple[str, ...] | None] = ("torch", "torch._inductor")

    @classmethod
    def availability(cls) -> Availability:
        found = package("torch", "torch", "pip install 'mlflow-ngraph[torch]'")
        return with_cpp_compiler(found, "Inductor generates C++")

    @property
    def expected_compile_s(self) -> float:
        return 25.0

    def requires(self, target: Target) -> dict[str, str]:
        return {"torch": self.availability().version or "", "isa": isa()}

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        from mlflow_ngraph.compilers.torch_runtime import configure

        self.check(target)
        # Inductor writes the number of threads into the code that it generates.
        threads = configure(target)["threads"]
        options = self.flags.model_dump(exclude={"dynamic_batch"})
        dynamic = self.flags.dynamic_batch and source.dynamic("exported")
        for batch in [None] if dynamic else batch_sizes:
            with reported(self.name):
                _package(source, batch, target.precision, directory / _file(batch), options, bench)
        facts: dict[str, FlagValue] = {
            **self.flags.model_dump(),
            "dynamic_batch": dynamic,
            "compiled_threads": threads,
        }
        with bench.stage("save"):
            Saved.of(self.name, source, target, facts).write(directory)
        return Build(facts, self.requires(target), "exported")

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        import torch

        from mlflow_ngraph.compilers.torch_runtime import TorchEngine, configure

        self.check(target)
        saved = Saved.read(directory, self.name, target)
        flags = configure(target)
        path = directory / _file(None if saved.facts["dynamic_batch"] else batch)
        if not path.is_file():
            raise CompileError(f"{directory} holds no engine for batch size {batch}")
        with reported(self.name):
            # What `aoti_load_package` returns, less the import of the compiler, and less the parsing of the
            # package's calling convention at every call.
            loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)  # noqa: SLF001
        run = loader.run

        def call(*tensors: Any) -> object:
            return run(list(tensors))

        in_force = {**flags, **saved.facts, "cpu_isa": loader.get_metadata().get("AOTI_CPU_ISA", "")}
        return TorchEngine(call, target.precision, in_force)


def _file(batch: int | None) -> str:
    return "model.pt2" if batch is None else f"model-b{batch}.pt2"


def _package(
    source: Source, batch: int | None, precision: Precision, path: Path, options: Mapping[str, bool], bench: Workbench
) -> None:
    """Compile the program for a batch size, or for all, into one file."""
    import torch
    from torch._inductor import aoti_compile_and_package

    from mlflow_ngraph.compilers.torch_runtime import in_precision
    from mlflow_ngraph.workloads.exporting import to_program

    file = source.exported(batch)
    with bench.stage("convert"):
        program = torch.export.load(file)
        if precision != "fp32":
            program = to_program(in_precision(program.module(), precision), source.inputs, batch)
    with bench.stage("compile"), torch.no_grad():
        aoti_compile_and_package(program, package_path=str(path.absolute()), inductor_configs=dict(options))
