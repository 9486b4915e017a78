"""Comparisons that were computed before: the same question about the same results has the same answer.

An answer is named by a digest of everything that it depends on: the question, the run and the sha256 of every table, and
the code that computed it. So nothing has to be found out about whether it still holds; what has changed has another name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import platformdirs

from mlflow_ngraph import __version__
from mlflow_ngraph.analysis.pivot import Pivot

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import Found

_KEPT = 200
"""How many answers stay; the oldest go first."""


class Answers:
    """Answers on this machine.

    Parameters
    ----------
    directory: made when something is kept in it; below the user's cache directory when left out.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(platformdirs.user_cache_dir("mlflow-ngraph")) / "answers"

    def get(self, name: str) -> Pivot | None:
        """An answer, if it is here and whole."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Pivot.from_plain(json.loads((self._directory / f"{name}.json").read_bytes()))
        return None

    def put(self, name: str, answer: Pivot) -> None:
        """Keep an answer; a full or read-only disk only makes the next time slower."""
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            partial = self._directory / f".{uuid4().hex}"
            try:
                partial.write_text(json.dumps(answer.to_plain(), default=str), encoding="utf-8")
                partial.replace(self._directory / f"{name}.json")
            finally:
                partial.unlink(missing_ok=True)
            entries = sorted(os.scandir(self._directory), key=lambda entry: entry.stat().st_mtime)
            for entry in entries[:-_KEPT]:
                Path(entry.path).unlink(missing_ok=True)


def name_of(question: Mapping[str, Any], found: Found) -> str | None:
    """The name of the answer to a question about the results of these runs; None where a run does not tell its digest.

    Parameters
    ----------
    question: plain values by their names.
    """
    runs = [
        (server.uri, run.run_id, run.digest, run.experiment, sorted(run.tags.items()))
        for server in found.servers
        for run in found.runs[server.uri]
    ]
    if not all(digest for _, _, digest, _, _ in runs):
        return None
    told = json.dumps([__version__, _code(), question, sorted(runs)], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()


def _code() -> list[tuple[str, int, int]]:
    """What computes answers; in a checkout it changes without the version changing."""
    entries = [entry for entry in os.scandir(Path(__file__).parent) if entry.name.endswith(".py")]
    return sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
