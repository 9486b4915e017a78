"""The adapter for torch.compile ahead of time: Inductor's kernels in an AOTInductor package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mlflow_ngraph.compilers.base import Availability, Build, Engine, Flags, FlagValue, Occupation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import isa, with_cpp_compiler
from mlflow_ngraph.compilers.reasons import errors_as_limits, translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.torch_adapter import TorchAdapter, TorchFlags, same_accelerator
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

_OPERATIONS = "operations"
"""The fact that holds how many operations the program has."""


class TorchCompileFlags(TorchFlags):
    """Options of TorchInductor."""

    dynamic_batch: bool = True
    """Compile once for every batch size, where the model's batch axis is free; else once for each."""
    mode: Literal["default", "max-autotune"] = "default"
    """``max-autotune`` times several kernels for each matrix product and convolution while compiling, and keeps the
    fastest; on a GPU it also tunes the kernels that it generates."""
    gemm_backends: Literal["all", "aten"] = "all"
    """Candidates of ``max-autotune`` for matrix products: PyTorch's libraries and Inductor's own templates (C++ on the
    CPU, Triton on a GPU), or the libraries alone."""
    freezing: bool = False
    """Make the parameters constants, so that they can be folded, fused and packed."""
    weight_prepack: bool = True
    """With ``freezing`` on the CPU, pack the weights of convolutions and matrix products for oneDNN."""
    layout_optimization: bool = True
    """Let Inductor choose channels-last for convolutions where it expects them to be faster."""
    simdlen: Literal[256, 512] | None = None
    """Width in bits of the vector instructions in code for the CPU; by default the widest that it has."""


class TorchCompile(TorchAdapter[TorchCompileFlags]):
    """Compiles the exported program into a package of machine code that loads without model code."""

    name: ClassVar[str] = "torch-compile"
    summary: ClassVar[str] = "TorchInductor, compiled ahead of time with AOTInductor"
    program: ClassVar[str] = "a shared library made by AOTInductor"
    flags_type: ClassVar[type[Flags]] = TorchCompileFlags
    formats: ClassVar[tuple[Format, ...]] = ("exported",)
    compile_modules: ClassVar[tuple[str, ...] | None] = ("torch", "torch._inductor")

    @classmethod
    def availability(cls) -> Availability:
        return with_cpp_compiler(super().availability(), "Inductor generates C++")

    @property
    def occupies(self) -> Occupation:
        return "processor" if self.flags.mode == "default" else "machine"

    @property
    def expected_compile_s(self) -> float:
        return 25.0 if self.flags.mode == "default" else 120.0

    def requires(self, target: Target) -> dict[str, str]:
        requirements = {**super().requires(target), "isa": isa()}
        if target.accelerator == "cuda":
            # Kernels are machine code for one architecture.
            gpu = probes.gpu()
            requirements["gpu"] = f"compute capability {gpu.compute_capability}" if gpu else "none"
        return requirements

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        raise UnsupportedError(
            f"AOTInductor generates code for the processor or GPU that it finds: torch-compile cannot compile here for {device}"
        )

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        from mlflow_ngraph.compilers.torch_runtime import configure

        self.check(target)
        # Inductor looks at the number of threads and at TF32 when it generates code.
        state = configure(target, cudnn_benchmark=self.flags.cudnn_benchmark)
        dynamic = self.flags.dynamic_batch and source.dynamic("exported")
        operations = 0
        for batch in [None] if dynamic else batch_sizes:
            with translated_errors(self.name):
                operations = _package(source, batch, target, directory / _file(batch), self._options(target), bench)
        facts: dict[str, FlagValue] = {
            **self._in_force(target),
            "dynamic_batch": dynamic,
            "compiled_threads": state["threads"],
            "accelerator": target.accelerator,
        }
        build = Build({**facts, "cudnn_benchmark": state["cudnn_benchmark"]}, self.requires(target), "exported")
        spec = EngineSpec.of(self, build, source, batch_sizes, target, {**facts, _OPERATIONS: operations})
        with bench.stage("save"):
            spec.write(directory)
        return build

    def _in_force(self, target: Target) -> dict[str, FlagValue]:
        flags, on_cpu = self.flags, target.accelerator == "cpu"
        return {
            "mode": flags.mode,
            "gemm_backends": flags.gemm_backends if flags.mode == "max-autotune" else "aten",
            "freezing": flags.freezing,
            "weight_prepack": flags.weight_prepack and flags.freezing and on_cpu,
            "layout_optimization": flags.layout_optimization,
            "simdlen": flags.simdlen if on_cpu else None,
        }

    def _options(self, target: Target) -> dict[str, Any]:
        tuned = self.flags.mode == "max-autotune"
        options: dict[str, Any] = {
            # What the mode of this name switches on, but for CUDA graphs, which AOTInductor does not have.
            "max_autotune": tuned,
            "coordinate_descent_tuning": tuned,
            "freezing": self.flags.freezing,
            "layout_optimization": self.flags.layout_optimization,
            "cpp.weight_prepack": self.flags.weight_prepack,
        }
        if self.flags.gemm_backends == "aten":
            options["max_autotune_gemm_backends"] = "ATEN"
        if self.flags.simdlen is not None:
            options["cpp.simdlen"] = self.flags.simdlen
        return options

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        from mlflow_ngraph.compilers.torch_package import open_package
        from mlflow_ngraph.compilers.torch_runtime import TorchEngine, configure

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        same_accelerator(self.name, saved.facts, target)
        flags = configure(target, cudnn_benchmark=self.flags.cudnn_benchmark)
        path = _find(directory, batch, saved)
        with translated_errors(self.name):
            loader = open_package(path, target)
        run = loader.run

        def call(*tensors: Any) -> object:
            return run(list(tensors))

        facts = {name: value for name, value in saved.facts.items() if name != _OPERATIONS}
        in_force = {**facts, **flags, "cpu_isa": loader.get_metadata().get("AOTI_CPU_ISA", "")}
        return TorchEngine(call, target, in_force)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.torch_package import describe

        saved = EngineSpec.read_for(self, directory, target)
        with translated_errors(self.name):
            return describe(_find(directory, batch, saved), int(str(saved.facts[_OPERATIONS])))


def _find(directory: Path, batch: int, saved: EngineSpec) -> Path:
    path = directory / _file(None if saved.facts["dynamic_batch"] else batch)
    if not path.is_file():
        raise CompileError(f"{directory} holds no engine for batch size {batch}")
    return path


def _file(batch: int | None) -> str:
    return "model.pt2" if batch is None else f"model-b{batch}.pt2"


def _package(
    source: Source, batch: int | None, target: Target, path: Path, options: Mapping[str, Any], bench: Workbench
) -> int:
    """Compile the program for one or all batch sizes into a file; returns its number of operations."""
    import torch
    from torch._inductor import aoti_compile_and_package
    from torch.export.passes import move_to_device_pass

    from mlflow_ngraph.compilers.torch_package import read_program
    from mlflow_ngraph.compilers.torch_runtime import in_precision
    from mlflow_ngraph.workloads.exporting import to_program

    file = source.exported(batch)
    with bench.stage("convert"):
        program = read_program(file)
        operations: int = sum(node.op == "call_function" for node in program.graph.nodes)
        if target.precision in ("bf16", "fp16"):
            program = to_program(in_precision(program.module(), target.precision), source.inputs, batch)
        if target.accelerator != "cpu":
            program = move_to_device_pass(program, target.accelerator)
    _leave_fold_to_pytorch(program)
    with bench.stage("compile"), errors_as_limits(TorchCompile.name), torch.no_grad():
        aoti_compile_and_package(program, package_path=str(path.absolute()), inductor_configs=dict(options))
    return operations


def _leave_fold_to_pytorch(program: Any) -> None:
    """Let a program call PyTorch's own col2im: Inductor's decomposition overruns its buffer on strided inputs."""
    import torch
    from torch._inductor import decomposition, lowering

    fold = torch.ops.aten.col2im.default
    if any(node.target is fold for node in program.graph.nodes) and fold in decomposition.decompositions:
        del decomposition.decompositions[fold]
        decomposition.fast_random_decomps.cache_clear()
        for known in (fold, torch.ops.aten.col2im):
            lowering.lowerings.pop(known, None)
        # Warnings are for those who extend Inductor; in an environment with CI set they are errors.
        lowering.make_fallback(fold, warn=False)
