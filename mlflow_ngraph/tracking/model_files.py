"""Write the files that make an engine package an MLflow model: MLmodel with signature, requirements, wheels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.model_files import CONDA, FLAVOR, LOADER, MODEL, PYTHON_ENV, REQUIREMENTS, WHEELS, flavor
from mlflow_ngraph.engines.wheel import is_plugin, wheels_of
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature


def write(
    directory: Path,
    spec: EngineSpec,
    compiler_version: str | None,
    model: Model,
    *,
    size_bytes: int,
    pip_requirements: Sequence[str] | None = None,
    extra_pip_requirements: Sequence[str] = (),
) -> None:
    """Write them into the directory of a package.

    ``model`` has the facts that MLflow knows already. ``pip_requirements`` replace the engine's own, this package's
    wheel included.
    """
    import yaml
    from mlflow import pyfunc
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    if pip_requirements is None:
        wanted = [*requirements(spec), *extra_pip_requirements]
        (directory / WHEELS).mkdir(exist_ok=True)
        for name, content in wheels_of(spec.packages):
            (directory / WHEELS / name).write_bytes(content)
    else:
        wanted = [*pip_requirements, *extra_pip_requirements]
    _text(directory / REQUIREMENTS, "".join(f"{line}\n" for line in wanted))
    conda = _mlflow_conda_env(additional_pip_deps=wanted, install_mlflow=False)
    _text(directory / CONDA, yaml.safe_dump(conda, sort_keys=False))
    _PythonEnv.current().to_yaml(str(directory / PYTHON_ENV))
    pyfunc.add_to_model(model, loader_module=LOADER, conda_env=CONDA, python_env=PYTHON_ENV)
    model.add_flavor(FLAVOR, **flavor(spec, compiler_version))
    model.signature = signature(spec)
    model.model_size_bytes = size_bytes
    model.save(str(directory / MODEL))


def requirements(spec: EngineSpec) -> list[str]:
    """Requirements of an engine for pip: MLflow, this package and its plugins from wheels, and the engine's runtime."""
    import mlflow

    return [
        f"mlflow=={mlflow.__version__}",
        *(f"./{WHEELS}/{name}" for name, _ in wheels_of(spec.packages)),
        *(f"{name}=={version}" for name, version in sorted(spec.packages.items()) if not is_plugin(name)),
    ]


def signature(spec: EngineSpec) -> ModelSignature:
    """The inputs and outputs as MLflow describes tensors; the batch axis is free."""
    from mlflow.models import ModelSignature

    return ModelSignature(inputs=_schema(spec.inputs), outputs=_schema(spec.outputs))


def _schema(tensors: Sequence[TensorSpec]) -> Any:
    from mlflow.types import Schema
    from mlflow.types import TensorSpec as MlflowTensorSpec

    return Schema(
        [
            MlflowTensorSpec(
                np.dtype(tensor.dtype), tuple(-1 if size == BATCH else int(size) for size in tensor.shape), tensor.name
            )
            for tensor in tensors
        ]
    )


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
