"""Check the files that make a package a model of MLflow: they follow from its manifest, and bring no code of their own.

MLflow installs the requirements and imports the loader before anything of this package compares a digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import documents
from mlflow_ngraph.engines.manifest import FILE, Manifest, is_of_mlflow
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.text import shortened
from mlflow_ngraph.workloads.base import BATCH

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.base import TensorSpec

FLAVOR = "ngraph"
LOADER = "mlflow_ngraph.release.flavor"
MODEL, REQUIREMENTS, CONDA, PYTHON_ENV = "MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml"
WHEELS = "wheels"
_DATA = frozenset({
    "artifact_path", "databricks_runtime", "flavors", "is_signature_from_type_hint", "mlflow_version", "model_id",
    "model_size_bytes", "model_uuid", "run_id", "signature", "type_hint_from_example", "utc_time_created",
})  # fmt: skip
"""Keys of an MLmodel that neither name code nor files."""
_VERSION = r"\d[\w.+!]*"
_PLAIN = re.compile(
    rf"[A-Za-z0-9][\w.-]*(\[[\w,.-]+\])?( ?(===?|[<>~!]=|[<>]) ?{_VERSION}(\.\*)?(, ?(==|[<>~!]=|[<>]) ?{_VERSION}(\.\*)?)*)?",
    re.ASCII,
)
"""A requirement that names a distribution and versions: no option, address or path."""


def check(directory: Path, manifest: Manifest) -> None:
    """Check the files of MLflow that a package has.

    Raises `EngineError` with the first one that does not follow from the manifest, and what in it does not.
    """
    lines = _requirements(directory)
    for name, problem in ((MODEL, _model), (CONDA, _conda), (PYTHON_ENV, _python_env)):
        path = directory / name
        if not path.exists():
            continue
        try:
            content = documents.from_yaml(path)
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} is not readable: {error}") from None
        if not isinstance(content, dict):
            raise EngineError(f"{path} is not what mlflow-ngraph writes: it is no mapping")
        if what := problem(content, manifest, lines):
            raise EngineError(f"{path} is not what mlflow-ngraph writes: {what}")


def _requirements(directory: Path) -> list[str]:
    path = directory / REQUIREMENTS
    if not path.exists():
        return []
    try:
        lines = documents.content(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path} is not readable: {error}") from None
    for line in lines:
        wheel = line.removeprefix("./")
        of_own = wheel.startswith(f"{WHEELS}/") and is_of_mlflow(wheel) and (directory / wheel).is_file()
        if not of_own and not _PLAIN.fullmatch(line):
            raise EngineError(
                f"{path} is not what mlflow-ngraph writes: {shortened(line)} is no distribution with a version"
            )
    return lines


def _model(content: dict[str, Any], manifest: Manifest, _: Sequence[str]) -> str:
    flavors, signature = content.get("flavors"), content.get("signature")
    loaded = flavors.get("python_function") if isinstance(flavors, dict) else None
    version = loaded.get("python_version") if isinstance(loaded, dict) else None
    spec = manifest.spec
    expected = {
        "python_function": {
            "env": {"conda": CONDA, "virtualenv": PYTHON_ENV},
            "loader_module": LOADER,
            "python_version": version,
        },
        FLAVOR: {
            "batch_sizes": list(spec.batch_sizes),
            "code": None,
            "compiler": spec.compiler,
            "compiler_version": manifest.compiler_version,
            "manifest": FILE,
            "precision": spec.target.precision,
            "workload": spec.workload,
        },
    }
    if flavors != expected:
        return f"flavors: {_difference(expected, flavors)}"
    if not re.fullmatch(_VERSION, str(version)):
        return f"python_version: {shortened(version)}"
    more = next((name for name, value in content.items() if name not in _DATA and value is not None), None)
    if more is not None:
        return f"the key {shortened(more)}"
    try:
        tensors = {name: json.loads(signature[name]) for name in ("inputs", "outputs")}  # type: ignore[index] # checked here
        if tensors != {"inputs": _schema(spec.inputs), "outputs": _schema(spec.outputs)} or signature.get("params"):  # type: ignore[union-attr] # as above
            return "its signature is not that of the engine"
    except (TypeError, KeyError, ValueError):
        return "it has no signature"
    return ""


def _difference(expected: Any, found: Any) -> str:
    """First place in which nested mappings differ."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return f"{shortened(found)}, not {shortened(expected)}"
    for name in [*found, *expected]:
        if name not in expected or name not in found:
            return f"{shortened(name)} is {'unknown' if name in found else 'missing'}"
        if found[name] != expected[name]:
            return f"{name}: {_difference(expected[name], found[name])}"
    return ""


def _schema(tensors: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "type": "tensor",
            "tensor-spec": {
                "dtype": tensor.dtype,
                "shape": [-1 if size == BATCH else size for size in tensor.shape],
            },
        }
        for tensor in tensors
    ]


def _conda(content: dict[str, Any], _: Manifest, lines: Sequence[str]) -> str:
    parts = content.get("dependencies")
    plain = isinstance(parts, list) and all(
        isinstance(part, str) and re.fullmatch(rf"(python|pip)((=|<=){_VERSION})?", part) for part in parts[:-1]
    )
    if not plain or parts[-1:] != [{"pip": list(lines)}]:  # type: ignore[index] # a list, where it is plain
        return f"dependencies are not python, pip and the lines of {REQUIREMENTS}"
    rest = {name: value for name, value in content.items() if name != "dependencies"}
    return _difference({"name": "mlflow-env", "channels": ["conda-forge"]}, rest)


def _python_env(content: dict[str, Any], _: Manifest, lines: Sequence[str]) -> str:
    tools = content.get("build_dependencies")
    if not isinstance(tools, list) or not all(
        isinstance(part, str) and re.fullmatch(rf"(pip|setuptools|wheel)(=={_VERSION})?", part) for part in tools
    ):
        return "build_dependencies are not pip, setuptools and wheel"
    if not re.fullmatch(_VERSION, str(content.get("python"))):
        return f"python: {shortened(content.get('python'))}"
    known = {name: content[name] for name in ("python", "build_dependencies")}
    return _difference({**known, "dependencies": [f"-r {REQUIREMENTS}"]}, content)
