"""Export a workload's live model to torch.export programs and ONNX files. For child processes only."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.processes import stops
from mlflow_ngraph.workloads.base import BATCH, Format, TensorSpec, Workload
from mlflow_ngraph.workloads.baseline import Baseline, OnnxBaseline
from mlflow_ngraph.workloads.behaviour import first_places
from mlflow_ngraph.workloads.materials import ANY_BATCH, Export, Materials, Source

if TYPE_CHECKING:
    import torch

_STEMS: dict[Format, tuple[str, str]] = {"exported": ("model", ".pt2"), "onnx": ("model", ".onnx")}
_INLINE_LIMIT = 1_500_000_000
"""Bytes of weights up to which they go into the ONNX file itself; protobuf ends at 2 GB."""
_EXAMPLE_BATCH = 2
"""Batch size of the example for a dynamic export: torch.export takes sizes of 0 and 1 for constants."""


class Exporter:
    """Adds formats to materials. An exported program serves the ONNX export too."""

    def __init__(self, materials: Materials, baseline: Baseline, workload: Workload, directory: Path) -> None:
        self._materials = materials
        self._baseline = baseline
        self._workload = workload
        self._directory = directory
        self._programs: dict[str, tuple[torch.export.ExportedProgram, float, list[float]]] = {}

    def add(self, kind: Format) -> None:
        """Export a missing format; a failure is recorded with its reason."""
        export = self._materials.formats.get(kind, Export())
        if export.error is not None:
            return
        self._materials.formats[kind] = export
        file = self._workload.onnx_file() if kind == "onnx" else None
        if file is not None:
            self._adopt(export, file)
        elif isinstance(self._baseline, OnnxBaseline):
            export.error = self._baseline.reason
        elif self._materials.behaviour.printed:
            export.error = (
                f"Python reads data as text in {first_places(self._materials.behaviour.printed)}: no graph does"
            )
        elif scripted := _scripted(self._baseline.module):
            export.error = f"{scripted} is a TorchScript module: torch.export takes Python code only"
        elif kind == "onnx" and (numbers := _complex(self._materials.outputs)):
            export.error = f"output {numbers!r} is complex: PyTorch's exporter puts pairs of real numbers in its place"
        else:
            self._export(kind, export)
        self._materials.write(self._directory)

    def _adopt(self, export: Export, file: Path) -> None:
        """Use the workload's own ONNX file."""
        only = self._materials.info.fixed_batch
        export.dynamic = only is None
        export.static_because = None if only is None else f"the file has a fixed batch size of {only}"
        key = ANY_BATCH if only is None else str(only)
        export.files[key] = file.relative_to(self._directory).as_posix()
        export.seconds[key] = 0.0

    def _export(self, kind: Format, export: Export) -> None:
        only = self._materials.info.fixed_batch
        if only is not None:
            export.dynamic, export.static_because = False, f"the model has a fixed batch size of {only}"
        if export.dynamic and ANY_BATCH not in export.files:
            error = self._other_for_one() or self._try(kind, export, ANY_BATCH)
            if error is not None:
                export.dynamic, export.static_because = False, error
        if not export.dynamic:
            for batch in self._materials.batch_sizes:
                if str(batch) not in export.files:
                    export.error = export.error or self._try(kind, export, str(batch))

    def _other_for_one(self) -> str | None:
        """Reason why a program for several samples is none for one, such as ``squeeze`` without an axis."""
        if 1 not in self._materials.batch_sizes:
            return None
        for spec, array in zip(self._materials.outputs, Source(self._directory).reference(1), strict=True):
            if array.ndim != len(spec.shape):
                return f"output {spec.name!r} has {array.ndim} axes at batch 1, and {len(spec.shape)} at others"
        return None

    def _try(self, kind: Format, export: Export, key: str) -> str | None:
        """Export for one key, or return the reason for failure in one line."""
        stem, suffix = _STEMS[kind]
        path = self._directory / (f"{stem}{suffix}" if key == ANY_BATCH else f"{stem}-b{key}{suffix}")
        try:
            program, seconds, stopped_before = self._program(key)
            start = time.perf_counter()
            with stops.watched() as stopped:
                if kind == "exported":
                    save_program(program, path)
                else:
                    save_onnx(program, self._materials.info.inputs, self._materials.outputs, path)
            export.seconds[key] = seconds + time.perf_counter() - start
            export.stopped_s[key] = stopped_before + stopped
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - exporters raise anything, and one must not stop the others
            if "gradients" in self._materials.wrapped:
                return "the model computes gradients itself, which torch.export does not follow"
            return one_line(error)
        export.files[key] = path.name
        return None

    def _program(self, key: str) -> tuple[torch.export.ExportedProgram, float, list[float]]:
        """Program for a key, the duration of its export in seconds, and how long the process stood still within it."""
        if key not in self._programs:
            assert not isinstance(self._baseline, OnnxBaseline)
            start = time.perf_counter()
            batch = None if key == ANY_BATCH else int(key)
            with stops.watched() as stopped:
                program = to_program(self._baseline.module, self._materials.info.inputs, batch)
                _require_evaluation(program)
            self._programs[key] = program, time.perf_counter() - start, stopped
        return self._programs[key]


def _scripted(module: torch.nn.Module) -> str:
    """Name of the first scripted part; empty where there is none."""
    import torch

    found = (name or "the model" for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule))
    return next(found, "")


def _complex(outputs: Sequence[TensorSpec]) -> str:
    """Name of the first complex output; empty where there is none."""
    return next((spec.name for spec in outputs if np.dtype(spec.dtype).kind == "c"), "")


def to_program(
    module: torch.nn.Module, inputs: Sequence[TensorSpec], batch: int | None
) -> torch.export.ExportedProgram:
    """Export a module for one batch size, or for all with None."""
    from torch.export import Dim, ShapesCollection, export

    from mlflow_ngraph.workloads.calling import tensors

    rng = np.random.default_rng(0)
    example = tuple(tensors([spec.random(batch or _EXAMPLE_BATCH, rng) for spec in inputs]))
    if batch is not None:
        return export(module, example)
    dimension = Dim(BATCH, min=1)
    shapes = ShapesCollection()
    for spec, tensor in zip(inputs, example, strict=True):
        shapes[tensor] = {axis: dimension for axis, size in enumerate(spec.shape) if size == BATCH}
    return export(module, example, dynamic_shapes=shapes)


def _require_evaluation(program: torch.export.ExportedProgram) -> None:
    from mlflow_ngraph.workloads.evaluation import training_operations

    operations = training_operations(program)
    if operations:
        raise UnsupportedError(f"the model computes as in training: {operations[0]}")


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a program atomically."""
    import torch

    temporary = path.with_name(f"partial-{path.name}")  # torch insists on the suffix
    torch.export.save(program, temporary)
    temporary.replace(path)


def save_onnx(
    program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], path: Path
) -> None:
    """Convert a program to ONNX with the names of its inputs and outputs, and write it atomically."""
    import torch

    with _adapted(program):
        converted = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[spec.name for spec in inputs],
            output_names=[spec.name for spec in outputs],
            verbose=False,
        )
    assert converted is not None
    if any(BATCH in spec.shape for spec in inputs):
        _rename_axis(converted, _symbol(converted.model.graph.inputs, inputs), BATCH)
    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    partial = path.with_name("partial-onnx")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    converted.save(partial / path.name, external_data=size > _INLINE_LIMIT)
    for file in sorted(partial.iterdir(), key=lambda file: file.name == path.name):
        file.replace(path.parent / file.name)  # the external data first, the file that names it last
    partial.rmdir()


def _rename_axis(converted: torch.onnx.ONNXProgram, old: str, new: str) -> None:
    if hasattr(converted, "rename_axes"):
        converted.rename_axes({old: new})
        return
    # Torch 2.8 to 2.10 can do it, and do not say so in public.
    from torch.onnx._internal.exporter import _ir_passes

    _ir_passes.rename_axis(converted.model, {old: new})


@contextmanager
def _adapted(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Adapt a program within the block to the limits of the ONNX exporter.

    The exporter drops requests for contiguous tensors, because fused attention already returns such; the decomposed
    attention does not, and views of its output fail. So contiguous tensors are copied. The exporter also requires the
    axes of a reduction to be listed.
    """
    import torch

    aten = torch.ops.aten
    before = []
    for node in program.graph.nodes:
        as_it_was = node, node.target, node.args, node.kwargs
        if node.target is aten.contiguous.default and not node.kwargs:
            node.target, node.kwargs = aten.clone.default, {"memory_format": torch.contiguous_format}
        elif node.target in (aten.amax.default, aten.amin.default) and not any(node.args[1:2]):
            node.args = node.args[0], list(range(node.args[0].meta["val"].dim())), *node.args[2:]
        else:
            continue
        before.append(as_it_was)
    program.graph_module.recompile()
    try:
        yield
    finally:
        for node, target, args, kwargs in before:
            node.target, node.args, node.kwargs = target, args, kwargs
        program.graph_module.recompile()


def _symbol(nodes: Sequence[Any], inputs: Sequence[TensorSpec]) -> str:
    """Exporter's name of the batch axis."""
    return next(
        str(node.shape[spec.shape.index(BATCH)])
        for node, spec in zip(nodes, inputs, strict=True)
        if BATCH in spec.shape
    )
