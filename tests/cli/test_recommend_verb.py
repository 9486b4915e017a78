"""``recommend``: what is said, in each format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.cli import recommend
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Artifact
from tests.support.records import study_record


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path) -> str:
    for device, number in (("xeon", 0), ("orin", 1)):
        record = study_record(tmp_path / device, device=device, study_id=f"quick-0123abcd-20251009-09000{number}")
        recorder = Recorder(sqlite_uri)
        recorder.open(record, tmp_path / device)
        for lane in record.lanes:
            recorder.record_lane(record, lane)
        recorder.close(record, "FINISHED")
    return sqlite_uri


def test_the_best_with_its_engine(recorded: str, cli, cli_json) -> None:
    code, out, err = cli("recommend", "--tracking-uri", recorded, "--workloads", "resnet18")
    assert (code, err) == (0, "")
    assert "resnet18 on xeon" in out
    assert "resnet18 on orin" in out
    assert out.count("mlflow-ngraph engine pull models:/m-") == 2
    assert "objective: throughput (throughput, higher is better)" in out
    found = cli_json("recommend", "--tracking-uri", recorded, "--workloads", "resnet18", "--max-latency-ms", "10")
    assert found["limits"] == ["latency_p99_ms ≤ 10"]
    best = [row for row in found["choices"] if row["best"]]
    assert [(row["compiler"], row["batch"]) for row in best] == [("openvino", 2), ("openvino", 2)]
    assert all(row["model_id"] in row["pull"] for row in best)


def test_a_terminal_shows_some_tables_and_each_answer(
    recorded: str, cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("recommend", "--tracking-uri", recorded, "--workloads", "resnet18")
    monkeypatch.setattr(recommend, "_SHOWN", 1)
    _, out, _ = cli(*asked)
    assert out.count("costs [95 %]") == 1
    assert out.count("times eager") == 2
    assert "1 table more: choose with --workloads, or write all with --output FILE" in out
    cli(*asked, "--output", str(tmp_path / "all.md"))
    assert (tmp_path / "all.md").read_text().count("costs [95 %]") == 2


def test_what_another_study_changes_is_said(sqlite_uri: str, tmp_path: Path, cli, cli_json) -> None:
    for number, factor in enumerate((1.0, 1.1)):
        record = study_record(tmp_path / str(number), study_id=f"quick-0123abcd-20251009-09000{number}")
        for cell in (cell for lane in record.lanes.values() for cell in lane.cells.values()):
            for name in ("speedup", "speedup_ci_low", "speedup_ci_high"):
                if name in cell.metrics:
                    cell.metrics[name] *= factor
        recorder = Recorder(sqlite_uri)
        recorder.open(record, tmp_path / str(number))
        for lane in record.lanes:
            recorder.record_lane(record, lane)
        recorder.close(record, "FINISHED")
    arguments = ("recommend", "--tracking-uri", sqlite_uri, "--workloads", "resnet18")
    (between,) = cli_json(*arguments)["between_studies"]
    assert between["studies"] == 2
    assert between["deviation"] == pytest.approx(np.log(1.1) / np.sqrt(2), rel=0.1)
    out = cli(*arguments)[1]
    said = f"differ by {100 * between['deviation']:.2g} % (standard deviation) beside what their intervals say"
    assert f"from study to study, speed-ups on xeon {said} ({between['figures']} cells in 2 studies)" in " ".join(
        out.split()
    )


def test_rows_that_are_left_out_are_counted(recorded: str, cli, cli_json) -> None:
    arguments = ("recommend", "--tracking-uri", recorded, "--workloads", "resnet18", "--devices", "xeon")
    rows = cli_json(*arguments)["choices"]
    shown = [row for row in rows if row["rank"] == 1 or row["tied"]]
    out = cli(*arguments, "--alternatives", "0")[1]
    assert f"{len(rows) - len(shown)} cells behind these: --alternatives {len(rows)}" in out
    assert "behind these" not in cli(*arguments, "--alternatives", str(len(rows)))[1]


@pytest.mark.parametrize(
    ("better", "value", "loss", "apart"),
    [("lower", 2.9, 16.2, True), ("lower", 2.9, 1.8, False), ("higher", 0.3, 0.94, True), ("higher", 0.3, 0.69, False)],
)
def test_a_cost_that_contradicts_the_figures_beside_it_is_found(
    better: str, value: float, loss: float, *, apart: bool
) -> None:
    about = {"fleet": None, "better": better}
    assert recommend._apart({"value": value, "loss": loss}, {"value": 1.0}, about) == apart


def test_one_choice_for_all_devices(recorded: str, cli, cli_json) -> None:
    arguments = ("recommend", "--tracking-uri", recorded, "--workloads", "resnet18", "--fleet")
    out = cli(*arguments, "--objective", "latency")[1]
    assert "one choice for all devices: its worst performance" in out
    found = cli_json(*arguments, "geomean")
    assert found["fleet"] == "geomean"
    assert {row["score"] for row in found["choices"] if row["best"]} == {1.0}


def test_a_front_and_what_nothing_fits(recorded: str, cli) -> None:
    out = cli("recommend", "--tracking-uri", recorded, "--front", "throughput,latency", "--min-throughput", "180")[1]
    assert "^ is on the Pareto front" in out
    assert "latency_p50_ms" in out
    arguments = ("recommend", "--tracking-uri", recorded, "--min", "throughput=1e9")
    code, out, _ = cli(*arguments)
    assert code == 3
    assert "nothing keeps all limits: resnet18 on " in out
    assert "9 not throughput ≥ 1e+09" in " ".join(out.split())
    assert cli(*arguments, "--json")[0] == 3


def test_the_latency_at_a_rate(recorded: str, cli, cli_json, tmp_path: Path) -> None:
    frame = results.load(recorded, workloads=["resnet18"], batch_sizes=[1])
    for run_id, rows in frame.groupby("run_id"):
        offered = [
            {"study_id": row["study_id"], "cell": row["cell"], "batch": 1, "rate": rate, "valid": True, "overloaded": False,
             "latency_p99_ms": p99 * (1 if row["compiler"] == "openvino" else 3)}
            for _, row in rows.iterrows() for rate, p99 in ((50.0, 10.0), (90.0, 20.0))
        ]  # fmt: skip
        pd.DataFrame(offered).to_parquet(tmp_path / Artifact.ARRIVALS)
        MlflowClient(recorded).log_artifact(str(run_id), str(tmp_path / Artifact.ARRIVALS))
    arguments = ("--tracking-uri", recorded, "--workloads", "resnet18", "--objective", "latency-at-rate")
    found = cli_json("recommend", *arguments, "--rate", "60")
    best = [row for row in found["choices"] if row["best"]]
    assert [(row["compiler"], row["value"]) for row in best] == [("openvino", 20.0)] * 2
    assert cli("recommend", *arguments, "--rate", "1000")[0] == 2


def test_the_ending_of_a_file_tells_the_format(recorded: str, cli, tmp_path: Path) -> None:
    for name in ["choice.md", "choice.json", "choice.csv", "choice.txt"]:
        path = tmp_path / name
        assert cli("recommend", "--tracking-uri", recorded, "--workloads", "resnet18", "--output", str(path))[:2] == (
            0,
            "",
        )
        if name.endswith("json"):
            assert json.loads(path.read_text())["metric"] == "throughput"
        elif name.endswith("csv"):
            assert "pull" in pd.read_csv(path).columns
        else:
            assert "mlflow-ngraph engine pull" in path.read_text()


WRONG = [
    (["--objective", "latency-at-rate"], "latency-at-rate and --rate belong together"),
    (["--rate", "10"], "latency-at-rate and --rate belong together"),
    (["--fleet", "mean"], "fleet: expected maximin or geomean, found 'mean'"),
    (["--max", "cpu_percent"], "max: expected METRIC=NUMBER, found 'cpu_percent'"),
    (["--objective", "speed"], "unknown objective 'speed'"),
    (["--max-latency-ms", "nan"], "expected a finite number, found nan"),
    (["--min-throughput", "inf"], "expected a finite number, found inf"),
    (["--max", "throughput=nan"], "expected a finite number, found 'throughput=nan'"),
    (["--min", "throughput=-inf"], "expected a finite number, found 'throughput=-inf'"),
]


def test_what_does_not_fit_is_one_line(recorded: str, cli) -> None:
    for arguments, message in WRONG:
        code, out, err = cli("recommend", "--tracking-uri", recorded, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err
