"""The tables and figures of archived studies beside the paper's, as a page of the documentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evidence.archives import Measured
from mlflow_ngraph_report import markdown
from mlflow_ngraph_report.blocks import ABSENT
from mlflow_ngraph_report.build import build
from mlflow_ngraph_report.files import draw

_LEFT_OUT = ("summary", "findings", ABSENT)
"""Sections about single models, of which the claims say more, and about what is not there."""
_TITLE = "The paper's tables and figures, measured"
_FILES = (".svg", ".csv")


def write(measured: Measured, page: Path, *, alone: bool = False) -> None:
    """Write a page in Markdown, and its figures and data into a directory of the same name.

    With ``alone``, the directory is the page's own: figures and data of earlier pages go.
    """
    every = build(measured.frame, machines=measured.machines, paper=True, title=_TITLE)
    report = replace(every, sections=[section for section in every.sections if section.key not in _LEFT_OUT])
    folder = page.with_suffix("")
    if alone:
        for before in (path for path in folder.glob("*") if path.suffix in _FILES):
            before.unlink()
    places: dict[str, dict[str, str]] = {}
    for name, content in draw(report).files().items():
        path = folder / Path(name).name
        if path.suffix in _FILES:
            folder.mkdir(exist_ok=True)
            path.write_bytes(content)
            places.setdefault(path.stem, {})[path.suffix[1:]] = f"{folder.name}/{path.name}"
    page.write_text(markdown.render(report, places), encoding="utf-8")
