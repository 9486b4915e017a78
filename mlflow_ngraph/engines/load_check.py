"""LoadCheck: handle of a child that imports a runtime early, then loads an engine, compares outputs, may time it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child, ChildFailure

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.spec import EngineSpec

PROBE_SECONDS = 600.0
"""Loading an engine and one inference; some runtimes compile when they load."""


class LoadCheck:
    """Child process that tries an engine. A context manager.

    It imports the runtime of ``spec``, from a checked manifest, and reads no file of the engine before `answer` is
    called.
    """

    def __init__(self, spec: EngineSpec) -> None:
        live = compatibility.compiler_of(spec).needs_module
        env = environment.of_threads(spec.target.threads, plain=not live)
        self._child = Child("mlflow_ngraph.engines.load_check_child", env)
        self._child.begin("import", PROBE_SECONDS, spec=spec.model_dump_json())

    def answer(self, directory: Path, seconds: float = 0.0) -> dict[str, Any]:
        """Try a package whose files have been checked, and time it for ``seconds``, or not with 0. Call it once.

        Raises `EngineError` if the engine cannot be loaded, or the process died.
        """
        self._child.begin("probe", PROBE_SECONDS + 2 * seconds, directory=str(directory), seconds=seconds)
        try:
            answer: dict[str, Any] = self._child.finish()
        except ChildFailure as failure:
            if not self._child.closed:
                raise EngineError(failure.reason) from None
            ended = f"{directory}: the process that tried the engine has ended: {failure.reason}"
            raise EngineError(f"{ended}: {failure.last_line}") from None
        return answer

    def close(self) -> None:
        """Kill the process. Closing again does nothing."""
        self._child.close()

    def __enter__(self) -> LoadCheck:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
