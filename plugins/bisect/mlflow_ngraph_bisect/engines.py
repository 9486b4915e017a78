"""Compile and run parts of a program, each once in a child process. For child processes only."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.execute import worker
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph_bisect.program import Part, Program
from mlflow_ngraph_bisect.search import FailedError


@dataclass(frozen=True)
class Job:
    """A compiler with flags and target."""

    compiler: str
    flags: Mapping[str, Any]
    target: Mapping[str, Any]
    limit_s: float
    """Time limit of each compilation with its run, in seconds."""


class Engines:
    """Compiles and runs parts of a program, each in a folder of its own. A context manager, which ends its child."""

    def __init__(self, program: Program, job: Job, place: Path) -> None:
        self._program = program
        self._job = job
        self._place = place
        self._count = 0
        self._stack = ExitStack()
        self._warden = Warden()
        self._stack.callback(self._warden.close)
        self._child: Child | None = None

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._stack.close()

    def run(self, part: Part) -> list[NDArray[Any]]:
        """Outputs of the part's engine on its inputs. Raises `FailedError` if it cannot be compiled or run."""
        self._count += 1
        place = self._place / str(self._count)
        place.mkdir(parents=True)
        try:
            outputs = self._run(part, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if len(outputs) != len(part.outputs):
            raise FailedError(f"the engine has {len(outputs)} outputs, the model {len(part.outputs)}")
        return outputs

    def _run(self, part: Part, place: Path) -> list[NDArray[Any]]:
        materials, outputs = place / "materials", place / "outputs.npz"
        batch = self._program.prepare(part, materials)
        try:
            child = self._started()
            child.request(
                "compute",
                self._job.limit_s,
                compiler=self._job.compiler,
                flags=dict(self._job.flags),
                target=dict(self._job.target),
                materials=str(materials),
                directory=str(place / "engine"),
                work=str(place / "work"),
                outputs=str(outputs),
                batch=batch,
            )
        except ChildFailure as failure:
            if failure.verdict.retryable:
                self._end()
            raise FailedError(failure.reason) from None
        with np.load(outputs) as content:
            return [content[name] for name in content.files]

    def _started(self) -> Child:
        """Child of the last part, or a new one in place of one that has ended."""
        if self._child is None:
            kind = COMPILERS.get(self._job.compiler)
            threads = self._job.target["threads"]
            env = environment.of_threads(threads, patient=True)
            child = Child(worker.__name__, env, warden=self._warden)
            self._child = child
            modules = (*(kind.compile_modules or ()), *kind.runtime_modules)
            child.request(
                "import",
                self._job.limit_s,
                modules=list(dict.fromkeys(modules)),
                blocked=list(kind.blocked_modules),
                freed_memory="return",
            )
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
