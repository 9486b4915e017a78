"""What others may write on a shared server costs its own rows, is named, and gives no orders to whoever reads it."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from pyarrow import parquet as pq

from benchmarks import seed_server
from mlflow_ngraph import load_results
from mlflow_ngraph.tracking.schema import Artifact, Kind, Tag


@pytest.fixture
def seeded(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(seed_server, "WORKLOADS_A_STUDY", 2)
    monkeypatch.setattr(seed_server, "COMPILERS_A_STUDY", 2)
    seed_server.seed(sqlite_uri, 2)
    return sqlite_uri


def study_runs(uri: str) -> list[str]:
    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.run_id for run in client.search_runs(ids, f"tags.`{Tag.KIND}` = '{Kind.STUDY}'")]


def write_table(uri: str, run_id: str, content: bytes, directory: Path) -> None:
    """As a recorder does: the file, then the tag."""
    path = directory / Artifact.RESULTS
    path.write_bytes(content)
    MlflowClient(uri).log_artifact(run_id, str(path))
    MlflowClient(uri).set_tag(run_id, Tag.RESULTS_SHA256, hashlib.sha256(content).hexdigest())


def changed(**columns: Any) -> Callable[[pd.DataFrame], bytes]:
    return lambda table: table.assign(**columns).to_parquet(index=False)


def unfolding(table: pd.DataFrame) -> bytes:
    """A table of a few bytes whose texts would take gigabytes if each row had its own."""
    rows = 50_000
    whole = pa.Table.from_pandas(table.iloc[[0] * rows], preserve_index=False)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 19_000])
    stream = io.BytesIO()
    pq.write_table(whole.set_column(whole.column_names.index("reason"), "reason", text), stream, compression="zstd")
    return stream.getvalue()


def no_utf8(table: pd.DataFrame) -> bytes:
    """A table with a column of texts that are none."""
    whole = pa.Table.from_pandas(table, preserve_index=False)
    texts = pa.array([b"\xe3(net"] * len(table), pa.binary()).view(pa.string())
    stream = io.BytesIO()
    pq.write_table(whole.set_column(whole.column_names.index("reason"), "reason", texts), stream)
    return stream.getvalue()


BAD = {
    "empty": (lambda table: b"", "is not readable"),
    "garbage": (lambda table: b"\x00\xff" * 500, "is not readable"),
    "cut": (lambda table: table.to_parquet(index=False)[:-40], "is not readable"),
    "other columns": (lambda table: pd.DataFrame({"a": [1]}).to_parquet(), "has no column study_id"),
    "words for times": (changed(started_at="yesterday"), "is not readable"),
    "infinite": (changed(throughput=math.inf), "has an infinite number in column throughput"),
    "negative": (changed(latency_p50_ms=-1.0), "has -1.0 in column latency_p50_ms"),
    "no freedom": (changed(throughput_df=1e-300), "has 1e-300 in column throughput_df"),
    "no error": (changed(throughput_log_se=1e200), "has 1e+200 to 1e+200 in column throughput_log_se"),
    "to come": (changed(started_at=time.time() + 1e6), "which is yet to come"),
    "nan": (changed(started_at=math.nan), "has rows without started_at"),
    "batch": (changed(batch=0), "has 0 to 0 in column batch"),
    "verdict": (changed(verdict="fine"), "has the verdict 'fine'"),
    "another study": (changed(study_id="mine"), "is not of study"),
    "rounds": (changed(log_medians='{"0.1": "x"}'), "in column log_medians"),
    "flags": (changed(flags="{"), "is not readable"),
    "declared": (changed(custom_metrics='{"a": {"unit": 1}}'), "in column custom_metrics"),
    "text for a number": (changed(cpu_reduction="torch:os:system"), "is not readable"),
    "unfolding": (unfolding, "texts unfold to"),
    "no UTF-8": (no_utf8, "is not readable"),
    "half an interval": (
        lambda table: table.drop(columns="throughput_ci_high").to_parquet(index=False),
        "has column throughput_ci_low and no throughput_ci_high",
    ),
    "half of some intervals": (changed(throughput_ci_low=math.nan), "has rows with throughput_ci_"),
    "long": (changed(reason="x" * 30_000), "has a text of 30000 characters in column reason"),
}
"""What somebody who may write to an experiment of his own can put there."""


@pytest.mark.parametrize("kind", BAD)
def test_a_table_that_no_study_wrote_costs_its_own_rows_alone(
    seeded: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, cli, kind: str
) -> None:
    harm, why = BAD[kind]
    bad = study_runs(seeded)[0]
    table = pd.read_parquet(MlflowClient(seeded).download_artifacts(bad, Artifact.RESULTS))
    write_table(seeded, bad, harm(table), tmp_path)
    assert set(load_results(seeded)["run_id"]) == {*study_runs(seeded)} - {bad}
    (told,) = caplog.messages
    assert f"run {bad} of experiment 'seeded': results.parquet" in told
    assert why in told
    for _ in range(2):  # the second time from what is kept
        code, out, err = cli("compare", "--tracking-uri", seeded)
        assert code == 0
        assert "throughput" in out
        assert f"note: {told}" in err


@pytest.mark.parametrize(
    "columns",
    [
        {"flags": None},
        {"flags": '{"fallback_nodes": "torch:os:system"}'},
        {"flags": '{"fallback_nodes": null, "threads": [1]}'},
        {"workload": "block:conv?depth=2&width=99999999999999999999999"},
        {"workload": "block:conv?width="},
        {"workload": "timm:\u2028", "label": ""},
    ],
    ids=str,
)
def test_what_others_name_as_they_like_stops_no_verb(seeded: str, tmp_path: Path, cli, columns: dict[str, Any]) -> None:
    one = study_runs(seeded)[0]
    table = pd.read_parquet(MlflowClient(seeded).download_artifacts(one, Artifact.RESULTS))
    write_table(seeded, one, changed(**columns)(table), tmp_path)
    for verb in ("compare", "recommend", "results findings"):
        code, _, err = cli(*verb.split(), "--tracking-uri", seeded)
        assert code in (0, 3), err  # 3: nothing is trustworthy enough to be recommended
    assert one in set(load_results(seeded)["run_id"])


def test_text_of_others_gives_no_orders(seeded: str, tmp_path: Path, cli) -> None:
    bad = study_runs(seeded)[0]
    table = pd.read_parquet(MlflowClient(seeded).download_artifacts(bad, Artifact.RESULTS))
    label = "=1+cmd|'/c calc'!A0\x1b[2J\x1b]0;owned\x07\nfake row\u202e[red]_{}"
    write_table(seeded, bad, changed(label=label, device="-x")(table), tmp_path)
    for form in ("table", "markdown", "csv", "json", "latex"):
        out = cli("compare", "--tracking-uri", seeded, "--format", form)[1]
        assert not set("\x1b\x07\u202e") & set(out)
        assert not [line for line in out.splitlines() if line.startswith("fake row")]
        assert "[red]" in out.replace("\\", "")
        if form == "csv":
            assert not [cell for line in csv.reader(io.StringIO(out)) for cell in line if cell[:1] in tuple("=-+@")]


def test_results_of_another_experiment_take_the_place_of_others_with_a_word_alone(
    seeded: str, tmp_path: Path, cli
) -> None:
    client = MlflowClient(seeded)
    mine = client.get_run(study_runs(seeded)[0])
    path = Path(client.download_artifacts(mine.info.run_id, Artifact.RESULTS, str(tmp_path)))
    other = client.create_run(client.create_experiment("other's"), tags={**mine.data.tags, Tag.STUDY_ID: "other"})
    table = pd.read_parquet(path)
    write_table(seeded, other.info.run_id, changed(study_id="other", started_at=time.time())(table), tmp_path)
    err = cli("compare", "--tracking-uri", seeded)[2]
    assert 'note: looked at experiment "other\'s", recorded to last; --all-experiments takes in 1 other' in err
    err = cli("compare", "--tracking-uri", seeded, "--all-experiments")[2]
    assert f"note: {len(table)} cells have results in several experiments" in err
    assert f'{len(table)} of "other\'s": --experiment chooses' in err
    assert cli("compare", "--tracking-uri", seeded, "--experiment", "seeded")[2] == ""
