"""``mlflow-ngraph local cache``: list or shrink the engine cache of this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.lists import BYTES, SECONDS, quantity
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Column, Sheet, number, prose
from mlflow_ngraph.text import duration

if TYPE_CHECKING:
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.store import EngineStore


@dataclass(frozen=True)
class _Row:
    """An engine with its last use and size in the file system."""

    engine: Manifest
    unused_s: float
    freed_bytes: int

    def as_dict(self) -> dict[str, Any]:
        spec, compiled, maker = self.engine.spec, self.engine.compiled, self.engine.made_by
        return {
            "key": compiled.key,
            "workload": spec.workload,
            "label": self.engine.origin.label,
            "compiler": spec.compiler,
            "precision": spec.target.precision,
            "batch_sizes": list(spec.batch_sizes),
            "size_bytes": self.engine.size_bytes,
            "freed_bytes": self.freed_bytes,
            "compiled_at": maker.compiled_at,
            "compile_total_s": compiled.seconds,
            "unused_s": self.unused_s,
            "origin": maker.model_dump(),
        }


@click.command()
@click.option("--prune", is_flag=True, help="Remove engines; say which with --older-than or --max-size.")
@click.option("--older-than", metavar="AGE", help="Those that no study has used for this long: 12h, 30d, 8w.")
@click.option(
    "--max-size", metavar="SIZE", help="The longest unused, until all together take at most this: 500MB, 20GB."
)
@click.option("--dry-run", is_flag=True, help="Say what --prune would remove; remove nothing.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def cache(
    prune: bool, older_than: str | None, max_size: str | None, dry_run: bool, home: Path | None, as_json: bool
) -> int:
    """List the engines that studies share on this machine, or remove some.

    A study has all its engines in its own directory: removing one here takes it from no study, not even from one that
    is running. What removing gives back is therefore what no study keeps.
    """
    from mlflow_ngraph.engines.store import EngineStore

    if not prune and (older_than or max_size or dry_run):
        raise UsageError("--older-than, --max-size and --dry-run say what --prune removes: add --prune")
    if prune and not (older_than or max_size):
        raise UsageError("--prune needs --older-than or --max-size, such as --older-than 30d; --max-size 0 removes all")
    age = quantity("--older-than", older_than, SECONDS) if older_than else None
    size = quantity("--max-size", max_size, BYTES) if max_size else None
    store = EngineStore(home_directory.engine_store(home_directory.directory(home)))
    rows = _rows(store)
    if prune:
        rows = _superfluous(rows, age, size)
        if not dry_run:
            for row in rows:
                store.remove(row.engine.compiled.key)
    if as_json:
        document = {"directory": str(store.root), "engines": [row.as_dict() for row in rows]}
        output.print_json({**document, "removed": prune and not dry_run})
        return 0
    _show(store, rows, _done(prune, dry_run))
    return 0


def _rows(store: EngineStore) -> list[_Row]:
    """All engines, the longest unused first."""
    now = time.time()
    rows = [
        _Row(engine, max(0.0, now - store.used_at(engine.compiled.key)), store.freed_bytes(engine))
        for engine in store.entries()
    ]
    return sorted(rows, key=lambda row: -row.unused_s)


def _superfluous(rows: list[_Row], age: float | None, size: float | None) -> list[_Row]:
    """Entries to remove, so that none is older than ``age`` and the others take at most ``size``."""
    total = sum(row.engine.size_bytes for row in rows)
    superfluous = []
    for row in rows:
        if (age is not None and row.unused_s > age) or (size is not None and total > size):
            superfluous.append(row)
            total -= row.engine.size_bytes
    return superfluous


def _done(prune: bool, dry_run: bool) -> str:
    if not prune:
        return "kept"
    return "would be removed" if dry_run else "removed"


def _show(store: EngineStore, rows: list[_Row], done: str) -> None:
    total = sum(row.engine.size_bytes for row in rows) / 1e6
    freed = sum(row.freed_bytes for row in rows) / 1e6
    sheet = Sheet(
        "",
        [
            *("key", "workload", "compiler", "precision", prose("batch sizes"), number("size MB")),
            *(number("compiled in", spare=2), number("unused for"), Column("compiled by", spare=1)),
        ],
        list(map(_cells, rows)),
        [f"{len(rows)} engines {done}, {total:.1f} MB; {freed:.1f} MB of it in no study's directory ({store.root})"],
    )
    tables.show(output.console(), sheet)


def _cells(row: _Row) -> tuple[Any, ...]:
    spec, compiled, maker = row.engine.spec, row.engine.compiled, row.engine.made_by
    return (
        compiled.key[:12],
        row.engine.origin.label,
        spec.compiler,
        spec.target.precision,
        " ".join(map(str, spec.batch_sizes)),
        f"{row.engine.size_bytes / 1e6:.1f}",
        "" if compiled.seconds is None else duration(compiled.seconds),
        output.age(row.unused_s),
        f"{maker.study_id} on {maker.tracking_uri}" if maker.tracking_uri else maker.study_id,
    )
