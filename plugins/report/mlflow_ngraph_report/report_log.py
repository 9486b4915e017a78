"""Log a report to a study run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.tracking import connection, schema, views
from mlflow_ngraph.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BEGINNING = "[Report](#/"


def log(tracking_uri: str, run_id: str, directory: Path, page: str) -> str:
    """Log a directory as the report of a study run, replacing an earlier one, and link to it from the run's note.

    Parameters
    ----------
    page : str
        Path of the page within ``directory``.

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
    """Put a link below the first paragraph of the note, and keep the rest as far as it fits."""
    run = client.get_run(run_id)
    parts = run.data.tags.get(Tag.NOTE, "").split("\n\n")
    link = f"[Report]({views.run_link('', run.info.experiment_id, run_id, f'/artifacts/{path}')[1:]})"
    first, *rest = [part for part in parts if not part.startswith(_BEGINNING)]
    client.set_tag(run_id, Tag.NOTE, schema.cut("\n\n".join([first, link, *rest]), schema.MAX_TAG))
