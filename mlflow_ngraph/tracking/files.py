"""Write the artifacts of a study run into a directory, and check that the store has them after the upload."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from mlflow_ngraph.errors import UnreachableError
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables import arrivals, races, results, results_file, samples, summary
from mlflow_ngraph.tables.sheet import markdown
from mlflow_ngraph.text import csv_table
from mlflow_ngraph.tracking.schema import Artifact

if TYPE_CHECKING:
    from mlflow.entities import FileInfo

    ListFolder = Callable[[str | None], list[FileInfo]]
    """Lists a folder of a store, given by its path, or the top."""

UNKNOWN = -1
"""Size of a file of which a store tells none."""


def write(
    record: StudyRecord,
    directory: Path,
    target: Path,
    run_id: str | None,
    lane_runs: Mapping[str, str],
    models: Mapping[str, str],
) -> None:
    """Write everything that a study run carries into ``target``.

    ``directory`` is the study's own, which has the journal. ``run_id`` is that of the study, where it has one;
    ``lane_runs`` and ``models`` are ids in MLflow by lane and by engine.
    """
    table = results.from_record(record, run_id, lane_runs, models)
    results_file.write(table, target / Artifact.RESULTS)
    _text(target / Artifact.RESULTS_CSV, csv_table(table))
    samples.from_record(record).to_parquet(target / Artifact.SAMPLES, index=False)
    if arrivals.measured(record):
        arrivals.from_record(record).to_parquet(target / Artifact.ARRIVALS, index=False)
    write_study(record, target)
    _text(target / Artifact.FINGERPRINT, json.dumps(record.fingerprint, indent=2, sort_keys=True) + "\n")
    if contest := races.document(record):
        _text(target / Artifact.RACES, json.dumps(contest, indent=1, ensure_ascii=False) + "\n")
    parts = (summary.sheet(record), *races.parts(record), *arrivals.parts(record))
    _text(target / Artifact.SUMMARY, f"{markdown(*parts)}\n")
    journal = directory / Artifact.JOURNAL
    if journal.is_file():
        shutil.copyfile(journal, target / Artifact.JOURNAL)


def write_study(record: StudyRecord, target: Path) -> None:
    """Write the study file of a record into ``target``."""
    study = json.loads(json.dumps(record.study))
    _text(target / Artifact.STUDY, yaml.safe_dump(study, sort_keys=False, allow_unicode=True))


@contextmanager
def placed(resource_id: str) -> Iterator[None]:
    """Upload to the place that the server tells of a run or a model.

    Raises `UnreachableError` if its answer was none. MLflow takes that for a folder without a name, and keeps it.
    """
    from mlflow.tracking._tracking_service.utils import _artifact_repos_cache as known

    try:
        yield
    except OSError:
        if resource_id not in known or known[resource_id].artifact_uri:
            raise
        del known[resource_id]
        raise UnreachableError(f"the tracking server answered without the place of files of {resource_id}") from None


def require_stored(directory: Path, list_folder: ListFolder) -> None:
    """Compare files that were uploaded with what the store lists.

    Raises `UnreachableError` if one is missing there, or has another size: the upload was answered, and nothing was
    stored.
    """
    sizes = {
        path.relative_to(directory).as_posix(): path.stat().st_size for path in directory.rglob("*") if path.is_file()
    }
    stored = listed(sizes, list_folder)
    if wrong := sorted(path for path, size in sizes.items() if stored[path] not in (size, UNKNOWN)):
        raise UnreachableError(f"the upload of {', '.join(wrong)} was answered, and is not stored")


def listed(paths: Collection[str], list_folder: ListFolder) -> dict[str, int | None]:
    """Sizes of files that a store lists; None of those that it does not."""
    folders = {path.rpartition("/")[0] or None for path in paths}
    found = {
        file.path: UNKNOWN if file.file_size is None else file.file_size
        for folder in folders
        for file in list_folder(folder)
        if not file.is_dir
    }
    return {path: found.get(path) for path in paths}


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
