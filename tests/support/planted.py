"""Engines that go wrong as they are told to, registered on a tracking server beside good ones."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph.compilers.spec import FILE, EngineSpec
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE
from mlflow_ngraph.engines.package import digest_line
from mlflow_ngraph.engines.probe import FILE as PROBE
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.tracking.schema import Tag

Plant = Literal["good", "outputs", "machine", "file", "load", "later", "failing", "workload"]
"""``outputs`` are wrong, ``machine`` is another one, a ``file`` was altered on the server, ``load`` is a crash on load, ``later``
one while it serves, ``failing`` fails from then on, and a ``workload`` is another one."""
LATER_MS = 1500
"""From loading to what happens ``later``."""
EXPERIMENT = "planted"
_FLAGS: dict[Plant, dict[str, Any]] = {
    "outputs": {"behaviour": "wrong"},
    "load": {"behaviour": "crash", "at": "load"},
    "later": {"behaviour": "crash", "at": "later", "delay_ms": LATER_MS},
    "failing": {"behaviour": "raise", "at": "later", "delay_ms": LATER_MS},
}


def replaying(package: Path, target: Path) -> Path:
    """A package of the same model by the fake compiler, which has to be registered: it replays the probe of this one."""
    from mlflow_ngraph_testing.fake import VERSION, FakeFlags

    # What MLflow reads is written when it is logged.
    target.mkdir()
    engine, manifest = target / "engine", json.loads((package / "manifest.json").read_text())
    engine.mkdir()
    flags = FakeFlags().model_dump()
    shutil.copyfile(package / "engine" / PROBE, engine / PROBE)
    probe = read_probe(engine)
    inputs, outputs = probe.inputs, probe.outputs
    # Zeros are what servers warm up with; nobody compares what comes of them.
    for number, known in enumerate((inputs, [np.zeros_like(array) for array in inputs])):
        np.savez(engine / f"inputs-b1-{number}.npz", *known)
        np.savez(engine / f"outputs-b1-{number}.npz", *outputs)
    fake = {"compiler": "fake", "asked": flags, "flags": flags, "facts": {}, "batch_sizes": [1]}
    manifest["spec"] |= {**fake, "requires": {"fake": VERSION}, "packages": {}}
    EngineSpec.model_validate_json(json.dumps(manifest["spec"])).write(engine)
    own = sorted(path for path in engine.iterdir())
    manifest["files"] = {f"engine/{path.name}": sha256(path) for path in own}
    manifest.update(flags=flags, figures=[])
    manifest["size_bytes"] = sum(path.stat().st_size for path in own)
    _write(target, manifest)
    return target


@dataclass
class Registry:
    """A registered model whose alias moves.

    Parameters
    ----------
    uri: of the tracking server.
    package: of the fake compiler, as `replaying` makes it.
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
        with patch.dict(os.environ, MLFLOW_TRACKING_URI=self.uri, MLFLOW_EXPERIMENT_NAME=EXPERIMENT):
            model_id = mlflow_ngraph.log_model(made).model_id
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
    manifest = json.loads((package / "manifest.json").read_text())
    manifest["origin"]["study_id"] = f"planted-{number}"
    changes: dict[str, Any] = {"workload": "block:other"} if plant == "workload" else {}
    if plant == "machine":
        changes = {"requires": {**manifest["spec"]["requires"], "fake": "0.9"}}
    if flags or changes:
        spec = package / "engine" / FILE
        before, content = spec.stat().st_size, json.loads(spec.read_text())
        for described in (content, manifest["spec"]):
            described["asked"].update(flags)
            described.update(changes)
        spec.write_text(json.dumps(content))
        manifest["files"][f"engine/{FILE}"] = sha256(spec)
        manifest["size_bytes"] += len(spec.read_bytes()) - before
    _write(package, manifest)


def _write(package: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest, and the digest beside it."""
    path = package / "manifest.json"
    path.write_text(json.dumps(manifest))
    (package / DIGEST_FILE).write_text(digest_line(sha256(path)))
