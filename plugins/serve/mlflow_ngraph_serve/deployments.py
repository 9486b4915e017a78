"""MLflow deployments plugin ``ngraph``: client for engines kept on this machine, ``run_local``, ``target_help``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mlflow.deployments import BaseDeploymentClient, PredictionsResponse
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from mlflow_ngraph.addresses import shown
from mlflow_ngraph.errors import EngineError, NGraphError, UsageError
from mlflow_ngraph_serve.refusal import Refusal
from mlflow_ngraph_serve.root import Deployment, Root, check_config
from mlflow_ngraph_serve.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.engines.local_engine import LoadedEngine
    from mlflow_ngraph.workloads.base import TensorSpec

_log = logging.getLogger(__name__)

FLAVOR = "ngraph"
_SCHEME = "ngraph"


class DeploymentError(MlflowException, click.ClickException):  # type: ignore[misc]
    """An error as programs expect it of MLflow; its command line shows one line of it."""

    def __init__(self, message: str) -> None:
        MlflowException.__init__(self, message, INVALID_PARAMETER_VALUE)


class NGraphDeployments(BaseDeploymentClient):  # type: ignore[misc]
    """Deployments on this machine.

    Parameters
    ----------
    target_uri : str
        ``ngraph``, or ``ngraph:/DIRECTORY``.
    """

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)
        _, _, path = target_uri.partition(":")
        with _as_mlflow():
            if path and not path.startswith("/"):
                raise UsageError(f"{target_uri}: give the whole path, as {_SCHEME}:/DIRECTORY")
            self._root = Root(Path("/" + path.lstrip("/")) if path else None)
        self._engines: dict[str, LoadedEngine] = {}

    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Pull an engine, prove it, and keep it under a name.

        Raises
        ------
        MlflowException
            The name is taken, or the engine is damaged, does not fit this machine, or computes something else than its
            model.
        """
        with _as_mlflow():
            _check(flavor, endpoint)
            return self._described(self._root.create(name, model_uri, config or {}, None))

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Change the engine or the options of a deployment; the old ones stay until the new ones are proven."""
        with _as_mlflow():
            _check(flavor, endpoint)
            return self._described(self._root.update(name, model_uri, config or {}, None))

    def delete_deployment(
        self, name: str, config: Mapping[str, Any] | None = None, endpoint: str | None = None
    ) -> None:
        """Forget a deployment, if there is one. A server of it goes on until it is stopped."""
        with _as_mlflow():
            _check(None, endpoint)
            self._root.delete(name)

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """The facts of all deployments; of a damaged one its name, and the ``problem``."""
        with _as_mlflow():
            _check(None, endpoint)
            return [self._listed(name) for name in self._root.names()]

    def _listed(self, name: str) -> dict[str, Any]:
        try:
            return self._described(self._root.get(name))
        except NGraphError as error:
            # The command line shows names only.
            _log.warning("deployment %s: %s", name, error)
            return {"name": name, "flavor": FLAVOR, "problem": str(error)}

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """The facts of a deployment, the directory of its package, and the command that serves it."""
        with _as_mlflow():
            _check(None, endpoint)
            return self._described(self._root.get(name))

    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> PredictionsResponse:
        """The outputs for a batch of any size, from the server at the config's ``url``, or else computed here.

        Parameters
        ----------
        inputs : Any
            A mapping from names of inputs to arrays or nested lists; a data frame with a column for each input and a
            row for each sample; or an array, where the engine has a single input.
        """
        with _as_mlflow():
            _check(None, endpoint)
            deployment = self._root.get(deployment_name or "")
            url = deployment.config.get("url")
            outputs = self._asked(deployment, url, inputs) if url else self._computed(deployment, inputs)
            return PredictionsResponse(predictions={name: array.tolist() for name, array in outputs.items()})

    def explain(self, deployment_name: str | None = None, df: Any = None, endpoint: str | None = None) -> Any:
        """Not supported: an engine gives outputs, and no reasons for them."""
        raise DeploymentError("the target ngraph explains no predictions: engines give outputs only")

    def _computed(self, deployment: Deployment, inputs: Any) -> dict[str, NDArray[Any]]:
        engine = self._engine(deployment)
        return engine.run(_arrays(inputs, engine.inputs), batching="split")

    def _asked(self, deployment: Deployment, url: str, inputs: Any) -> dict[str, NDArray[Any]]:
        from mlflow_ngraph.engines import batches
        from mlflow_ngraph.engines.arrays import input_arrays, samples
        from mlflow_ngraph_serve.client import infer, largest_batch

        spec = self._root.manifest(deployment).spec

        def ask(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
            named = {tensor.name: array for tensor, array in zip(spec.inputs, arrays, strict=True)}
            found = infer(url, deployment.name, named)
            missing = [tensor.name for tensor in spec.outputs if tensor.name not in found]
            if missing:
                raise EngineError(f"{shown(url)} gives no output {missing[0]!r}: it serves another engine")
            return [found[tensor.name] for tensor in spec.outputs]

        arrays = input_arrays(_arrays(inputs, spec.inputs), spec.inputs)
        count = samples(arrays, spec.inputs) or 1
        if count == 1 or batches.inseparable(spec.inputs, spec.outputs, spec.mixes):
            joined = ask(arrays)
        else:
            largest = largest_batch(url, deployment.name) or max(spec.batch_sizes)
            cuts = batches.pieces(count, range(1, largest + 1), "split")
            joined = batches.join(
                [(cut, ask(batches.take_piece(arrays, spec.inputs, cut))) for cut in cuts], spec.outputs
            )
        return {tensor.name: array for tensor, array in zip(spec.outputs, joined, strict=True)}

    def _engine(self, deployment: Deployment) -> LoadedEngine:
        """The engine of a deployment, loaded once; an earlier one of another package is closed."""
        from mlflow_ngraph.engines.local_engine import LoadedEngine

        loaded = self._engines.get(deployment.name)
        if loaded is None or loaded.directory != self._root.place(deployment):
            if loaded is not None:
                self._engines.pop(deployment.name).close()
            self._engines[deployment.name] = LoadedEngine(self._root.package(deployment))
        return self._engines[deployment.name]

    def _described(self, deployment: Deployment) -> dict[str, Any]:
        place = self._root.place(deployment)
        spec = self._root.manifest(deployment).spec
        return {
            "name": deployment.name,
            "flavor": FLAVOR,
            "model_uri": deployment.model_uri,
            "workload": spec.workload,
            "compiler": spec.compiler,
            "precision": spec.target.precision,
            "batch_sizes": spec.batch_sizes,
            "manifest_sha256": deployment.digest,
            "directory": str(place),
            "config": {key: shown(value) if key == "url" else value for key, value in deployment.config.items()},
            "created_at": deployment.created_at,
            "updated_at": deployment.updated_at,
        }


def run_local(name: str, model_uri: str, flavor: str | None = None, config: Mapping[str, Any] | None = None) -> None:
    """Serve an engine under a name until a signal comes: the deployment's, where there is one of this name and engine."""
    from mlflow_ngraph_serve import process, source
    from mlflow_ngraph_serve.settings import check_name

    with _as_mlflow():
        _check(flavor, None)
        check_name(name)
        root, options = Root(), dict(config or {})
        kept = root.get(name) if name in root.names() else None
        if kept is not None and kept.model_uri == model_uri:
            package = root.package(kept)
            options = {**kept.config, **options}
        else:
            # MLflow does not say which target it was given.
            process.tell(
                f"{root.directory} has no deployment {name!r} of {model_uri}: the options are those of this command"
            )
            package = source.obtain(model_uri)
        settings = check_config(options)
    process.become(package, name, settings)


def target_help() -> str:
    """Text of ``mlflow deployments help -t ngraph``."""
    fields = "\n".join(f"  {name}: {' '.join(str(field.description).split())}" for name, field in _options())
    return f"""Engines of mlflow-ngraph, kept and run on this machine.

Target: {_SCHEME}, or {_SCHEME}:/DIRECTORY for another place than deployments below NGRAPH_HOME.

  mlflow deployments create -t ngraph -m models:/resnet50@xeon-champion --name r50 -C max_p99_ms=50
  mlflow deployments run-local -t ngraph -m models:/resnet50@xeon-champion --name r50
  mlflow deployments predict -t ngraph --name r50 -I inputs.json

Model URIs: models:/NAME@ALIAS, models:/NAME/VERSION, models:/MODEL_ID, or the directory of an engine package.
An input file is JSON with a list of samples for each input: {{"x": [[...], [...]]}}.

Config (-C name=value; update -C name= takes an option back):
  url: of a running server; predict asks it instead of computing here
{fields}
"""


def _options() -> list[tuple[str, Any]]:
    return list(Settings.model_fields.items())


def _check(flavor: str | None, endpoint: str | None) -> None:
    if flavor not in (None, FLAVOR):
        raise UsageError(f"the target ngraph deploys the flavor {FLAVOR}, not {flavor!r}")
    if endpoint is not None:
        raise UsageError("the target ngraph has no endpoints")


def _arrays(inputs: Any, specs: tuple[TensorSpec, ...]) -> dict[str, Any]:
    """Inputs as arrays by name; text formats have numbers of the right type only after conversion."""
    import numpy as np

    from mlflow_ngraph_serve import tensors

    if isinstance(inputs, np.ndarray):
        if len(specs) != 1:
            raise UsageError(f"the engine takes {len(specs)} inputs: give them by name")
        inputs = {specs[0].name: inputs}
    elif hasattr(inputs, "columns"):
        inputs = {str(name): inputs[name].tolist() for name in inputs.columns}
    if not isinstance(inputs, Mapping):
        raise UsageError(f"expected a mapping, a data frame or an array, found {type(inputs).__name__}")
    known = {spec.name: spec for spec in specs}
    try:
        return {
            name: tensors.numbers(value, known[name])
            if isinstance(value, list | int | float) and name in known
            else np.asarray(value)
            for name, value in inputs.items()
        }
    except Refusal as refusal:
        raise UsageError(str(refusal)) from None


@contextmanager
def _as_mlflow() -> Iterator[None]:
    """Convert errors to MLflow's."""
    try:
        yield
    except NGraphError as error:
        raise DeploymentError(str(error)) from error
