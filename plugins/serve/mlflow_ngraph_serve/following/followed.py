"""The followed registry alias: look up its version, and tag versions with their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph.tracking import connection, schema
from mlflow_ngraph.tracking.model_registry import MAX_TAG, Registry, model_id_of
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Champion:
    """A version that an alias points at. A registered model that is made anew counts its versions anew: so both."""

    version: str
    model_id: str
    """Id of the LoggedModel; empty where it was registered from something else."""


class FollowedAlias:
    """One alias of one server, which may be away at any moment."""

    def __init__(self, name: str, alias: str, tracking_uri: str) -> None:
        self.name, self.alias = name, alias
        self._uri = tracking_uri
        self._known: MlflowClient | None = None

    def look(self) -> Champion | None:
        """Resolve the alias; None where there is no such alias.

        Raises
        ------
        TrackingError
            The server does not answer, or refuses.
        """
        client = self._client()
        with connection.talking(self._uri, f"look up models:/{self.name}@{self.alias}", connection.IN_TIME):
            version = Registry(client).champion(self.name, self.alias)
        return None if version is None else Champion(str(version.version), model_id_of(version) or "")

    def mark(self, version: str, device: str, text: str | None) -> None:
        """Write a device's state of a version into a tag; None removes the tag.

        Raises
        ------
        TrackingError
            The server does not answer, or refuses.
        """
        client, tag = self._client(), schema.metric_name(Tag.FOLLOWER + device)
        with connection.talking(self._uri, f"tag version {version} of {self.name}", connection.IN_TIME):
            if text is not None:
                client.set_model_version_tag(self.name, version, tag, schema.cut(text, MAX_TAG))
                return
            with connection.unless_gone():  # the version may have been deleted since
                client.delete_model_version_tag(self.name, version, tag)

    def _client(self) -> MlflowClient:
        if self._known is None:
            self._known = connection.reach(self._uri)
        return self._known
