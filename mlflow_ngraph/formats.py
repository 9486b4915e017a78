"""Formats of what is written to last: those of another version are refused with what reads them."""

from __future__ import annotations

from mlflow_ngraph.text import harmless
from mlflow_ngraph.version import __version__

_LONGEST = 40
"""Characters of a version that a message shows."""


def foreign(found: object, known: int, writer: object = None) -> str:
    """Why something cannot be read, and what reads it; empty where it has the format that this version knows.

    Parameters
    ----------
    found : object
        The format that it says it has.
    known : int
        The one that this version reads.
    writer : object
        The version of mlflow-ngraph that it says wrote it, where it does.
    """
    if found == known and not isinstance(found, bool):
        return ""
    said = harmless(str(found)[:_LONGEST])
    reader = (
        f"mlflow-ngraph {harmless(writer[:_LONGEST])} wrote it and reads it"
        if isinstance(writer, str)
        else "a newer one may read it"
    )
    return f"has format {said}, and this is mlflow-ngraph {__version__}, for format {known}: {reader}"
