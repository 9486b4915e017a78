"""Disk cache of answers of verbs that read results, by a digest of the question, the code and the tables.

The key is a digest of everything that an answer depends on: the question, the code, and the run and sha256 of every
table. For a database on this machine it is the state of its file (`cli/kept.py`). Hence nothing needs invalidation.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mlflow_ngraph import user_cache
from mlflow_ngraph.version import __version__

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import FoundRuns

_KEPT = 200
"""Number of answers to keep; the oldest go first."""


class Plain(Protocol):
    """An answer that can be kept."""

    def to_plain(self) -> Mapping[str, Any]:
        """Plain values for JSON."""


A = TypeVar("A", bound=Plain)


def answer(
    question: Mapping[str, Any], found: FoundRuns | None, compute: Callable[[], A], read: Callable[[dict[str, Any]], A]
) -> A:
    """Look up an answer, or compute and keep it.

    Deleting a lane run invalidates the answers about it. ``question`` has everything that the answer depends on besides
    the results, as plain values by name. ``found`` are the study runs of the question; None skips the cache. ``read``
    is the inverse of ``to_plain``.
    """
    called = name_of(question, found) if found is not None else None
    if called is None:
        return compute()
    answers = Answers()
    kept = answers.get(called)
    with suppress(ValueError, KeyError, TypeError, IndexError):
        if found is not None and kept is not None:
            old = read(kept["answer"])
            if found.deleted(kept["lanes"]) == kept["withdrawn"]:
                found.notes.extend(kept["notes"])
                return old
    before = len(found.notes) if found is not None else 0
    new = compute()
    if found is not None:
        about = {"notes": found.notes[before:], "lanes": found.lanes, "withdrawn": found.withdrawn}
        answers.put(called, {"answer": new.to_plain(), **about})
    return new


class Answers:
    """Answers on this machine."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or user_cache.directory("answers")

    def get(self, name: str) -> dict[str, Any] | None:
        """Read an answer; None if it is missing or damaged."""
        with suppress(OSError, ValueError, RecursionError):
            digest, _, content = (self._directory / f"{name}.json").read_bytes().partition(b"\n")
            if digest == _digest(content):
                kept: dict[str, Any] = json.loads(content)
                return kept
        return None

    def put(self, name: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer. Failures are ignored: a full or read-only disk only makes the next time slower."""
        content = json.dumps(answer, default=str).encode()
        user_cache.keep(self._directory / f"{name}.json", _digest(content) + b"\n" + content)
        with suppress(OSError):
            entries = sorted(os.scandir(self._directory), key=lambda entry: entry.stat().st_mtime)
            for entry in entries[:-_KEPT]:
                Path(entry.path).unlink(missing_ok=True)


def name_of(question: Mapping[str, Any], found: FoundRuns) -> str | None:
    """Key of a question about results; None where a run does not record its digest."""
    runs = [
        (server.uri, run.run_id, run.digest, run.experiment, sorted(run.tags.items()))
        for server in found.servers
        for run in found.runs[server.uri]
    ]
    if not all(digest for _, _, digest, _, _ in runs):
        return None
    return name(question, sorted(runs))


def name(*basis: Any) -> str:
    """Key of an answer that depends on these plain values and on the code."""
    return _digest(json.dumps([__version__, code(), *basis], sort_keys=True, default=str).encode()).decode()


def code() -> list[tuple[str, int, int]]:
    """State of the package's files. In a checkout the code changes without its version."""
    files = ((path, path.stat()) for path in Path(__file__).parent.parent.rglob("*.py"))
    return sorted((str(path), about.st_size, about.st_mtime_ns) for path, about in files)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
