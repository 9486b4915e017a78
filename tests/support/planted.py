"""Engines that go wrong as they are told to, registered on a tracking server beside good ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph import runner
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.load_spec import FILE
from mlflow_ngraph.engines.manifest import DIGEST_FILE
from mlflow_ngraph.engines.package import digest_line
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.schema import Tag

Plant = Literal["good", "outputs", "machine", "file", "load", "later", "failing"]
"""``outputs`` are wrong, ``machine`` is another one, a ``file`` was altered on the server, ``load`` is a crash on load, ``later``
one while it serves, and ``failing`` fails from then on."""
LATER_MS = 1500
"""From loading to what happens ``later``."""
WORKLOAD = "block:mha?width=16"
_FLAGS: dict[Plant, dict[str, Any]] = {
    "outputs": {"behaviour": "wrong"},
    "load": {"behaviour": "crash", "at": "load"},
    "later": {"behaviour": "crash", "at": "later", "delay_ms": LATER_MS},
    "failing": {"behaviour": "raise", "at": "later", "delay_ms": LATER_MS},
}


def measured(home: Path, uri: str, compilers: Sequence[str] = ("fake",)) -> dict[str, Path]:
    """Packages of one model by compilers, of which ``fake`` has to be registered and needs no runtime."""
    study = parse(
        {
            "name": "planted", "workloads": [WORKLOAD], "compilers": list(compilers), "batch_sizes": [1, 4],
            "repetitions": 4, "slice_repetitions": 2, "warmup": {"window": 2, "max_seconds": 0.2},
            "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        }
    )  # fmt: skip
    outcome = runner.run_study(study, home=home, tracking_uri=uri, experiment="planted")
    assert outcome.exit_code == 0, outcome.record.lanes
    client = MlflowClient(uri)
    models = client.search_logged_models([client.get_experiment_by_name("planted").experiment_id])
    packages = {}
    for model in models:
        name = model.tags[Tag.COMPILER]
        if name in compilers:
            packages[name] = home / "packages" / name
            download.pull(download.locate(f"models:/{model.model_id}", uri), packages[name])
    return packages


@dataclass
class Registry:
    """A registered model whose alias moves.

    Parameters
    ----------
    uri: of the tracking server.
    package: of the fake compiler, as `measured` makes it.
    scratch: a folder for packages.
    artifacts: where the server keeps files on this machine.
    """

    uri: str
    package: Path
    scratch: Path
    artifacts: Path
    name: str = "champion"
    alias: str = "live"
    _made: int = field(default=0, init=False)

    @property
    def source(self) -> str:
        """What is followed."""
        return f"models:/{self.name}@{self.alias}"

    def register(self, plant: Plant = "good", package: Path | None = None) -> str:
        """Register an engine, and return its version."""
        self._made += 1
        made = Path(shutil.copytree(package or self.package, self.scratch / self.name / f"{plant}-{self._made}"))
        _change(made, plant, self._made)
        before = os.environ.get("MLFLOW_TRACKING_URI")
        os.environ["MLFLOW_TRACKING_URI"] = self.uri
        try:
            model_id = mlflow_ngraph.log_model(made).model_id
        finally:
            if before is None:
                del os.environ["MLFLOW_TRACKING_URI"]
            else:
                os.environ["MLFLOW_TRACKING_URI"] = before
        client = MlflowClient(self.uri)
        if self._made == 1:
            client.create_registered_model(self.name)
        version = client.create_model_version(self.name, f"models:/{model_id}", model_id=model_id)
        if plant == "file":
            (probe,) = self.artifacts.glob(f"**/{model_id}/**/probe.npz")
            probe.write_bytes(probe.read_bytes()[:-1] + b"x")
        return str(version.version)

    def move(self, version: str) -> None:
        """Let the alias point at a version."""
        MlflowClient(self.uri).set_registered_model_alias(self.name, self.alias, version)

    def tag(self, version: str, device: str) -> str | None:
        """What a device says of a version."""
        tags = MlflowClient(self.uri).get_model_version(self.name, version).tags
        value = tags.get(Tag.FOLLOWER + device)
        return None if value is None else str(value)


def _change(package: Path, plant: Plant, number: int) -> None:
    """Plant what is to go wrong; every package is another one, with digests that are right."""
    flags = _FLAGS.get(plant, {})
    path = package / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["origin"]["study_id"] = f"planted-{number}"
    if plant == "machine":
        manifest["requires"]["fake"] = "0.9"
    if flags:
        spec = package / "engine" / FILE
        content = json.loads(spec.read_text())
        content["flags"].update(flags)
        spec.write_text(json.dumps(content))
        manifest["loading"]["flags"].update(flags)
        manifest["files"][f"engine/{FILE}"] = sha256(spec)
    path.write_text(json.dumps(manifest))
    (package / DIGEST_FILE).write_text(digest_line(sha256(path)))
