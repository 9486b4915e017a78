"""A real study of a few tiny modules, measured once: what the drivers that do harm begin with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import tiny

if TYPE_CHECKING:
    from mlflow_ngraph.recording.outcome import Outcome
    from mlflow_ngraph.study import Study

MODELS = ("linear", "perceptron")
BATCHES = (1, 4)
EXPERIMENT = "small"
SMALL: dict[str, Any] = {
    "repetitions": 4,
    "slice_repetitions": 2,
    "threads": 1,
    "warmup": {"window": 2, "max_seconds": 0.1},
    "limits": {"reload_seconds": 0},
    # What is tried does not depend on who else uses the machine.
    "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
}
"""Settings of a study whose figures are of no account."""


def study() -> Study:
    """Two modules, eager and compiled by ONNX Runtime, at two batch sizes."""
    from mlflow_ngraph.study import parse

    return parse(
        {
            "name": "small",
            "workloads": [
                {"ref": f"torch:support.tiny:{name}", "options": {"inputs": [{"shape": tiny.INPUTS[name]}]}}
                for name in MODELS
            ],
            "compilers": ["identity", "onnxruntime"],
            "batch_sizes": list(BATCHES),
            **SMALL,
        }
    )


def measured(home: Path, tracking_uri: str | None = None) -> Outcome:
    """Measure it, and record it where an address is given.

    Parameters
    ----------
    home : Path
        Where studies and engines are kept.
    """
    from mlflow_ngraph.runner import run_study

    # The children that build the modules have to find them.
    here = str(Path(__file__).parents[1])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *(path for path in paths if path and path != here)])
    outcome = run_study(
        study(), home=home, tracking_uri=tracking_uri, experiment=EXPERIMENT, offline=tracking_uri is None
    )
    if outcome.exit_code:
        raise SystemExit(f"the study did not end well: {outcome.unrecorded or outcome.exit_code}")
    return outcome


@dataclass(frozen=True)
class Left:
    """What a study left, for those who spoil copies of it."""

    study: Path
    """The directory of the study."""
    package: Path
    """Its engine of ONNX Runtime for one module, as a package."""
    archive: Path
    engines: Path
    """The cache of engines."""
    tracking_uri: str
    model: str
    """The address of that engine."""
    remote: Path
    """Where its files lie on the tracking server."""

    @classmethod
    def of(cls, place: Path) -> Left:
        """What `left_in` has left in a folder."""
        said = json.loads((place / "left.json").read_text())
        return cls(
            place / said["study"],
            place / "package",
            place / "study.tar",
            place / "home" / "engines",
            f"sqlite:///{place}/mlflow.db",
            said["model"],
            Path(said["remote"]),
        )


def left_in(place: Path) -> Left:
    """Measure the study in a process of its own, so that its memory is not that of who spoils what it left."""
    command = [
        sys.executable,
        "-c",
        "import sys; from support.small_study import leave; leave(sys.argv[1])",
        str(place),
    ]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
    return Left.of(place)


def leave(folder: str) -> None:
    """Measure the study, pull one of its engines, and export it."""
    from mlflow import MlflowClient

    from mlflow_ngraph import pull
    from mlflow_ngraph.tracking.schema import Tag
    from mlflow_ngraph_archives.export import export

    place = Path(folder)
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    os.chdir(place)
    uri = f"sqlite:///{place}/mlflow.db"
    directory = measured(place / "home", uri).directory
    directory.rename(place / directory.name)
    client = MlflowClient(uri)
    models = client.search_logged_models([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    model = next(one for one in models if one.tags[Tag.COMPILER] == "onnxruntime")
    pull(f"models:/{model.model_id}", place / "package", tracking_uri=uri)
    export([place / directory.name], place / "study.tar")
    remote = model.artifact_location.removeprefix("file://")
    said = {"study": directory.name, "model": f"models:/{model.model_id}", "remote": remote}
    (place / "left.json").write_text(json.dumps(said))
