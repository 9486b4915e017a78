"""Put a report beside the study that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.tracking import connection, schema
from mlflow_ngraph.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LINK = "[Report](#/experiments/{experiment}/runs/{run}/artifacts/{path})"
_BEGINNING = "[Report](#/"


def log(tracking_uri: str, run_id: str, directory: Path, page: str) -> str:
    """Log a directory as the report of a study run, in place of an earlier one, and link to it from the run's note.

    Parameters
    ----------
    page : str
        The path of the page within ``directory``.

    Returns
    -------
    str
        Where the page is, as an artifact URI.

    Raises
    ------
    TrackingError
        The server cannot be reached or refuses.
    """
    client = connection.connect(tracking_uri)
    with connection.talking(tracking_uri, "log the report", connection.RECORDING):
        client.log_artifacts(run_id, str(directory), Artifact.REPORT)
        _link(client, run_id, f"{Artifact.REPORT}/{page}")
    return f"runs:/{run_id}/{Artifact.REPORT}/{page}"


def _link(client: MlflowClient, run_id: str, path: str) -> None:
    """Begin the note with a link; the rest stays, as far as there is room."""
    run = client.get_run(run_id)
    note = run.data.tags.get(Tag.NOTE, "")
    if note.startswith(_BEGINNING):
        note = note.partition("\n")[2].lstrip("\n")
    link = _LINK.format(experiment=run.info.experiment_id, run=run_id, path=path)
    client.set_tag(run_id, Tag.NOTE, schema.cut(f"{link}\n\n{note}", schema.MAX_TAG))
