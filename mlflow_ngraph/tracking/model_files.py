"""What makes an engine package a model of MLflow: MLmodel, signature, and an environment with this engine's runtime only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.load_spec import LoadSpec
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, FILE, About
from mlflow_ngraph.engines.wheel import wheel
from mlflow_ngraph.workloads.base import BATCH

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature

FLAVOR = "ngraph"
LOADER = "mlflow_ngraph.release.flavor"
_WHEELS = "wheels"


def write(
    directory: Path,
    about: About,
    loading: LoadSpec,
    model: Model,
    *,
    size_bytes: int,
    pip_requirements: Sequence[str] | None = None,
    extra_pip_requirements: Sequence[str] = (),
) -> dict[str, str]:
    """Write them into the directory of a package, beside the engine's own.

    Parameters
    ----------
    model : Model
        What MLflow knows of the model already.
    pip_requirements : Sequence[str] | None
        Take the place of what the engine needs, this package's wheel included.
    extra_pip_requirements : Sequence[str]
        Come after it.

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
        wanted = [*requirements(loading), *extra_pip_requirements]
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
        workload=about.workload,
        compiler=about.compiler,
        compiler_version=about.compiler_version,
        precision=about.precision,
        batch_sizes=list(about.batch_sizes),
        code=None,
    )
    model.signature = signature(about)
    model.model_size_bytes = size_bytes
    model.save(str(directory / MLMODEL_FILE_NAME))
    every = digest_files(directory)
    return {path: digest for path, digest in every.items() if not path.startswith(f"{ENGINE_DIRECTORY}/")}


def requirements(loading: LoadSpec) -> list[str]:
    """What pip has to install for an engine: MLflow, this package from its wheel, and the engine's runtime."""
    import mlflow

    return [
        f"mlflow=={mlflow.__version__}",
        f"./{_WHEELS}/{wheel()[0]}",
        *(f"{name}=={version}" for name, version in sorted(loading.packages.items())),
    ]


def signature(about: About) -> ModelSignature:
    """The inputs and outputs as MLflow describes tensors; the batch axis is free."""
    from mlflow.models import ModelSignature

    return ModelSignature(inputs=_schema(about.inputs), outputs=_schema(about.outputs))


def _schema(specs: Sequence[Mapping[str, Any]]) -> Any:
    from mlflow.types import Schema, TensorSpec

    return Schema(
        [
            TensorSpec(
                np.dtype(spec["dtype"]),
                tuple(-1 if size == BATCH else int(size) for size in spec["shape"]),
                spec["name"],
            )
            for spec in specs
        ]
    )


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
