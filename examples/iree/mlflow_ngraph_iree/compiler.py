"""IREE: MLIR down to machine code in one file, run by a small runtime with threads of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil
from mlflow_ngraph.compilers.base import Availability, Build, Compiler, Engine, Flags, Invocation, Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import isa, package
from mlflow_ngraph.compilers.reasons import translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.materials import Source
from numpy.typing import NDArray

ENGINE, FACTS = "engine.vmfb", "facts.json"
NO_OPERATOR = re.compile(r"failed to legalize operation 'torch\.operator'.*?\"onnx\.([\w.]+)\"", re.DOTALL)


class IREEFlags(Flags):
    """Options of IREE."""

    opt_level: Literal["O0", "O1", "O2", "O3"] = "O1"
    """How hard the compiler tries. IREE 3.13 fails on some models from ``O2`` on."""
    target_cpu: str = "host"
    """The processor to generate code for, by LLVM's name; ``host`` is this one with everything that it has."""
    dynamic_batch: bool = False
    """Compile once for every batch size, which the model must allow; else once for each."""


class IREE(Compiler[IREEFlags]):
    """Imports the ONNX file into MLIR, compiles that with ``llvm-cpu``, and runs it on the ``local-task`` device."""

    name = "iree"
    summary = "IREE: MLIR compiled ahead of time for the CPU"
    program = "machine code for the processor"
    flags_type = IREEFlags
    formats = ("onnx",)
    runtime_modules = ("iree.runtime",)
    compile_modules = ("iree.compiler", "iree.compiler.extras.onnx_importer")

    @classmethod
    def availability(cls) -> Availability:
        return package("iree.compiler", "iree-base-compiler", "pip install iree-base-compiler iree-base-runtime")

    def requires(self, target: Target) -> dict[str, str]:
        return {"iree": self.availability().version or "", "isa": self.flags.target_cpu.replace("host", isa())}

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        from iree.compiler import compile_str

        self.check(target)
        batch = None if self.flags.dynamic_batch else batch_sizes[0]
        options = [
            f"--iree-llvmcpu-target-cpu={self.flags.target_cpu}",
            f"--iree-opt-level={self.flags.opt_level}",
            "--iree-scheduling-dump-statistics-format=json",
            f"--iree-scheduling-dump-statistics-file={directory / FACTS}",
        ]
        with translated_errors(self.name, NO_OPERATOR):
            with bench.stage("convert"):
                mlir, nodes = to_mlir(source, batch)
            with bench.stage("compile"):
                compile_str(mlir, output_file=str(directory / ENGINE), target_backends=["llvm-cpu"], extra_args=options)
        with bench.stage("save"):
            facts = json.loads((directory / FACTS).read_text())["stream-aggregate"]["execution"]
            Explanation(nodes, facts["dispatch-count"], facts=facts).write(directory / FACTS)
        build = Build(self.flags.model_dump(), self.requires(target), "onnx")
        EngineSpec.of(self, build, source, batch_sizes, target, {"batch": batch}).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        if EngineSpec.read_for(self, directory, target).facts["batch"] not in (None, batch):
            raise CompileError(f"{directory} holds no engine for batch size {batch}")
        with translated_errors(self.name):
            return _IREEEngine(directory / ENGINE, self.flags.model_dump(), target.threads)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        return Explanation.read(directory / FACTS)


class _IREEEngine(Engine):
    def __init__(self, file: Path, flags: Mapping[str, Any], threads: int | None) -> None:
        from iree import runtime

        self._device, running = start_device(threads)
        module = runtime.VmModule.mmap((config := runtime.Config(device=self._device)).vm_instance, str(file))
        self._main = runtime.SystemContext([module], config).modules[module.name]["main"]
        super().__init__("fp32", {**flags, "threads": running})

    def bind(self, inputs: Sequence[NDArray[Any]]) -> Invocation:
        from iree import runtime

        bound = [runtime.asdevicearray(self._device, array) for array in inputs]
        last: Any = None

        def call() -> None:
            nonlocal last
            last = self._main(*bound)

        def outputs() -> list[NDArray[Any]]:
            return [array.to_host().copy() for array in (last if isinstance(last, tuple) else (last,))]

        return Invocation(call, outputs)


def to_mlir(source: Source, batch: int | None) -> tuple[str, int]:
    """The ONNX graph in MLIR, at one batch size or for all, and the number of its nodes."""
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    model = onnx.load(str(source.onnx(batch)))
    model.graph.name = "main"  # the name of the function to call
    if batch is not None:
        shapes = {spec.name: spec.resolve(batch) for spec in source.inputs}
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
    info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model, data_prop=True))
    module = info.create_module(context=Context()).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    return module.get_asm(), len(model.graph.node)


@cache
def start_device(threads: int | None) -> tuple[Any, int]:
    """The device of this process, and how many threads it computes with: they are started once, with one that waits."""
    from iree import runtime

    if threads is not None:
        runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    before = psutil.Process().num_threads()
    device = runtime.get_device("local-task")
    started = psutil.Process().num_threads() - before - 1
    if started < 1 or threads not in (None, started):
        raise CompileError("iree has another number of threads in this process already: load in a fresh process")
    return device, started
