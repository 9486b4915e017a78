"""Old releases of compilers, each in an environment of its own, and an adapter that runs them there.

Compilation and inference happen in `old_runner`, which the environment's own Python runs, so that a study verifies such an engine
as any other: with the reference outputs and the rules of the packages that are installed here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    Invocation,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads.base import Format
from mlflow_ngraph.workloads.materials import Source

NAME = "old-release"
ENTRY = "support.old_releases:OldRelease"
Runtime = Literal["onnxruntime", "openvino", "tvm"]
_FILE = "model.onnx"
_RUNNER = Path(__file__).with_name("old_runner.py")
_COMPLETE = "complete"
"""Written into an environment when everything is installed."""


@dataclass(frozen=True)
class Release:
    """A release of a compiler, and what pip is told to install."""

    runtime: Runtime
    version: str
    requirements: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its environment."""
        return f"{self.runtime}-{self.version}"

    def environment(self, place: Path) -> Path:
        """The interpreter of its environment in a folder, where it is made unless it is there."""
        directory = place.absolute() / self.name
        python = directory / "bin" / "python"
        if not (directory / _COMPLETE).is_file():
            print(f"installing {', '.join(self.requirements)} into {directory}", file=sys.stderr, flush=True)
            venv.create(directory, clear=True, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *self.requirements], check=True)
            (directory / _COMPLETE).touch()
        return python


class OldReleaseFlags(Flags):
    """Which release it is."""

    runtime: Runtime = "onnxruntime"
    """What it is a release of."""
    version: str = ""
    """Of the release."""
    python: str = ""
    """The interpreter of its environment."""


class OldRelease(Compiler[OldReleaseFlags]):
    """Runs an ONNX file with the defaults of another release than the one that is installed here."""

    name: ClassVar[str] = NAME
    summary: ClassVar[str] = "An old release in an environment of its own"
    flags_type: ClassVar[type[Flags]] = OldReleaseFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)

    @classmethod
    def availability(cls) -> Availability:
        return Availability(True, "1")

    def requires(self, target: Target) -> dict[str, str]:
        return {self.flags.runtime: self.flags.version}

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        with bench.stage("save"):
            shutil.copy(source.onnx(None if source.dynamic("onnx") else batch_sizes[0]), directory / _FILE)
        with bench.stage("compile"):
            _Process(self.flags, directory).close()
        build = Build(export_format="onnx")
        EngineSpec.of(self, build, source, batch_sizes, target, {}).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        EngineSpec.read_for(self, directory, target)
        return _OldEngine(_Process(self.flags, directory), self.flags)


class _Process:
    """The runner in the release's own environment, with the model of an engine's directory. It ends when its input does."""

    def __init__(self, flags: OldReleaseFlags, directory: Path) -> None:
        self._process = subprocess.Popen(
            [flags.python, str(_RUNNER), flags.runtime],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._ask(model=str(directory / _FILE))
        except CompileError:
            self.close()
            raise

    def run(self, inputs: Path, outputs: Path) -> None:
        self._ask(inputs=str(inputs), outputs=str(outputs))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise CompileError(f"the release's process ended with code {self._process.wait()}")
        if error := json.loads(answer).get("error"):
            raise CompileError(error)


class _OldEngine(Engine):
    def __init__(self, process: _Process, flags: OldReleaseFlags) -> None:
        super().__init__("fp32", flags.model_dump())
        self._process = process
        self._place = tempfile.TemporaryDirectory()
        self._outputs = Path(self._place.name, "outputs.npz")

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        given = Path(self._place.name, "inputs.npz")
        save_arrays(given, *inputs)
        return Invocation(lambda: self._process.run(given, self._outputs), self._found)

    def _found(self) -> list[NDArray[Any]]:
        with np.load(self._outputs) as content:
            return [content[name] for name in content.files]

    def close(self) -> None:
        self._process.close()
        self._place.cleanup()
