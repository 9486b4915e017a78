"""ServerEngines: finds an engine on a tracking server by its cache key, checks its trust, and downloads it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses
from mlflow_ngraph.engines import trust
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY
from mlflow_ngraph.engines.package import check_spec
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import connection, download
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.trusted import trusted_manifest
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from mlflow_ngraph.engines.manifest import Manifest

MOST = 5
"""Candidates that are tried for one key before the engine is compiled instead."""


class ServerEngines:
    """Pulls engines from one tracking server, and believes nothing that it has not checked."""

    def __init__(self, tracking_uri: str, home: Path | None = None) -> None:
        self._uri = tracking_uri
        self._rules = trust.load(home=home)

    def fetch(
        self, key: str, requires: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Manifest | None:
        """Put the newest engine with this key that is whole and serves here into the new ``directory``.

        ``tell`` is told of every engine that was found and could not be used, and why. Raises `TrackingError` if the
        server cannot be reached or refuses.
        """
        for model in self._candidates(key):
            try:
                return self._pull(model, key, requires, directory)
            except EngineError as error:
                shown = f"engine {model.model_id} of {addresses.shown(self._uri)}"
                tell(f"{shown} is not used: {error}")
        return None

    @cached_property
    def _client(self) -> MlflowClient:
        return connection.reach(self._uri)

    @cached_property
    def _experiment_ids(self) -> list[str]:
        """All experiments; asked for once, and not for every engine of a study."""
        return list(connection.experiments(self._client))

    def _candidates(self, key: str) -> list[LoggedModel]:
        """LoggedModels with this key whose files are complete, the newest first."""
        client = self._client
        with connection.talking(self._uri, "look for engines", connection.RECORDING):
            models = client.search_logged_models(
                self._experiment_ids,
                f"tags.`{Tag.ENGINE_KEY}` = '{key}'",
                order_by=[{"field_name": "creation_timestamp", "ascending": False}],
            )
        return [model for model in models if str(model.status) == "READY"][:MOST]

    def _pull(self, model: LoggedModel, key: str, requires: Mapping[str, str], directory: Path) -> Manifest:
        """The engine's own files, without those that make the package a model of MLflow."""
        remote = download.of_model(model, self._uri)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{directory.name}.package-") as temporary:
            package = Path(temporary)
            try:
                manifest = trusted_manifest(remote, self._rules).manifest
                engine = manifest.pulled(addresses.shown(self._uri), model.model_id, model.source_run_id)
                if engine.compiled.key != key:
                    raise EngineError(f"its manifest has the key {engine.compiled.key}")
                misfit = _condemned(manifest) or engine.spec.serves(requires)
                if misfit:
                    raise EngineError(misfit)
                download.files(remote, manifest, list(engine.files), package)
                check_spec(package / ENGINE_DIRECTORY, engine)
            except TrackingError as error:
                raise EngineError(str(error)) from None
            (package / ENGINE_DIRECTORY).rename(directory)
        return engine


def _condemned(manifest: Manifest) -> str:
    """Fault that a study found in an engine; empty without one."""
    return next(
        (
            f"at batch size {figures.batch} it was {figures.verdict} ({figures.reason})"
            for figures in manifest.figures
            if figures.verdict not in (str(Verdict.OK), str(Verdict.BUILT))
        ),
        "",
    )
