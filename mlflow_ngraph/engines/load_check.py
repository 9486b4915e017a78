"""A process that tries an engine, started before the engine is there: importing a runtime takes as long as a download."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.engines import environment
from mlflow_ngraph.errors import EngineError

if TYPE_CHECKING:
    from types import TracebackType

    from mlflow_ngraph.compilers.spec import EngineSpec

PROBE_SECONDS = 600.0
"""Loading an engine and one inference; some runtimes compile when they load."""
_TAIL = 300


class LoadCheck:
    """The process. A context manager, which ends it.

    Parameters
    ----------
    spec : EngineSpec
        Of the engine that will be tried, from a manifest that has been checked. The process imports the runtime that this
        asks for, and sees no file of the engine before `answer` says that they may be seen.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="ngraph-probe-")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow_ngraph.engines.load_check_child"],
                env=environment.of_threads(spec.target.threads, Path(self._scratch.name)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            )  # fmt: skip
        except BaseException:
            self._scratch.cleanup()
            raise
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, and `answer` will say how
            self._process.stdin.write(spec.model_dump_json() + "\n")
            self._process.stdin.flush()

    def answer(self, directory: Path, seconds: float = 0.0) -> dict[str, Any]:
        """What the process says of a package whose files have been checked. To be called once.

        Parameters
        ----------
        seconds : float
            Time the engine for so long; 0 leaves its speed alone.

        Raises
        ------
        EngineError
            The engine cannot be loaded, or the process did not live to say anything.
        """
        asked = json.dumps({"directory": str(directory), "seconds": seconds}) + "\n"
        try:
            said, complained = self._process.communicate(asked, timeout=PROBE_SECONDS + 2 * seconds)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{directory}: the engine did not answer in {PROBE_SECONDS:.0f} s") from None
        if self._process.returncode != 0 or not said.strip():
            code = self._process.returncode
            ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            tail = " ".join(complained.split())[-_TAIL:]
            raise EngineError(f"{directory}: the process that tried the engine {ended}: {tail}")
        answer: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing. Closing again does nothing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._scratch.cleanup()

    def __enter__(self) -> LoadCheck:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
