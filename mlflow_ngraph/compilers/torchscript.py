"""The adapter for TorchScript: a traced or scripted graph, frozen, in PyTorch's own interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from mlflow_ngraph.compilers.base import Build, Engine, Flags, FlagValue, Occupation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.reasons import errors_as_limits, translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.torch_adapter import TorchAdapter, TorchFlags, same_accelerator
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import Format
from mlflow_ngraph.workloads.behaviour import first_places

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

FILE = "model.pt"


class TorchScriptFlags(TorchFlags):
    """Options of TorchScript."""

    method: Literal["trace", "script"] = "trace"
    """``trace`` records one run at the engine's batch size; ``script`` compiles the Python code, control flow included. A
    model whose Python code looks at the data cannot be traced: it is scripted, and the flag in force says so."""
    freeze: bool = True
    """Make the parameters constants of the graph, so that it can be folded and fused."""
    optimize_for_inference: bool = False
    """Rewrite the loaded graph for oneDNN. Done at load time: what it makes cannot be saved. Needs ``freeze``."""

    @model_validator(mode="after")
    def _needs_freezing(self) -> TorchScriptFlags:
        if self.optimize_for_inference and not self.freeze:
            raise ValueError("optimize_for_inference needs freeze: true")
        return self


class TorchScript(TorchAdapter[TorchScriptFlags]):
    """Traces the live module for each batch size, freezes it, and saves it as one file."""

    name: ClassVar[str] = "torchscript"
    summary: ClassVar[str] = "TorchScript: a traced and frozen graph on PyTorch's interpreter"
    program: ClassVar[str] = "a TorchScript program"
    flags_type: ClassVar[type[Flags]] = TorchScriptFlags
    formats: ClassVar[tuple[Format, ...]] = ("module",)

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        if target.accelerator != "cpu":
            raise UnsupportedError(
                f"a trace is made on the GPU that runs it: torchscript cannot compile here for {device}"
            )

    @property
    def occupies(self) -> Occupation:
        return "processor"

    @property
    def expected_compile_s(self) -> float:
        return 2.0

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        import torch

        from mlflow_ngraph.compilers.torch_runtime import configure
        from mlflow_ngraph.compilers.torchscript_graph import executed

        self.check(target)
        (batch,) = batch_sizes
        configure(target, cudnn_benchmark=self.flags.cudnn_benchmark)
        module = source.module().to(target.accelerator)
        # A trace contains the device that it was made on.
        method = self._method(source)
        facts: dict[str, FlagValue] = {"accelerator": target.accelerator, "method": method}
        with translated_errors(self.name), _quiet():
            with bench.stage("compile"), errors_as_limits(self.name):
                scripted = self._script(module, source, batch, target, method)
                before = scripted.inlined_graph
                if self.flags.freeze:
                    scripted = torch.jit.freeze(scripted)
            with bench.stage("save"), errors_as_limits(self.name):
                scripted.save(str(directory / FILE))
            facts["operators"] = len(executed(before))
        build = Build({**self.flags.model_dump(), "method": method}, self.requires(target), "module")
        EngineSpec.of(self, build, source, batch_sizes, target, facts).write(directory)
        return build

    def _method(self, source: Source) -> Literal["trace", "script"]:
        """Choose tracing or scripting: a trace repeats Python's control flow of one input for all."""
        behaviour = source.materials.behaviour
        return "script" if behaviour.reads or behaviour.unfollowed else self.flags.method

    def _script(self, module: Any, source: Source, batch: int, target: Target, method: str) -> Any:
        from mlflow_ngraph.compilers.torch_runtime import in_precision
        from mlflow_ngraph.workloads.calling import tensors

        example = tuple(tensors(source.example(batch), target.accelerator))
        if method == "script":
            if source.materials.behaviour.printed:
                # Scripted code prints tensors in another way.
                places = first_places(source.materials.behaviour.printed)
                raise UnsupportedError(f"torchscript cannot compile it: Python reads data as text in {places}")
            scripted = self._scripted(module, source)
            if target.precision in ("bf16", "fp16"):
                # Tracing the cast around it keeps the control flow of the scripted module.
                scripted = _trace(in_precision(scripted, target.precision), example)
        else:
            scripted = _trace(in_precision(module, target.precision), example)
        return scripted.eval()

    def _scripted(self, module: Any, source: Source) -> Any:
        """Script the module with its control flow; an error names the lines that forbid tracing."""
        import torch

        try:
            return torch.jit.script(module)
        except Exception as error:
            if self.flags.method == "script":
                raise
            behaviour = source.materials.behaviour
            why = (
                f"Python looks at the data in {first_places(behaviour.reads)}"
                if behaviour.reads
                else f"whether Python looks at the data cannot be told ({behaviour.unfollowed})"
            )
            raise UnsupportedError(f"torchscript cannot trace it: {why}; nor script it: {one_line(error)}") from error

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        import torch

        from mlflow_ngraph.compilers.torch_runtime import TorchEngine, configure

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        same_accelerator(self.name, saved.facts, target)
        flags = configure(target, cudnn_benchmark=self.flags.cudnn_benchmark)
        with translated_errors(self.name), _quiet():
            module = torch.jit.load(str(directory / FILE), map_location=target.accelerator).eval()
            if self.flags.optimize_for_inference:
                module = torch.jit.optimize_for_inference(module)
        return TorchEngine(module, target, {**self.flags.model_dump(), "method": saved.facts["method"], **flags})

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        import torch

        from mlflow_ngraph.compilers.torchscript_graph import describe

        saved = EngineSpec.read_for(self, directory, target)
        with translated_errors(self.name), _quiet():
            saved_graph = torch.jit.load(str(directory / FILE), map_location=target.accelerator).inlined_graph
            with closing(self.load(directory, batch, target)) as engine:
                return describe(saved_graph, engine, saved, batch)


def _trace(module: Any, example: tuple[Any, ...]) -> Any:
    import torch

    with torch.no_grad():
        return torch.jit.trace(module, example, check_trace=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the notice that ``torch.jit`` is deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`?torch\.jit\..*deprecated", category=DeprecationWarning)
        yield
