"""Compare a file's format version with the supported one, and word the refusal with the version that reads it."""

from __future__ import annotations

from mlflow_ngraph.text import harmless
from mlflow_ngraph.version import __version__

_LONGEST = 40
"""Characters of a version that a message shows."""


def version_mismatch(found: object, known: int, writer: object = None) -> str:
    """Explain why a file of another format, by version ``writer``, cannot be read; empty if the format matches."""
    if found == known and not isinstance(found, bool):
        return ""
    if isinstance(found, str) and found == str(known):
        return f"has the text {found!r} for its format, which is a number"
    said = harmless(str(found)[:_LONGEST])
    if isinstance(writer, str) and writer != __version__:
        reader = f"mlflow-ngraph {harmless(writer[:_LONGEST])} wrote it and reads it"
    else:
        reader = f"{'an older' if isinstance(found, int) and found < known else 'a newer'} one may read it"
    return f"has format {said}, and this is mlflow-ngraph {__version__}, for format {known}: {reader}"
