"""Files that make an engine package a model of MLflow: MLmodel, signature, and an environment with this engine's runtime only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, FILE
from mlflow_ngraph.engines.wheel import wheel
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature

FLAVOR = "ngraph"
LOADER = "mlflow_ngraph.release.flavor"
_WHEELS = "wheels"


def write(
    directory: Path,
    spec: EngineSpec,
    compiler_version: str | None,
    model: Model,
    *,
    size_bytes: int,
    pip_requirements: Sequence[str] | None = None,
    extra_pip_requirements: Sequence[str] = (),
) -> dict[str, str]:
    """Write them into the directory of a package.

    Parameters
    ----------
    model : Model
        Facts of the model that MLflow has already.
    pip_requirements : Sequence[str] | None
        Replace the engine's own requirements, this package's wheel included.

    Returns
    -------
    dict[str, str]
        Sha256 of the files by their path.
    """
    import yaml
    from mlflow import pyfunc
    from mlflow.models.model import MLMODEL_FILE_NAME
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    names = {"conda": "conda.yaml", "virtualenv": "python_env.yaml"}
    if pip_requirements is None:
        wanted = [*requirements(spec), *extra_pip_requirements]
        name, content = wheel()
        (directory / _WHEELS).mkdir()
        (directory / _WHEELS / name).write_bytes(content)
    else:
        wanted = [*pip_requirements, *extra_pip_requirements]
    _text(directory / "requirements.txt", "".join(f"{line}\n" for line in wanted))
    conda = _mlflow_conda_env(additional_pip_deps=wanted, install_mlflow=False)
    _text(directory / names["conda"], yaml.safe_dump(conda, sort_keys=False))
    _PythonEnv.current().to_yaml(str(directory / names["virtualenv"]))
    pyfunc.add_to_model(model, loader_module=LOADER, conda_env=names["conda"], python_env=names["virtualenv"])
    model.add_flavor(
        FLAVOR,
        manifest=FILE,
        workload=spec.workload,
        compiler=spec.compiler,
        compiler_version=compiler_version,
        precision=spec.target.precision,
        batch_sizes=list(spec.batch_sizes),
        code=None,
    )
    model.signature = signature(spec)
    model.model_size_bytes = size_bytes
    model.save(str(directory / MLMODEL_FILE_NAME))
    every = digest_files(directory)
    return {path: digest for path, digest in every.items() if not path.startswith(f"{ENGINE_DIRECTORY}/")}


def requirements(spec: EngineSpec) -> list[str]:
    """Requirements of an engine for pip: MLflow, this package from its wheel, and the engine's runtime."""
    import mlflow

    return [
        f"mlflow=={mlflow.__version__}",
        f"./{_WHEELS}/{wheel()[0]}",
        *(f"{name}=={version}" for name, version in sorted(spec.packages.items())),
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
