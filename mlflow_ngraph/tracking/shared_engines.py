"""Engines that anybody has logged to a tracking server, found by their key."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.store import StoredEngine
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, LoggedModel

MOST = 5
"""Candidates that are tried for one key before the engine is compiled instead."""


class ServerEngines:
    """Pulls engines from one tracking server, and believes nothing that it has not checked."""

    def __init__(self, tracking_uri: str) -> None:
        self._uri = tracking_uri

    def fetch(
        self, key: str, requires: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> StoredEngine | None:
        """Put the newest engine with this key that is whole and serves here into the new ``directory``.

        Parameters
        ----------
        requires: what the compiler requires here.
        tell: told of every engine that was found and could not be used, and why.

        Raises
        ------
        TrackingError: the server cannot be reached or refuses.
        """
        for model in self._candidates(key):
            try:
                return self._pull(model, key, requires, directory)
            except EngineError as error:
                shown = f"engine {model.model_id} of {connection.masked(self._uri)}"
                tell(f"{shown} is not used: {error}")
                shutil.rmtree(directory, ignore_errors=True)
        return None

    @cached_property
    def _client(self) -> MlflowClient:
        return connection.reach(self._uri)

    @cached_property
    def _experiment_ids(self) -> list[str]:
        """All experiments; asked for once, and not for every engine of a study."""
        client = self._client
        found: list[Experiment] = connection.every(lambda token: client.search_experiments(page_token=token))
        return [experiment.experiment_id for experiment in found]

    def _candidates(self, key: str) -> list[LoggedModel]:
        """LoggedModels with this key whose files are complete, the newest first."""
        client = self._client
        with connection.talking(self._uri, "look for engines", connection.RECORDING):
            found = client.search_logged_models(
                self._experiment_ids,
                f"tags.`{Tag.ENGINE_KEY}` = '{key}'",
                order_by=[{"field_name": "creation_timestamp", "ascending": False}],
            )
        return [model for model in found if str(model.status) == "READY"][:MOST]

    def _pull(self, model: LoggedModel, key: str, requires: Mapping[str, str], directory: Path) -> StoredEngine:
        manifest = self._manifest(model, directory)
        try:
            engine = manifest.stored(connection.masked(self._uri), model.model_id, model.source_run_id)
        except ValueError as error:
            raise EngineError(str(error)) from None
        if engine.key != key:
            raise EngineError(f"its manifest has the key {engine.key}")
        misfit = engine.serves(requires)
        if misfit:
            raise EngineError(misfit)
        self._download(model, Artifact.ENGINE, directory)
        if digest_files(directory) != engine.files:
            raise EngineError("its files are not those of its manifest")
        return engine

    def _manifest(self, model: LoggedModel, directory: Path) -> Manifest:
        self._download(model, Artifact.MANIFEST, directory)
        path = directory / Artifact.MANIFEST
        try:
            return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError):
            raise EngineError("its manifest is not readable") from None
        finally:
            path.unlink(missing_ok=True)

    def _download(self, model: LoggedModel, artifact: str, directory: Path) -> None:
        """Put an artifact of a model, or what is in it if it is a directory, into ``directory``."""
        import mlflow

        uri = f"{model.artifact_location.rstrip('/')}/{artifact}"
        temporary = directory.with_name(f"{directory.name}.download")
        try:
            with connection.talking(self._uri, f"download {artifact}", connection.RECORDING):
                found = Path(
                    mlflow.artifacts.download_artifacts(
                        artifact_uri=uri, dst_path=str(temporary), tracking_uri=self._uri
                    )
                )
            if found.is_dir():
                found.rename(directory)
            else:
                directory.mkdir(parents=True, exist_ok=True)
                found.rename(directory / artifact)
        except TrackingError as error:
            raise EngineError(str(error)) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
