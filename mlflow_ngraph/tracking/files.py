"""Artifacts of a study run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables import arrivals, races, results, results_file, samples, summary
from mlflow_ngraph.tables.sheet import markdown
from mlflow_ngraph.text import csv_table
from mlflow_ngraph.tracking.schema import Artifact


def write(
    record: StudyRecord,
    directory: Path,
    target: Path,
    run_id: str | None,
    lane_runs: Mapping[str, str],
    models: Mapping[str, str],
) -> None:
    """Write everything that a study run carries into ``target``.

    Parameters
    ----------
    directory : Path
        The study's own directory, which has the journal.
    run_id : str | None
        The study run, where there is one.
    lane_runs, models : Mapping[str, str]
        Ids in MLflow by lane and by engine.
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


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
