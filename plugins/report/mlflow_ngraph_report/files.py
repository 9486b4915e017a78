"""Draw a report's figures, write its files (HTML page, Markdown, figures, data), and log them to a study run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph.text import csv_table
from mlflow_ngraph.tracking import artifact_stores, connection, schema, views
from mlflow_ngraph.tracking.schema import Artifact, Tag
from mlflow_ngraph_report import markdown, page, style
from mlflow_ngraph_report.blocks import Figure, Report

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE, MARKDOWN = "report.html", "report.md"
FIGURES, DATA = "figures", "data"
_BEGINNING = "[Report](#/"


@dataclass(frozen=True)
class Drawn:
    """A report with drawn figures."""

    report: Report
    svg: Mapping[str, str]
    """Figures by key."""
    png: Mapping[str, bytes]

    def html(self) -> str:
        """Render the page."""
        return page.render(self.report, self.svg)

    def files(self) -> dict[str, bytes]:
        """Content of every file by path."""
        contents: dict[str, bytes] = {}
        where: dict[str, dict[str, str]] = {}
        for key, text in self.svg.items():
            where[key] = {"svg": f"{FIGURES}/{key}.svg", "png": f"{FIGURES}/{key}.png"}
            contents[where[key]["svg"]] = text.encode()
            contents[where[key]["png"]] = self.png[key]
        for block in self.report.blocks():
            if isinstance(block, (Sheet, Figure)) and block.data is not None:
                path = f"{DATA}/{block.key}.csv"
                where.setdefault(block.key, {})["csv"] = path
                contents[path] = csv_table(block.data).encode()
        text = markdown.render(self.report, where)
        return {PAGE: self.html().encode(), MARKDOWN: text.encode(), **contents}


def draw(report: Report) -> Drawn:
    """Draw the figures of a report."""
    svg, png = {}, {}
    for block in report.blocks():
        if isinstance(block, Figure):
            with style.drawing():
                figure = block.draw()
                svg[block.key], png[block.key] = style.svg(figure), style.png(figure)
    return Drawn(report, svg, png)


def write(drawn: Drawn, target: Path) -> list[Path]:
    """Write a report, and return its files, the page first. A ``target`` that ends with ``.html`` gets only the page,
    another one is a directory for all files.

    Raises
    ------
    UsageError
        It cannot be written there, or a file or folder of it is a link, which could lead to a file of somebody else.
    """
    alone = target.suffix.lower() in (".html", ".htm")
    contents = (
        {target: drawn.html().encode()} if alone else {target / path: text for path, text in drawn.files().items()}
    )
    if linked := next((path for path in (*contents, target / FIGURES, target / DATA) if path.is_symlink()), None):
        raise UsageError(f"{linked} is a link: remove it, or choose another place")
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return list(contents)


def denied(tracking_uri: str, run_id: str) -> str:
    """Reason not to write to a run; empty if this user may. Asked by writing the run's note as it is."""
    from mlflow.exceptions import MlflowException

    client = connection.connect(tracking_uri)
    with connection.talking(tracking_uri, "log the report", connection.RECORDING):
        run = client.get_run(run_id)
        try:
            client.set_tag(run_id, Tag.NOTE, run.data.tags.get(Tag.NOTE, ""))
        except MlflowException as error:
            if error.get_http_status_code() not in (401, 403):
                raise
            return "you may only read it"
    return artifact_stores.foreign_host(run.info.artifact_uri, tracking_uri)


def log(tracking_uri: str, run_id: str, directory: Path, page: str) -> str:
    """Log a directory as the report of a study run, replacing an earlier one, and link to the page from the run's note.
    Returns the page's artifact URI.
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
