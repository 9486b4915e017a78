"""Check that the PyTorch form of an ONNX file computes the file's function. For child processes only.

The baseline judges engines: a wrong one would refuse every right engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph import parity
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.workloads.base import TensorSpec, fixed_batch
from mlflow_ngraph.workloads.baseline import ModuleBaseline, OnnxBaseline
from mlflow_ngraph.workloads.samples import drawn
from mlflow_ngraph.workloads.trial_references import observed
from mlflow_ngraph.workloads.trials import KINDS, draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.parity import Rounding

Arrays = Sequence["NDArray[Any]"]

_BATCH = 2
_EQUAL = parity.Rounding(0.0, 0.0)
"""Difference below which the effect of rounding is not determined, because that takes several runs."""


def other_function(
    module: ModuleBaseline, runtime: OnnxBaseline, inputs: tuple[TensorSpec, ...], given: Arrays | None
) -> str:
    """Describe how the module differs from the file; empty where they agree.

    The module is compared with ONNX Runtime without optimisation. Where they disagree, ONNX's reference evaluator
    decides, output by output: each of both computes some operators wrongly. Where the evaluator cannot run the file,
    the module is refused.
    """
    batch = fixed_batch(inputs) or _BATCH
    example = drawn(inputs, given, batch, np.random.default_rng(0))
    tried = [
        example,
        *(draw(inputs, batch, 0, number, example, given=given)[1] for number in range(len(KINDS))),
    ]
    for arrays in tried:
        problems = _disagreements(module, runtime.run, arrays)
        if not problems:
            continue
        verdict = _disagreements(module, lambda given: _by_definition(runtime.file, given), arrays)
        if verdict is None:
            return f"its PyTorch form and {runtime.name} compute different functions: {next(iter(problems.values()))}"
        for index in problems.keys() & verdict.keys():
            return f"its PyTorch form computes another function than ONNX defines: {verdict[index]}"
    return ""


def _disagreements(module: ModuleBaseline, run: Callable[[Arrays], Arrays], inputs: Arrays) -> dict[int, str] | None:
    """Differences beyond rounding, by output; None where one of both fails."""
    try:
        native, other = module.run(inputs), run(inputs)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - inputs that nobody asked for, or an operator that is not there
        return None
    found = _differences([_EQUAL] * len(native), other, native, native)
    if not found:
        return found
    trial, exact = observed(module, 0, "", inputs, native, [None] * len(native))
    return _differences(trial.rounding, other, native, native if exact is None else exact)


def _differences(rounding: Sequence[Rounding | None], other: Arrays, native: Arrays, truth: Arrays) -> dict[int, str]:
    if len(other) != len(native):
        return dict.fromkeys(range(len(native)), f"{len(native)} outputs, not {len(other)}")
    found = {}
    for index, allowed in enumerate(rounding):
        problem = _difference(allowed, other[index], native[index], truth[index])
        if problem:
            found[index] = f"output {index}: {problem}"
    return found


def _difference(allowed: Rounding | None, other: NDArray[Any], native: NDArray[Any], truth: NDArray[Any]) -> str | None:
    if other.dtype != native.dtype:
        return f"{native.dtype}, not {other.dtype}"
    try:
        error = parity.errors(other, truth, native)
    except IncomparableError as different:
        return one_line(different)
    return parity.beyond(error, allowed) if allowed is not None and allowed.tells else None


def _by_definition(file: Path, inputs: Arrays) -> list[NDArray[Any]]:
    """Outputs of ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    from mlflow_ngraph.workloads.onnx_file import load_whole

    evaluator = ReferenceEvaluator(load_whole(file))
    outputs = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
    return [np.asarray(output) for output in outputs]
