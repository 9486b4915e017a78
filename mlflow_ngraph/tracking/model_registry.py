"""Read-only lookup of registered engines by alias in MLflow's model registry, and a check of alias names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tracking import connection

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MAX_TAG = 5000
"""Characters of a version's tag that a registry keeps."""

_SOURCE = re.compile(r"(?:^models:/|/models/)(m-[0-9a-f]{32})(?:$|/)")
_ALIAS = re.compile(r"[\w-]{1,255}", re.ASCII)
_RESERVED = re.compile(r"latest|v\d+", re.IGNORECASE)


def check_alias(alias: str) -> str:
    """``alias``, if MLflow takes it. Raises `UsageError` if it does not."""
    if not _ALIAS.fullmatch(alias) or _RESERVED.fullmatch(alias):
        raise UsageError(f"alias {alias!r}: expected letters, digits, '_' and '-', and not 'latest' or 'v1'")
    return alias


def model_id_of(version: ModelVersion) -> str | None:
    """The LoggedModel that a version was registered from; None where it was registered from something else."""
    # The field is filled by some ways to register a model only; the source names the model in all of them.
    match = _SOURCE.search(version.source or "")
    return version.model_id or (match[1] if match else None)


class Registry:
    """The registered models of one server. To be used within `connection.talking`."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def champion(self, name: str, alias: str) -> ModelVersion | None:
        """The version that an alias points at; None where there is no such alias."""
        number = self.aliases(name).get(alias)
        return None if number is None else self._client.get_model_version(name, str(number))

    def aliases(self, name: str) -> dict[str, str]:
        """The versions by alias; none where there is no such registered model."""
        aliases: dict[str, str] = {}
        with connection.unless_gone():
            aliases.update(self._client.get_registered_model(name).aliases)
        return aliases
