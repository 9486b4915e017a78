"""Check the files that make a package a model of MLflow: they follow from its manifest, and bring no code of their own.

MLflow installs the requirements and imports the loader before anything of this package compares a digest. `pull` writes these
files anew, with the wheel of its own installation: so each is what was packaged, or what `pull` writes.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_ngraph import documents
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import FILE, Manifest, is_of_mlflow
from mlflow_ngraph.engines.wheel import has_files, is_plugin, wheel
from mlflow_ngraph.entry_points import module_of
from mlflow_ngraph.errors import DependencyError, EngineError
from mlflow_ngraph.text import shortened
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

FLAVOR = "ngraph"
LOADER = "mlflow_ngraph.release.flavor"
MODEL, REQUIREMENTS, CONDA, PYTHON_ENV = "MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml"
CARD = "README.md"
"""The file that a study logs beside them. ``registered_model_meta``, which MLflow adds when it loads, is not looked at."""
WHEELS = "wheels"
_WRITTEN = (REQUIREMENTS, MODEL, CONDA, PYTHON_ENV)
_FACTS = frozenset({
    "artifact_path", "mlflow_version", "model_id", "model_size_bytes", "model_uuid", "run_id", "utc_time_created",
})  # fmt: skip
"""Keys of an MLmodel that differ from one to the next, and name neither code nor files."""
_HINTS = frozenset({"is_signature_from_type_hint", "type_hint_from_example"})
_EMPTY = _HINTS | {"auth_policy", "env_vars", "metadata", "prompts", "resources", "saved_input_example_info"}
"""Keys that MLflow may write without a value."""
_GONE = f"{MODEL} is gone, so that it is no model of MLflow any more: pull the engine again"
_ANEW = (
    "loader, signature, requirements and wheels are what was packaged, or what pull writes; ids, and versions of Python, "
    "MLflow and build tools, were not compared"
)
_VERSION = r"\d[\w.+!]*"
_COMPARED = rf" ?(===?|[<>~!]=|[<>]) ?{_VERSION}(\.\*)?"
_PLAIN = re.compile(rf"[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?({_COMPARED}(,{_COMPARED})*)?", re.ASCII)
"""A requirement that names a distribution and versions: no option, address or path."""
_PACKED = 16
"""How much larger than another an equal wheel may be, as one that is not compressed."""
_OWN = re.compile(rf"mlflow=={_VERSION}|\./{WHEELS}/[\w.-]+", re.ASCII)
"""Requirements of `pull` beside the engine's runtime."""


@dataclass(frozen=True)
class _Form:
    """A pattern of texts, and its name."""

    pattern: str
    name: str

    def __repr__(self) -> str:
        return self.name


def check(directory: Path, manifest: Manifest) -> None:
    """Check the files of MLflow that a package has.

    Raises `EngineError` with the first one that is missing or does not follow from the manifest, and what in it does not.
    """
    present = [name for name in _WRITTEN if (directory / name).exists()]
    if MODEL in present and len(present) < len(_WRITTEN):
        gone = next(name for name in _WRITTEN if name not in present)
        raise EngineError(f"{directory / gone} is missing: {MODEL} needs it")
    lines: list[str] = []
    for name in [*present, *([CARD] if (directory / CARD).exists() else [])]:
        path = directory / name
        try:
            if name == REQUIREMENTS:
                lines = documents.content(path).decode().splitlines()
                problem = _strange(lines, directory, manifest)
            elif name == CARD:
                problem = "" if _is_packaged(path, directory, manifest) else "it is not the packaged one"
            else:
                found = documents.from_yaml(path)
                if name == MODEL and isinstance(found, dict):
                    found = _without_facts(found, packaged=_is_packaged(path, directory, manifest))
                problem = _difference(_expected(manifest, lines)[name], found)
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} is not readable: {error}") from None
        if problem:
            raise EngineError(f"{path} is not what mlflow-ngraph writes: {problem}")
    for path in _wheels(directory):
        if path.relative_to(directory).as_posix() in manifest.files and not _is_known(path, directory, manifest):
            raise EngineError(f"{path} has changed since it was packaged")


def summary(directory: Path, manifest: Manifest) -> tuple[bool, str]:
    """Where the files of MLflow in a checked package are from, and True if that is known; empty if it has none."""
    if not (directory / MODEL).exists():
        return (False, _GONE) if MODEL in manifest.files else (True, "")
    wheels = _wheels(directory)
    for path in wheels:
        if not _is_known(path, directory, manifest):
            return False, (
                f"{path.relative_to(directory)}, which MLflow installs, is neither the packaged wheel nor that of the "
                "mlflow-ngraph here: pull the engine again with --force"
            )
    if all(_is_packaged(path, directory, manifest) for path in (*(directory / name for name in _WRITTEN), *wheels)):
        return True, f"{MODEL}, {REQUIREMENTS}, {CONDA}, {PYTHON_ENV} and wheels are what was packaged"
    return True, _ANEW


def _without_facts(model: dict[str, Any], *, packaged: bool) -> dict[str, Any]:
    """An MLmodel without what MLflow alone knows of it. What was packaged may be of an MLflow that writes other keys."""
    empty = [name for name, value in model.items() if value is None and (packaged or name in _EMPTY)]
    empty += [name for name in _HINTS if model.get(name) is False]
    return {name: value for name, value in model.items() if name not in _FACTS and name not in empty}


def _wheels(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / WHEELS).glob("*") if path.is_file())


def _is_known(path: Path, directory: Path, manifest: Manifest) -> bool:
    """True if a wheel is the packaged one, or that of this installation."""
    if _is_packaged(path, directory, manifest):
        return True
    if not is_of_mlflow(path.relative_to(directory).as_posix()):
        return False  # finding its wheel imports the package that it names
    try:
        name, content = wheel(path.name.partition("-")[0].replace("_", "-"))
    except DependencyError:
        return False
    try:
        return (
            path.name == name and path.stat().st_size < _PACKED * len(content) and has_files(path.read_bytes(), content)
        )
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def _is_packaged(path: Path, directory: Path, manifest: Manifest) -> bool:
    return manifest.files.get(path.relative_to(directory).as_posix()) == sha256(path)


def _strange(lines: Sequence[str], directory: Path, manifest: Manifest) -> str:
    """First requirement that was neither packaged nor follows from the manifest, or that lacks; empty without one."""
    for line in lines:
        path = line.removeprefix("./")
        if path.startswith(f"{WHEELS}/") and is_of_mlflow(path) and not (directory / path).exists():
            return f"{path} is missing"
    if strange := next((line for line in lines if not _is_plain(line, directory)), ""):
        return f"{shortened(strange)} is no distribution with a version"
    if _is_packaged(directory / REQUIREMENTS, directory, manifest):
        return ""
    packages = manifest.spec.packages.items()
    runtime = [f"{name}=={version}" for name, version in packages if not is_plugin(name)]
    others = [line for line in lines if line not in runtime and not _OWN.fullmatch(line)]
    if others:
        return f"{shortened(others[0])} is not in the manifest"
    plugins = [f"./{WHEELS}/{module_of(name)}-" for name, _ in packages if is_plugin(name)]
    lacking = [line for line in runtime if line not in lines]
    lacking += [begin for begin in plugins if not any(line.startswith(begin) for line in lines)]
    return f"{shortened(lacking[0])} lacks" if lacking else ""


def _is_plain(line: str, directory: Path) -> bool:
    """True if a requirement is a distribution or the package's own wheel."""
    path = line.removeprefix("./")
    own = path.startswith(f"{WHEELS}/") and is_of_mlflow(path) and (directory / path).is_file()
    return own or _PLAIN.fullmatch(line) is not None


def _expected(manifest: Manifest, lines: Sequence[str]) -> dict[str, Any]:
    """Content of the YAML files, with forms where it depends on the machine that wrote them."""
    spec, version = manifest.spec, _Form(_VERSION, "version")
    return {
        MODEL: {
            "flavors": {
                "python_function": {
                    "env": {"conda": CONDA, "virtualenv": PYTHON_ENV},
                    "loader_module": LOADER,
                    "python_version": version,
                },
                FLAVOR: flavor(spec, manifest.compiler_version),
            },
            "signature": {"inputs": _schema(spec.inputs), "outputs": _schema(spec.outputs), "params": None},
        },
        CONDA: {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [
                _Form(f"python={_VERSION}", "version of python"),
                _Form(f"pip(<={_VERSION})?", "pip"),
                {"pip": list(lines)},
            ],
        },
        PYTHON_ENV: {
            "python": version,
            "build_dependencies": [_Form(f"{tool}(=={_VERSION})?", tool) for tool in ("pip", "setuptools", "wheel")],
            "dependencies": [f"-r {REQUIREMENTS}"],
        },
    }


def flavor(spec: EngineSpec, compiler_version: str | None) -> dict[str, Any]:
    """Content of the flavor in the MLmodel."""
    return {
        "manifest": FILE,
        "workload": spec.workload,
        "compiler": spec.compiler,
        "compiler_version": compiler_version,
        "precision": spec.target.precision,
        "batch_sizes": list(spec.batch_sizes),
        "code": None,
    }


def _schema(tensors: Sequence[TensorSpec]) -> str:
    """Tensors in MLflow's words."""
    shapes = [[-1 if size == BATCH else size for size in tensor.shape] for tensor in tensors]
    return json.dumps([
        {"name": tensor.name, "type": "tensor", "tensor-spec": {"dtype": tensor.dtype, "shape": shape}}
        for tensor, shape in zip(tensors, shapes, strict=True)
    ])  # fmt: skip


def _difference(expected: Any, found: Any) -> str:
    """First place in which documents differ; empty without one."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*found, *expected]:
            if name not in expected or name not in found:
                return f"{shortened(name)} is {'unknown' if name in found else 'missing'}"
            if inside := _difference(expected[name], found[name]):
                return f"{name}: {inside}"
        return ""
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return next(filter(None, map(_difference, expected, found)), "")
    if isinstance(expected, _Form):
        return "" if re.fullmatch(expected.pattern, str(found)) else f"{shortened(found)} is no {expected.name}"
    return "" if found == expected else f"{shortened(found)}, not {shortened(expected)}"
