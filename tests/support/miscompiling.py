"""A compiler that computes one operator wrongly, or a sequence of two where it may fuse them: what a real miscompilation does."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from mlflow_ngraph.compilers.base import Build, Flags, Target, Workbench
from mlflow_ngraph.compilers.onnxruntime.adapter import OnnxRuntime
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags
from mlflow_ngraph.workloads.materials import Source


class MiscompilerFlags(OnnxRuntimeFlags):
    """What is computed wrongly."""

    operator: str = "Relu"
    """Every one of it is off by a hundredth."""
    after: str = ""
    """Only where it follows this one and nobody else sees what is between them."""
    inside: bool = False
    """Only where its output is none of the model's."""
    crashes_at: int = 0
    """A model of so many nodes ends the process."""


class Miscompiler(OnnxRuntime):
    """ONNX Runtime, wrong as told."""

    name: ClassVar[str] = "miscompiler"
    summary: ClassVar[str] = "ONNX Runtime, with one operator wrong"
    flags_type: ClassVar[type[Flags]] = MiscompilerFlags

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        flags = self.flags
        assert isinstance(flags, MiscompilerFlags)
        return super().compile(_Wrong(source.directory, flags), batch_sizes, target, directory, bench)


class _Wrong(Source):
    """A prepared workload with another graph than the one that it was prepared with."""

    def __init__(self, directory: Path, flags: MiscompilerFlags) -> None:
        super().__init__(directory)
        self._flags = flags

    def onnx(self, batch: int | None = None) -> Path:
        import onnx
        from onnx import helper, numpy_helper

        path = super().onnx(batch)
        model, flags = onnx.load(str(path)), self._flags
        graph, seen = model.graph, {value.name for value in model.graph.output}
        if len(graph.node) == flags.crashes_at:
            os.kill(os.getpid(), signal.SIGSEGV)
        producers = {name: node for node in graph.node for name in node.output}
        nodes = list(graph.node)
        del graph.node[:]
        graph.initializer.append(numpy_helper.from_array(np.float32(1.01), "off"))
        for node in nodes:
            graph.node.append(node)
            before = [producers[name].op_type for name in node.input if name in producers and name not in seen]
            name = node.output[0]
            fused = (not flags.after or flags.after in before) and not (flags.inside and name in seen)
            if node.op_type == flags.operator and fused:
                graph.node[-1].output[0] = f"{name}_right"
                graph.node.append(helper.make_node("Mul", [f"{name}_right", "off"], [name]))
        wrong = path.with_name(f"wrong-{path.name}")
        onnx.save(model, str(wrong))
        return wrong
