"""Options whose text is a list or a number. Imports nothing: verbs that only read results start with it."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_ngraph.errors import StudyError


def items(text: Sequence[str] | str | None) -> list[str]:
    """The parts between commas, of one text or of several."""
    texts = [text] if isinstance(text, str) else list(text or ())
    return [part.strip() for whole in texts for part in whole.split(",") if part.strip()]


def whole(key: str, text: str) -> int:
    """The whole number that ``text`` is.

    Raises
    ------
    StudyError: it is none; names ``key``.
    """
    try:
        return int(text)
    except ValueError:
        raise StudyError(f"command line: {key}: expected a whole number, found {text!r}") from None
