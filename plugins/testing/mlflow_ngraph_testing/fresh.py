"""Engine served by MLflow in an environment that MLflow makes from the model alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph import parity
from mlflow_ngraph.engines.package import Package
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import NGraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATIENCE_S = 900.0
"""Seconds to make an environment and to start a server in it."""
_OURS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")
"""Variables that would let an environment see the one that made it."""
_TAIL = 3000


class ServingError(NGraphError):
    """A model could not be served in an environment of its own."""


@dataclass(frozen=True)
class ServedModel:
    """A served model."""

    address: str
    environment: Path
    """The environment that MLflow made."""
    seconds: float
    """Seconds from the start to the first sign of life: mostly for the environment."""

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def has(self, module: str) -> bool:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        done = subprocess.run([self.python, "-I", "-c", code], check=False, env=surroundings(self.environment.parent))
        return done.returncode == 0

    def run(self, *arguments: str, tracking_uri: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of this package in the environment."""
        return subprocess.run(
            [self.python, "-m", "mlflow_ngraph", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.environment.parent,
            env={**surroundings(self.environment.parent), "MLFLOW_TRACKING_URI": tracking_uri},
        )

    def ask(self, inputs: dict[str, NDArray[Any]], timeout_s: float = 120.0) -> dict[str, NDArray[Any]]:
        """Ask over HTTP, as any client would.

        Raises
        ------
        ServingError
            It answers with an error.
        """
        body = json.dumps({"inputs": {name: array.tolist() for name, array in inputs.items()}}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.address}/invocations", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - our own server
                predictions = json.load(answer)["predictions"]
        except urllib.error.HTTPError as error:
            raise ServingError(f"the server answers {error.code}: {error.read().decode()[:_TAIL]}") from None
        except OSError as error:
            raise ServingError(f"the server does not answer: {error}") from None
        return {name: np.asarray(value) for name, value in predictions.items()}


@contextmanager
def served(model_uri: str, tracking_uri: str, root: Path, env_manager: str = "uv") -> Iterator[ServedModel]:
    """Let MLflow make an environment for a model below the new directory ``root``, and serve it there.

    Raises
    ------
    ServingError
        The environment could not be made, or the server did not start; has the end of its output.
    """
    root.mkdir(parents=True)
    port = _free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model_uri, "--env-manager", env_manager]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    rules = root / "trust.yaml"
    # The engine may be a program, and MLflow's command cannot say that it may run.
    rules.write_text('sources: [{uri: "*", trust: allowed}]\n', encoding="utf-8")
    env = {**surroundings(root), "MLFLOW_TRACKING_URI": tracking_uri, "NGRAPH_TRUST": str(rules)}
    log = root / "serve.log"
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=root, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, log)
            seconds = time.monotonic() - begin
            (environment,) = (path.parent for path in root.glob("envs/**/pyvenv.cfg"))
            yield ServedModel(address, environment, seconds)
        finally:
            _end(process)


def surroundings(root: Path) -> dict[str, str]:
    """The variables of this process, without those that would let an environment see this one.

    The package manager ``uv`` of this environment stays within reach, and looks where pip is configured to look.
    """
    env = {name: value for name, value in os.environ.items() if name not in _OURS}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env["MLFLOW_ENV_ROOT"] = str(root / "envs")
    env["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for of_uv, of_pip in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("UV_DEFAULT_INDEX", "PIP_INDEX_URL")):
        if of_pip in env:
            env.setdefault(of_uv, ",".join(env[of_pip].split()))
    return env


def answers(package: Package, asked: ServedModel) -> tuple[float, str]:
    """The relative error of the answers for a package's probe, and their problem; empty without one.

    Raises
    ------
    ServingError
        There are no answers.
    """
    known = read_probe(package.engine)
    manifest = package.manifest
    names = [tensor.name for tensor in manifest.spec.inputs]
    answer = asked.ask(dict(zip(names, known.inputs, strict=True)))
    outputs = [answer[tensor.name].astype(tensor.dtype) for tensor in manifest.spec.outputs]
    seen = parity.compare(outputs, known.outputs)
    return seen.max_rel, known.problem(outputs, manifest.precision)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/ping", timeout=5):  # noqa: S310 - our own server
                return
        except OSError:
            time.sleep(0.25)
    said = log.read_bytes().decode(errors="replace")[-_TAIL:]
    raise ServingError(f"the model was not served within {PATIENCE_S:.0f} s, or its server ended: {said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server with all its processes."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed(asked: ServedModel, names: Sequence[str]) -> list[str]:
    """Modules of these that the environment has."""
    return [name for name in names if asked.has(name)]
