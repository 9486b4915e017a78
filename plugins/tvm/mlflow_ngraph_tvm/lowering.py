"""Lower an ONNX file to kernels, and kernels to machine code. Imports TVM, so import it in the adapter's methods only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx

from mlflow_ngraph.compilers.reasons import errors_as_limits
from mlflow_ngraph.workloads.onnx_file import load_whole
from mlflow_ngraph_tvm.folding import fold_shapes

_TVM = "tvm"
MAIN = "main"
"""The function of a module that is the model."""


def read(path: Path, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Import the model as a Relax module with fixed shapes and its weights as constants."""
    model = fold_shapes(load_whole(path), shapes)
    with errors_as_limits(_TVM), redirect_stdout(StringIO()) as said:
        try:
            return from_onnx(model, shape_dict={name: list(shape) for name, shape in shapes.items()})
        except Exception as error:
            # The operator that cannot be converted is printed, and missing in the exception.
            about = said.getvalue() or _unreadable(model.graph)
            if not about:
                raise
            raise RuntimeError(about) from error


def _unreadable(graph: Any) -> str:
    """Name the first constant that TVM cannot hold, as its importer names an unsupported operator."""
    for constant in graph.initializer:
        try:
            tvm.runtime.tensor(onnx.numpy_helper.to_array(constant))
        except Exception:  # noqa: BLE001 - whatever it is, the conversion has told it
            users = [node.op_type for node in graph.node if constant.name in node.input]
            return f"Error converting operator {next(iter(users), 'Constant')}, with inputs: {constant.name}"
    return ""


def convert_layout(module: Any, target: Any) -> Any:
    """Convert convolutions to NHWC, with layout changes only where other operations require them."""
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
    ]
    with errors_as_limits(_TVM), target:
        return tvm.transform.Sequential(passes)(module)


@dataclass(frozen=True)
class Lowered:
    """A module of kernels without schedules."""

    module: Any
    groups: Mapping[str, tuple[str, ...]]
    """Operations of each kernel that fuses several, by the name that the kernel had when they were fused."""


def lower(module: Any, target: Any, *, prepack: bool) -> Lowered:
    """Fuse operations into kernels without schedules.

    With ``prepack`` constant weights are marked, so that schedules may choose a layout for them.
    """
    transform = relax.transform
    fusing = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
    ]
    with errors_as_limits(_TVM), target:
        module = tvm.transform.Sequential(fusing)(module)
        groups = {name: calls(function) for name, function in _functions(module) if name != MAIN}
        module = transform.FuseTIR()(module)
        if prepack:
            module = transform.AttachAttrLayoutFreeBuffers()(module)
    return Lowered(module, groups)


def operations(module: Any) -> int:
    """Operations of an imported model."""
    return sum(len(_calls(function)) for _, function in _functions(module))


def calls(function: Any) -> tuple[str, ...]:
    """Kernels that a function of a lowered module calls, in order."""
    return tuple(str(call.args[0].name_hint) for call in _calls(function) if call.op == tvm.ir.Op.get("relax.call_tir"))


def _functions(module: Any) -> list[tuple[str, Any]]:
    items = module.functions_items()
    return [(str(name.name_hint), function) for name, function in items if isinstance(function, relax.Function)]


def _calls(function: Any) -> list[Any]:
    nodes: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            nodes.append(node)

    relax.analysis.post_order_visit(function.body, visit)
    return nodes


def scheduled(module: Any, target: Any, database: Any | None, *, prepack: bool) -> Any:
    """Apply a database's best schedules, and on a GPU default ones to all other kernels.

    A kernel without a schedule is correct and slow on a processor, and does not run on a GPU.
    """
    transform = relax.transform
    with errors_as_limits(_TVM), target:
        if database is not None:
            with database:
                module = transform.MetaScheduleApplyDatabase()(module)
        if prepack:
            module = transform.SplitLayoutRewritePreproc()(module)
            module = transform.FoldConstant()(module)
        if target.kind.name == "cuda":
            from tvm.s_tir import dlight

            gpu = dlight.gpu
            rules = gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()
            module = dlight.ApplyDefaultSchedule(*rules)(module)
    return module


def tuned(module: Any) -> list[str]:
    """Kernels of a module whose schedules come from a search."""
    kernels = [(name, function) for name, function in module.functions_items() if isinstance(function, tirx.PrimFunc)]
    return [str(name.name_hint) for name, function in kernels if "tirx.is_scheduled" in function.attrs]


def build(module: Any, target: Any) -> Any:
    """Compile to machine code. TVM's pipeline lowers the rest, and fuses nothing on a processor."""
    with errors_as_limits(_TVM):
        try:
            return tvm.compile(module, target, relax_pipeline=relax.get_pipeline("default_build"))
        except Exception as error:
            kernel = _failing(module, target) if target.kind.name == "llvm" else None
            if kernel is None:
                raise
            raise RuntimeError(f"Error converting operator {kernel}") from error


def _failing(module: Any, target: Any) -> str | None:
    """First kernel of a module without machine code: the code generator does not name it."""
    with target:
        lowered = relax.transform.LegalizeOps()(module)
    for name, kernel in lowered.functions_items():
        if not isinstance(kernel, tirx.PrimFunc):
            continue
        try:
            tirx.build(tvm.IRModule({MAIN: kernel.with_attr("global_symbol", MAIN)}), target)
        except Exception:  # noqa: BLE001 - whatever it is, the compilation has told it
            return str(name.name_hint)
    return None
