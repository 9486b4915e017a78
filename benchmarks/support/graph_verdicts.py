"""What a study would say of the engines of an ONNX graph, by the package's own parts, in one process that imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mlflow_ngraph import parity
from mlflow_ngraph.compilers.base import Engine, Target, Workbench
from mlflow_ngraph.compilers.registry import create as compiler_of
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CellError, IncomparableError, NGraphError
from mlflow_ngraph.execute.verifying import Verification, check_timed_inputs, verify
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

SECONDS = 2.0
"""For the trials of an engine; a study gives it more, and these graphs need less."""
TARGET = Target(threads=1)


@dataclass(frozen=True)
class Said:
    """What came of an engine."""

    verdict: str
    reason: str = ""
    kept: Path | None = None
    """The inputs and outputs that disagree."""
    verification: Verification | None = None

    def arrays(self, kind: str) -> list[NDArray[Any]]:
        """What was kept of a disagreement: ``input``, ``engine`` or ``reference``."""
        assert self.kept is not None
        with np.load(self.kept) as content:
            return [content[f"{kind}_{index}"] for index in range(sum(name.startswith(f"{kind}_") for name in content))]


def prepared(model: onnx.ModelProto, directory: Path, batch: int) -> Source:
    """The materials of a graph.

    Raises
    ------
    NGraphError
        It cannot be a workload.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "model.onnx"
    onnx.save(model, str(file))
    workload = create(WorkloadRef("onnx", str(file)), Init())
    prepare(workload, directory / "materials", batch_sizes=[batch], formats=["module", "onnx"], seed=0)
    return Source(directory / "materials")


def compiled(source: Source, compiler: str, directory: Path, batch: int) -> Engine:
    """An engine that was saved and loaded.

    Raises
    ------
    NGraphError
        The compiler does not take the model, or fails.
    """
    adapter = compiler_of(compiler, {})
    directory.mkdir(parents=True)
    adapter.compile(source, [batch], TARGET, directory, Workbench(directory.with_name(f"{directory.name}-work")))
    return adapter.load(directory, batch, TARGET)


def said(source: Source, compiler: str, directory: Path, batch: int, *, of: Source | None = None) -> Said:
    """The verdict on the engine that a compiler makes.

    Parameters
    ----------
    source : Source
        What the engine is compared with.
    of : Source | None
        What it is compiled from instead.
    """
    if source.materials.behaviour.impure:
        return Said("unverified", source.materials.behaviour.impure)
    try:
        engine = compiled(of or source, compiler, directory, batch)
    except CellError as error:
        return Said(error.verdict.value, str(error))
    except NGraphError as error:
        return Said("unsupported", str(error))
    except Exception as error:  # noqa: BLE001 - a runtime raises anything
        return Said("failed", one_line(error))
    try:
        return judged(engine, source, directory.with_name(f"{directory.name}.npz"), batch)
    except Exception as error:  # noqa: BLE001 - a runtime raises anything
        return Said("failed", one_line(error))
    finally:
        engine.close()


def judged(engine: Engine, source: Source, keep: Path, batch: int) -> Said:
    """The verdict on an engine, as a study finds it before anything is timed."""
    found = verify(engine, source, batch, "fp32", 1.0, SECONDS, keep)
    if found.problem:
        return Said("parity_failed", found.problem, keep, found)
    inputs, reference = source.example(batch), source.reference(batch)
    outputs = ran(engine, inputs)
    try:
        problem = check_timed_inputs(parity.compare(outputs, reference), source, batch, "fp32", outputs, reference)
    except IncomparableError as error:
        problem = str(error)
    if problem:
        several = {"input": inputs, "engine": outputs, "reference": reference}
        named = {f"{kind}_{place}": array for kind, arrays in several.items() for place, array in enumerate(arrays)}
        np.savez(keep, **named)  # type: ignore[arg-type] # numpy's types see allow_pickle here
        return Said("parity_failed", f"on the timed inputs: {problem}", keep, found)
    if found.vacuous or (found.unchecked and found.unchecked >= found.inputs):
        return Said("unverified", found.unchecked_why or "outputs do not depend on the inputs", None, found)
    return Said("ok", "", None, found)


def ran(engine: Engine, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """What an engine gives."""
    bound = engine.bind(inputs)
    bound.call()
    return [np.array(array) for array in bound.outputs()]
