"""What a tracking server says follows from the samples that it keeps."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis import results
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Artifact, Tag
from mlflow_ngraph_archives.recompute import recompute

pytestmark = pytest.mark.long


@pytest.fixture
def run_id(sqlite_uri: str, fake_compiler: None, tmp_path: Path) -> str:
    study = parse(
        {
            "workloads": ["block:conv?width=8"],
            "compilers": [{"name": "fake", "flags": {"delay_ms": 1.0}}],
            "batch_sizes": [1, 2],
            "repetitions": 12,
            "slice_repetitions": 4,
            "threads": 1,
            "warmup": {"max_seconds": 0.05},
            "stability": {"max_foreign_cpu_percent": 1000, "max_spread": 1000, "max_drift": 1000},
        }
    )
    run_study(study, home=tmp_path / "home", tracking_uri=sqlite_uri)
    return str(results.load(sqlite_uri)["run_id"].iloc[0])


def test_every_figure_follows_from_the_samples_and_a_changed_one_is_found(
    run_id: str, sqlite_uri: str, cli, tmp_path: Path
) -> None:
    found = recompute(run_id, sqlite_uri)
    assert len(found.differences) == 0
    assert (found.cells, found.samples) == (4, 48)
    assert found.figures > 100
    code, out, _ = cli("results", "recompute", run_id, "--tracking-uri", sqlite_uri)
    assert (code, "all equal, bit for bit" in out) == (0, True)

    client = connection.connect(sqlite_uri)
    path = Path(client.download_artifacts(run_id, Artifact.RESULTS, str(tmp_path)))
    table = pd.read_parquet(path)
    table["throughput"] *= np.where(table.index == 0, 1 + 1e-15, 1.0)
    table.to_parquet(path)
    client.log_artifact(run_id, str(path))
    code, _, err = cli("results", "recompute", run_id, "--tracking-uri", sqlite_uri)
    assert code == 2
    assert f"run {run_id}: results.parquet is not the file whose digest the run's tags tell" in err
    client.set_tag(run_id, Tag.RESULTS_SHA256, hashlib.sha256(path.read_bytes()).hexdigest())
    code, out, _ = cli("results", "recompute", run_id, "--tracking-uri", sqlite_uri)
    assert code == 1
    assert "1 differ" in out
    assert "throughput" in out


def test_half_a_journal_is_said_to_be_one(run_id: str, sqlite_uri: str, cli, tmp_path: Path) -> None:
    client = connection.connect(sqlite_uri)
    path = Path(client.download_artifacts(run_id, Artifact.JOURNAL, str(tmp_path)))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    client.log_artifact(run_id, str(path))
    code, out, _ = cli("results", "recompute", run_id, "--tracking-uri", sqlite_uri)
    assert code == 1
    assert "the journal ends before its study does" in out


def test_changed_samples_are_found(run_id: str, sqlite_uri: str, tmp_path: Path) -> None:
    client = connection.connect(sqlite_uri)
    lines = Path(client.download_artifacts(run_id, Artifact.JOURNAL, str(tmp_path)))
    whole = lines.read_text()
    number = next(number for number, line in enumerate(whole.splitlines(), 1) if '"event":"slice"' in line)
    lines.write_text(
        re.sub(r'("durations_ns":\[)(\d)', lambda digit: digit[1] + str(9 - int(digit[2])), whole, count=1)
    )
    client.log_artifact(run_id, str(lines))
    with pytest.raises(TrackingError, match=rf"run {run_id}: journal\.jsonl: line {number} is damaged"):
        recompute(run_id, sqlite_uri)
    lines.write_text(whole)
    client.log_artifact(run_id, str(lines))
    path = Path(client.download_artifacts(run_id, Artifact.SAMPLES, str(tmp_path)))
    table = pd.read_parquet(path)
    table["duration_ns"] += (table.index == 5).astype("int64")
    table.to_parquet(path)
    client.log_artifact(run_id, str(path))
    assert recompute(run_id, sqlite_uri).differences["figure"].tolist() == ["samples"]


def test_a_run_without_samples_is_refused(sqlite_uri: str) -> None:
    client = connection.connect(sqlite_uri)
    run = client.create_run("0").info.run_id
    with pytest.raises(TrackingError, match=r"has no journal\.jsonl"):
        recompute(run, sqlite_uri)
