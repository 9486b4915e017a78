"""Bundle for a device: core and plugins as wheels, the study, and the models it names; each by its digest.

A model that a study names by a relative path is at that path on the device too, so that it has the same name in results.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mlflow_ngraph.engines.wheel import wheel
from mlflow_ngraph.entry_points import ENGINE_PLUGINS
from mlflow_ngraph.errors import DependencyError, WorkloadError
from mlflow_ngraph.study import Study, WorkloadChoice
from mlflow_ngraph.workloads.file import linked
from mlflow_ngraph_fleet import launch
from mlflow_ngraph_fleet.description import Fleet

STUDY = "study.yaml"
_CODE = ("mlflow-ngraph", "mlflow-ngraph-fleet")
_FILES = ("onnx", "pt2")
"""Schemes whose target is a file."""
_MODULES = "torch"
"""The scheme whose target is a Python module, which may be the user's own."""
_EXTRAS = ("xeon", "gpu", "orin")
_ELSEWHERE = "models"
"""Folder on the device of models that are named by paths of this machine."""
_DIGITS = 16


@dataclass(frozen=True)
class Bundle:
    """Files for one device."""

    command: str
    """Command that starts the study there."""
    files: Path
    parts: Mapping[str, Path]


@dataclass(frozen=True)
class Travelling:
    """A study with its files, the same for every device."""

    study: Study
    """With names of models as they are on a device."""
    parts: Mapping[str, Path]
    code: str
    models: tuple[str, ...]

    @classmethod
    def pack(cls, study: Study, place: Path) -> Travelling:
        """Gather the files of a study.

        Parameters
        ----------
        study : Study
            Names models relative to the working directory of this process.
        place : Path
            Folder for the parts.

        Raises
        ------
        WorkloadError
            A file that the study names is not there.
        """
        wheels = dict(wheel(name) for name in _CODE)
        for name in ENGINE_PLUGINS:
            with suppress(DependencyError):  # not installed here: a study that needs it was refused
                wheels.update([wheel(name)])
        code = f"code-{hashlib.sha256(b''.join(wheels.values())).hexdigest()[:_DIGITS]}"
        parts = {code: place / code}
        parts[code].mkdir(parents=True, exist_ok=True)
        for name, content in wheels.items():
            (parts[code] / name).write_bytes(content)
        choices = []
        for choice in study.workloads:
            moved, files = _moved(choice)
            choices.append(moved)
            if files:
                digest = _digest(files)
                parts[digest] = _laid(files, place / digest)
        models = tuple(name for name in parts if name != code)
        return cls(study.model_copy(update={"workloads": choices}), parts, code, models)

    def bundle(self, fleet: Fleet, device: str, place: Path, **about: Any) -> Bundle:
        """Make the bundle of one device.

        Parameters
        ----------
        place : Path
            Folder for the small files.
        **about : Any
            More facts for the job.
        """
        described, profile = fleet.devices[device], fleet.profile(device)
        extra = f"[{profile}]" if profile in _EXTRAS else "[torch,onnxruntime,openvino]"
        job = {
            "parts": list(self.parts),
            "code": self.code,
            "models": list(self.models),
            "python": described.python,
            "interpreter": described.interpreter,
            "requirements": described.requirements or [f"mlflow-ngraph{extra}"],
            "pip_options": described.pip_options,
            "system_site_packages": described.system_site_packages,
            "env": described.env,
            "env_file": described.env_file,
            "home": described.home,
            "device": device,
            "tracking_uri": described.tracking_uri,
            **about,
        }
        place.mkdir(parents=True, exist_ok=True)
        (place / launch.JOB).write_text(json.dumps(job, indent=1), encoding="utf-8")
        study = self.study.model_copy(update={"device": profile})
        (place / STUDY).write_text(study.to_yaml(), encoding="utf-8")
        shutil.copyfile(launch.__file__, place / "launch.py")
        return Bundle(f"{described.python or described.interpreter} launch.py", place, self.parts)


def _moved(choice: WorkloadChoice) -> tuple[WorkloadChoice, dict[PurePosixPath, Path]]:
    """A workload as a device names it, and its files by their places there."""
    ref = choice.parsed()
    files: dict[PurePosixPath, Path] = {}
    target, options = ref.target, dict(choice.options)
    if ref.scheme in _FILES:
        target = _taken(Path(ref.target), files, required=True)
    elif ref.scheme == _MODULES:
        files |= _module(ref.target.partition(":")[0])
    samples = ref.options.get("samples")
    if isinstance(samples, str):
        placed = _taken(Path(samples), files, required=True)
        if placed != samples:
            options["samples"] = placed
    if (target, options) == (ref.target, choice.options):
        return choice, files
    query = choice.ref.partition("?")[2]
    return choice.model_copy(
        update={"ref": f"{ref.scheme}:{target}" + (f"?{query}" if query else ""), "options": options}
    ), files


def _taken(path: Path, files: dict[PurePosixPath, Path], *, required: bool) -> str:
    """Take a file along with its neighbours that it names; returns its place on the device."""
    if not path.is_file():
        if path.is_absolute() or not required:
            return str(path)  # on the device, where it is looked for again
        raise WorkloadError(f"no file {path}: paths are relative to the directory where the study is started")
    inside = not path.is_absolute() and ".." not in path.parts
    folder = PurePosixPath(path.parent.as_posix()) if inside else PurePosixPath(_ELSEWHERE, _of_file(path)[:_DIGITS])
    files[folder / path.name] = path
    for other in _named_in(path):
        files[folder / other.name] = other
    return str(folder / path.name)


def _named_in(path: Path) -> Iterator[Path]:
    """Neighbours of a model that hold its weights: those whose names stand in it."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for other in sorted(path.parent.iterdir()):
            if other != path and other.is_file() and content.find(other.name.encode()) >= 0:
                yield other


def _module(name: str) -> dict[PurePosixPath, Path]:
    """The source of a module of the user's own, with its package; nothing of one that is installed."""
    top = name.partition(".")[0]
    single = Path(f"{top}.py")
    if single.is_file():
        return {PurePosixPath(single.name): single}
    return (
        {PurePosixPath(path.as_posix()): path for path in sorted(Path(top).rglob("*.py"))} if Path(top).is_dir() else {}
    )


def _digest(files: Mapping[PurePosixPath, Path]) -> str:
    total = hashlib.sha256()
    for place, path in sorted(files.items()):
        total.update(f"{place} {_of_file(path)}\n".encode())
    return f"model-{total.hexdigest()[:_DIGITS]}"


def _of_file(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def _laid(files: Mapping[PurePosixPath, Path], place: Path) -> Path:
    """The files in a directory; as links where the disk has them, for models are large."""
    for name, path in files.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        linked(path.resolve(), target)
    return place
