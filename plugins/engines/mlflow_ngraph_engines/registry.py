"""Changes to a model registry: registration of engines, and of champions.

MLflow sets an alias whatever it was before. So that of two people who promote at the same time one notices, a promotion
is announced in a tag of the registered model before it looks at the alias for the last time: whoever announces first is
seen by the other, and whoever comes later sees what the first has done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking import connection, model_registry
from mlflow_ngraph.tracking.model_registry import model_id_of
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

MAX_DESCRIPTION = 5000
"""Characters of a version's description that a registry keeps."""
STALE_S = 600.0
"""Age from which on the author of an announcement counts as dead."""

_VERSIONS = "mlflow.modelVersions"


class Registry(model_registry.Registry):
    """The registered models of one server, to be changed. To be used within `connection.talking`."""

    def __init__(self, client: MlflowClient, tracking_uri: str) -> None:
        super().__init__(client)
        self._uri = tracking_uri

    def version_of(self, name: str, model_id: str) -> ModelVersion | None:
        """The newest version of a registered model that was registered from this LoggedModel."""
        quoted = name.replace("'", "''")
        versions: list[ModelVersion] = connection.every(
            lambda token: self._client.search_model_versions(f"name='{quoted}'", page_token=token)
        )
        own = [version for version in versions if model_id_of(version) == model_id]
        return max(own, key=lambda version: int(version.version), default=None)

    def versions(self) -> dict[str, list[tuple[str, str, tuple[str, ...]]]]:
        """Names, versions and aliases under which LoggedModels are registered, by their ids."""
        models: list[RegisteredModel] = connection.every(
            lambda token: self._client.search_registered_models(page_token=token)
        )
        aliases: dict[tuple[str, str], list[str]] = {}
        for model in models:
            for alias, number in model.aliases.items():
                aliases.setdefault((model.name, str(number)), []).append(alias)
        versions: list[ModelVersion] = connection.every(
            lambda token: self._client.search_model_versions(page_token=token)
        )
        registrations: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
        for version in versions:
            model_id, number = model_id_of(version), str(version.version)
            if model_id:
                named = tuple(sorted(aliases.get((version.name, number), ())))
                registrations.setdefault(model_id, []).append((version.name, number, named))
        return registrations

    def register(self, name: str, model: LoggedModel, tags: Mapping[str, str], description: str) -> ModelVersion:
        """A version made from a LoggedModel: the one that there is, or a new one, with these tags and this description."""
        known = self.version_of(name, model.model_id)
        if known is not None:
            for key, value in tags.items():
                self._client.set_model_version_tag(name, known.version, key, value)
            self._client.update_model_version(name, known.version, description)
            return known
        self.make(name)
        # A database is asked by MLflow's default client when the source is models:/..., which may know another server.
        source = f"models:/{model.model_id}" if connection.is_server(self._uri) else model.artifact_location
        made = self._client.create_model_version(
            name,
            source,
            run_id=model.source_run_id,
            tags=dict(tags),
            description=description,
            model_id=model.model_id,
        )
        self._link(model.model_id, name, str(made.version))
        return made

    @contextmanager
    def promoting(self, name: str, alias: str, over: str | None) -> Iterator[None]:
        """A block that may set ``alias``, unless it has changed hands since it was looked at or is about to.

        ``over`` is the version that the alias is taken to point at; None for no alias. Raises `TrackingError` if it
        points at another one by now, or another promotion is in progress.
        """
        prefix = f"{Tag.PROMOTING}{alias}."
        mine = prefix + uuid4().hex
        self._client.set_registered_model_tag(name, mine, str(time.time()))
        try:
            self._alone(name, prefix, mine)
            current = self.aliases(name).get(alias)
            if (None if current is None else str(current)) != over:
                raise TrackingError(
                    f"{name}@{alias} has changed meanwhile: it was {_called(over)} and is {_called(current)} now; "
                    "promote again to be compared with that"
                )
            yield
        finally:
            self._client.delete_registered_model_tag(name, mine)

    def crown(self, name: str, alias: str, version: str) -> None:
        """Let an alias point at a version; within `promoting`."""
        self._client.set_registered_model_alias(name, alias, version)

    def _alone(self, name: str, prefix: str, mine: str) -> None:
        """Check that no other promotion is announced, and remove announcements of killed processes."""
        for tag, at in self._client.get_registered_model(name).tags.items():
            if not tag.startswith(prefix) or tag == mine:
                continue
            age = time.time() - _number(at)
            if age < STALE_S:
                raise TrackingError(
                    f"somebody else is promoting an engine to {name}@{prefix.removeprefix(Tag.PROMOTING)[:-1]} "
                    f"since {max(age, 0):.0f} s: try again when they are done"
                )
            self._client.delete_registered_model_tag(name, tag)

    def make(self, name: str) -> None:
        """Make a registered model if there is none."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
                raise

    def _link(self, model_id: str, name: str, number: str) -> None:
        """Let the page of the LoggedModel lead to the version, as MLflow does when it registers one itself."""
        own = {"name": name, "version": int(number)}
        known = []
        with suppress(ValueError):
            known = json.loads(self._client.get_logged_model(model_id).tags.get(_VERSIONS, "[]"))
        if not any(entry.get("name") == name and str(entry.get("version")) == number for entry in known):
            self._client.set_logged_model_tags(model_id, {_VERSIONS: json.dumps([*known, own])})


def _called(version: str | int | None) -> str:
    return "nobody" if version is None else f"version {version}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
