"""``report``: what it writes, what it logs, and that its tables follow from raw samples."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from mlflow_ngraph.analysis import results
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.text import rounded
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Artifact, Tag
from tests.support.records import study_record

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
Cli = Callable[..., tuple[int, str, str]]


def record(uri: str, directory: Path, **about: str) -> str:
    """Record a study without measuring; returns the id of its run."""
    made = study_record(directory, **about)
    recorder = Recorder(uri)
    run_id = recorder.open(made, directory)
    for lane in made.lanes:
        recorder.record_lane(made, lane)
    recorder.close(made, "FINISHED")
    return run_id


def test_the_report_of_one_study_is_written_and_logged(
    sqlite_uri: str, tmp_path: Path, cli: Cli, cli_json: Callable[..., Any]
) -> None:
    run_id = record(sqlite_uri, tmp_path / "study")
    out = tmp_path / "out"
    found = cli_json("results", "report", "--tracking-uri", sqlite_uri, "--output", str(out))
    assert found["page"] == str(out / "report.html")
    assert found["logged"] == [f"runs:/{run_id}/report/report.html"]
    parts = {part["key"]: part for part in found["parts"]}
    assert parts["t6"]["kind"] == "table"
    assert parts["f5"]["kind"] == "figure"
    assert parts["t7"]["reason"].startswith("needs the study paper-blocks-conv")
    client = connection.connect(sqlite_uri)
    logged = {file.path for file in client.list_artifacts(run_id, Artifact.REPORT)}
    assert {"report/report.html", "report/report.md", "report/figures", "report/data"} <= logged
    kept = Path(client.download_artifacts(run_id, "report/report.html", str(tmp_path)))
    assert kept.read_bytes() == (out / "report.html").read_bytes()
    assert "3.11.7" in kept.read_text()  # a version from the tags of the run

    run = client.get_run(run_id)
    note = run.data.tags[Tag.NOTE]
    link = f"[Report](#/experiments/{run.info.experiment_id}/runs/{run_id}/artifacts/report/report.html?workflowType=machine_learning)"
    assert note.split("\n\n")[1] == link, "below what the description begins with"
    code, text, err = cli(
        "results", "report", run_id, "--tracking-uri", sqlite_uri, "--output", str(tmp_path / "alone.html")
    )
    assert (code, err) == (0, "")
    assert text.startswith("openvino is 2.50 [2.43, 2.58] times eager on resnet18 at batch 4")
    assert f"open {(tmp_path / 'alone.html').as_uri()}" in text
    assert [line for line in text.splitlines() if line.startswith("not there: ") and "Table 7" in line]
    assert client.get_run(run_id).data.tags[Tag.NOTE] == note
    assert [path.name for path in tmp_path.glob("alone*")] == ["alone.html"]


def test_what_is_logged_where(sqlite_uri: str, tmp_path: Path, cli_json: Callable[..., Any]) -> None:
    first = record(sqlite_uri, tmp_path / "one")
    second = record(sqlite_uri, tmp_path / "two", study_id="quick-4567abcd-20251010-090000", device="orin")
    where = ("--tracking-uri", sqlite_uri, "--output", str(tmp_path / "out"))
    assert cli_json("results", "report", *where)["logged"] == []
    assert len(cli_json("results", "report", first, second, *where)["logged"]) == 2
    assert cli_json("results", "report", first, *where, "--no-log")["logged"] == []
    (only,) = cli_json("results", "report", "--devices", "orin", *where)["logged"]
    assert second in only
    lane = results.load(sqlite_uri)
    lane_run = lane.loc[lane["run_id"] == first, "lane_run_id"].iloc[0]
    (of_lane,) = cli_json("results", "report", lane_run, *where)["logged"]
    assert first in of_lane
    assert "xeon" in (tmp_path / "out" / "report.html").read_text()


def test_wrong_requests_are_one_line(sqlite_uri: str, tmp_path: Path, cli: Cli) -> None:
    record(sqlite_uri, tmp_path / "study")
    for arguments, told in (
        (("nowhere",), "no results of nowhere"),
        (("--include", "wrong"), "unknown verdict 'wrong'"),
        (("--devices", "gpu"), "unknown device 'gpu'"),
    ):
        code, _, err = cli(
            "results", "report", *arguments, "--tracking-uri", sqlite_uri, "--output", str(tmp_path / "no")
        )
        assert (code, err.count("\n")) == (2, 1), err
        assert told in err
    assert not (tmp_path / "no").exists()


def test_verdicts_that_are_included_count(sqlite_uri: str, tmp_path: Path, cli: Cli) -> None:
    record(sqlite_uri, tmp_path / "study")
    pages = {}
    for name, more in (("without", ()), ("with", ("--include", "timeout"))):
        target = tmp_path / f"{name}.html"
        assert (
            cli("results", "report", "--tracking-uri", sqlite_uri, "--output", str(target), "--no-log", *more)[0] == 0
        )
        pages[name] = target.read_text()
    assert "count all the same" in pages["with"]
    assert "left out everywhere else" in pages["without"]


def study_of_everything() -> Any:
    return parse(
        {
            "name": "report",
            "workloads": [
                "timm:resnet10t?image_size=64",
                *(f"block:mha?width=16&depth={depth}" for depth in (1, 2)),
                *(f"block:conv?width=8&depth={depth}&image_size=16" for depth in (1, 2)),
            ],
            "compilers": ["torchscript"],
            "batch_sizes": [1, 2, 8],
            "repetitions": 12,
            "slice_repetitions": 4,
            "threads": 1,
            "limits": {"reload_seconds": 0},
            "warmup": {"window": 2, "max_seconds": 0.1},
            "stability": {"max_foreign_cpu_percent": 1000, "max_spread": 1000, "max_drift": 1000},
        }
    )


@pytest.mark.usefixtures("compilers")
def test_tables_6_to_8_follow_from_raw_samples(sqlite_uri: str, tmp_path: Path, cli: Cli) -> None:
    outcome = run_study(study_of_everything(), home=tmp_path / "home", tracking_uri=sqlite_uri)
    assert outcome.exit_code == 0, outcome.record.lanes
    (run_id,) = results.load(sqlite_uri)["run_id"].unique()
    out = tmp_path / "out"
    assert cli("results", "report", run_id, "--paper", "--tracking-uri", sqlite_uri, "--output", str(out))[0] == 0

    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    client = connection.connect(sqlite_uri)
    for name in (Artifact.SAMPLES, Artifact.RESULTS, Artifact.FINGERPRINT):
        client.download_artifacts(run_id, name, str(artifacts))
    script = ROOT / "benchmarks" / "recompute_tables.py"
    done = subprocess.run(
        [sys.executable, "-P", str(script), str(artifacts)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    again = {tuple(key.split()): values for key, values in json.loads(done.stdout).items()}

    text = (out / "report.md").read_text()
    shown = 0
    for row in pd.read_csv(out / "data" / "t6.csv").to_dict("records"):
        for band in ("b2_4", "b8_16"):
            rate, rate_std, cpu, cpu_std = again.pop(("t6", row["device"], row["series"], row["family"], band))
            names = ("throughput", "throughput_std", "cpu_percent", "cpu_percent_std")
            assert [row[f"{name}_{band}"] for name in names] == pytest.approx([rate, rate_std, cpu, cpu_std], rel=1e-9)
            assert f"{rate:.2f} " in text
            assert f"{cpu:.2f} ± {cpu_std:.2f}" in text
            shown += 1
    for key, target in (("t7", "conv"), ("t8", "mha")):
        lines = re.findall(r"^\| .*$", text.partition(f"### Table {key[1:]}: ")[2].partition("###")[0], re.MULTILINE)
        for row in pd.read_csv(out / "data" / f"{key}.csv").to_dict("records"):
            slope, retention = again.pop((target, row["device"], row["series"], str(row["width"]), "b8"))
            assert [row["slope_b8"], row["retention_b8"]] == pytest.approx([slope, retention], rel=1e-9)
            (line,) = [one for one in lines if row["series"] in one]
            cells = [cell.strip().split(" ")[0] for cell in line.strip("|").split("|")]
            assert rounded(slope) in cells
            assert rounded(retention) in cells
            shown += 1
    assert shown == 4 + 2
    # what is left are batch sizes that the tables do not show, and the baseline of the blocks
    assert all(key[0] in ("conv", "mha") and (key[4] in ("b1", "b2") or key[2] == "identity") for key in again)

    page = (out / "report.html").read_text()
    for key in ("f1", "f5", "f6", "f8", "f9", "f12", "f7-conv", "f7-mha", "f10-conv", "f10-mha", "f11"):
        kind = '<li id="f1" class="missing">' if key == "f1" else f'<article id="{key}" class="figure">'
        assert kind in page, key
    assert "needs two models or more" in page
    # One small model of another family: nothing of the paper's stands in its place, and the page says so.
    assert "needs ok cells of the paper" in page or "not comparable" in page


def test_the_recomputing_script_is_short_and_stands_alone() -> None:
    text = (ROOT / "benchmarks" / "recompute_tables.py").read_text()
    assert len(text.splitlines()) <= 40
    assert not re.search(r"^\s*(import|from) mlflow", text, re.MULTILINE)


def test_who_may_only_read_gets_the_page_and_writes_nothing(
    sqlite_uri: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record(sqlite_uri, tmp_path / "study")
    before = connection.connect(sqlite_uri).get_run(run_id).to_dictionary()

    def forbidden(*_: Any, **__: Any) -> None:
        raise MlflowException("Permission denied", PERMISSION_DENIED)

    for name in ("set_tag", "log_artifacts"):
        monkeypatch.setattr(MlflowClient, name, forbidden)
    page = tmp_path / "page.html"
    code, _, err = cli("results", "report", "--tracking-uri", sqlite_uri, "--output", str(page))
    assert (code, err) == (0, f"note: the report is not logged to run {run_id}: you may only read it\n")
    assert page.is_file()
    monkeypatch.undo()
    assert connection.connect(sqlite_uri).get_run(run_id).to_dictionary() == before


def test_a_report_goes_to_no_run_that_a_table_names(
    sqlite_uri: str, tmp_path: Path, cli_json: Callable[..., Any]
) -> None:
    mine = record(sqlite_uri, tmp_path / "one")
    client = connection.connect(sqlite_uri)
    tags = client.get_run(mine).data.tags
    theirs = client.create_run(client.create_experiment("theirs"), tags={**tags, Tag.STUDY_ID: "theirs"}).info.run_id
    table = pd.read_parquet(client.download_artifacts(mine, Artifact.RESULTS)).assign(study_id="theirs", run_id=mine)
    path = tmp_path / Artifact.RESULTS
    table.to_parquet(path, index=False)
    client.log_artifact(theirs, str(path))
    client.set_tag(theirs, Tag.RESULTS_SHA256, hashlib.sha256(path.read_bytes()).hexdigest())
    where = ("--tracking-uri", sqlite_uri, "--output", str(tmp_path / "out"))
    found = cli_json("results", "report", "--experiment", "theirs", *where)
    assert found["logged"] == [f"runs:/{theirs}/report/report.html"]
    lane = str(table["lane_run_id"].iloc[0])
    assert cli_json("results", "report", lane, *where)["logged"] == [f"runs:/{mine}/report/report.html"]
