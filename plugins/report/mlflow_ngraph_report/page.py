"""A report as one self-contained HTML page. Text from results is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from mlflow_ngraph.tables.sheet import Column, Sheet, first
from mlflow_ngraph.text import rounded
from mlflow_ngraph_report import style
from mlflow_ngraph_report.blocks import ABSENT, Block, Figure, Report, Text

_EVIDENCE_ROWS = 12
_FOLDED = 40
"""Rows from which a table is folded."""


def render(report: Report, drawn: Mapping[str, str]) -> str:
    """Render the page; ``drawn`` are the figures as SVG, by key."""
    pictures = {key: Markup(style.inline(text, key)) for key, text in drawn.items()}  # noqa: S704 - drawn by us
    return _template().render(report=report, pictures=pictures, absent=ABSENT, folded=_FOLDED) + "\n"


@cache
def _template() -> jinja2.Template:
    here = resources.files("mlflow_ngraph_report") / "template"
    surroundings = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    surroundings.filters.update(kind=_kind, groups=_groups, evidence=_evidence, paragraphs=_paragraphs)
    surroundings.globals["css"] = Markup((here / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own
    return surroundings.from_string((here / "report.html.j2").read_text(encoding="utf-8"))


def _kind(block: Block) -> str:
    return {Sheet: "table", Figure: "figure", Text: "text"}[type(block)]


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Groups of neighbouring columns with their sizes; empty without groups."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = column.group, groups[-1][1] + 1
        else:
            groups.append((column.group, 1))
    return groups if any(name for name, _ in groups) else []


def _evidence(block: Text) -> Sheet | None:
    """Numbers behind a text, without empty columns."""
    if block.evidence is None or block.evidence.empty:
        return None
    known = block.evidence.dropna(axis="columns", how="all")
    titles = [str(name).replace("_", " ") for name in known.columns]
    rows = [list(map(_plain, row)) for row in known.itertuples(index=False)]
    return first(Sheet("", titles, rows, key=f"{block.key}-evidence"), _EVIDENCE_ROWS, "are shown by the command")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return rounded(value)
    return "" if value is None or value is pd.NA else str(value)


def _paragraphs(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Split into paragraphs. One that ends with a colon starts a list."""
    paragraphs: list[tuple[str, list[str]]] = []
    for line in lines:
        if paragraphs and paragraphs[-1][0].endswith(":") and not line.endswith(":"):
            paragraphs[-1][1].append(line)
        else:
            paragraphs.append((line, []))
    return paragraphs
