"""The tidy table, from a record and from a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.metrics import COLUMNS, PROFILE, RUN_COLUMNS
from mlflow_ngraph.tables import samples
from mlflow_ngraph.tables.results import from_record as table_of
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.study_run import HANDED_OVER
from tests.support.records import lane_id, study_record


def record_study(uri: str, directory: Path, experiment: str = "edge", **what: str) -> str:
    record = study_record(directory, **what)
    recorder = Recorder(uri, experiment)
    run_id = recorder.open(record, directory)
    key = lane_id(record, "resnet18", "openvino")
    recorder.record_lane(record, key)
    recorder.close(record, "FINISHED")
    return run_id


def test_one_row_a_cell_with_every_documented_column(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes[lane_id(record, "resnet18", "identity")].cells[2].metrics["energy_j"] = 3.0
    frame = table_of(record)
    assert list(frame.columns) == [*COLUMNS, "energy_j"]
    assert len(frame) == frame["cell"].nunique() == 18
    row = frame.set_index("cell").loc[f"{lane_id(record, 'resnet18', 'openvino')}-b4"]
    assert row["speedup"] == 2.5
    assert row["flags"] == (
        '{"graph": "fused", "memory_format": "contiguous", "opt_level": 2, "streams": 4, "threads": 2}'
    )
    assert row["paper_macs"] == 1_814_073_344
    crashed = frame[frame["verdict"] == "crashed"].iloc[0]
    assert pd.isna(crashed["throughput"])
    assert pd.isna(crashed["precision_in_force"])


def test_a_study_without_cells_has_the_same_columns(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes = {}
    frame = table_of(record)
    assert list(frame.columns) == list(COLUMNS)
    assert frame.empty
    assert frame["throughput"].dtype == "float64"
    assert list(samples.from_record(record).columns) == list(samples.COLUMNS)


def test_samples_keep_every_repetition_in_order(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    frame = samples.from_record(record)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    mine = frame[frame["cell"] == cell.id]
    assert list(mine["duration_ns"]) == [ns for taken in cell.samples for ns in taken["durations_ns"]]
    assert list(mine["round"]) == [0] * 10 + [1] * 10
    assert list(mine["repetition"]) == list(range(20))
    assert set(mine["requests"]) == {1}


def test_samples_say_what_the_sensors_saw_over_their_slice(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    counted = {"stolen_s": 0.25, "machine_busy_s": 1.5}
    seen = {"seconds": 1.0, "cpu_s": 0.75, "values": {"clock_mhz": 2100.0}, "counted": counted}
    cell.samples[0]["machine"] = seen
    frame = samples.from_record(record)
    mine = frame[frame["cell"] == cell.id]
    assert list(mine["clock_mhz"].dropna()) == [2100.0] * 10
    assert set(mine.loc[mine["clock_mhz"].notna(), "round"]) == {cell.samples[0]["round"]}
    first = mine[mine["clock_mhz"].notna()]
    for column, value in {"watched_s": 1.0, "cpu_s": 0.75, **counted}.items():
        assert set(first[column]) == {value}, column
    assert frame["temperature_c"].isna().all()


def test_load_reads_back_what_was_recorded(sqlite_uri: str, tmp_path: Path) -> None:
    run_id = record_study(sqlite_uri, tmp_path / "a")
    record_study(sqlite_uri, tmp_path / "b", "lab", study_id="orin-study", device="orin")
    MlflowClient(sqlite_uri).create_run("1", tags={"ngraph.kind": "study", "ngraph.study_id": "not closed yet"})
    everything = results.load(sqlite_uri)
    assert len(everything) == 36
    xeon = results.load(sqlite_uri, devices=["xeon"])
    expected = table_of(study_record(tmp_path / "a"))
    compared = xeon.drop(columns=["run_id", "lane_run_id", "model_id", *RUN_COLUMNS, PROFILE])
    assert set(xeon["experiment"]) == {"edge"}
    pd.testing.assert_frame_equal(compared, expected[compared.columns])
    assert set(xeon["run_id"]) == {run_id}
    assert xeon["lane_run_id"].notna().sum() == 3
    assert set(results.load(sqlite_uri, ["lab"])["device"]) == {"orin"}
    with pytest.raises(UnknownNameError, match="unknown study 'other': known: orin-study, quick"):
        results.load(sqlite_uri, studies=["other"], columns=["cell"])


def test_a_study_that_was_taken_over_counts_once(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_study(sqlite_uri, tmp_path / "a")
    client = MlflowClient(sqlite_uri)
    tags = {"mlflow.project.entryPoint": "benchmark"}
    run = client.create_run(client.get_experiment_by_name("edge").experiment_id, tags=tags)
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    monkeypatch.setenv(HANDED_OVER, run.info.run_id)
    record_study(sqlite_uri, tmp_path / "a")
    frame = results.load(sqlite_uri)
    assert len(frame) == 18
    assert set(frame["run_id"]) == {run.info.run_id}


def test_what_cannot_be_read_costs_its_rows_and_says_which_run(
    sqlite_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = record_study(sqlite_uri, tmp_path / "a")
    broken = tmp_path / "results.parquet"
    broken.write_bytes(b"PAR1 no")
    MlflowClient(sqlite_uri).log_artifact(run_id, str(broken))
    assert results.load(sqlite_uri).empty
    assert f"run {run_id} of experiment 'edge': results.parquet" in caplog.text


def test_an_unknown_experiment_names_those_that_exist(sqlite_uri: str, tmp_path: Path) -> None:
    record_study(sqlite_uri, tmp_path / "a")
    with pytest.raises(UnknownNameError, match="did you mean 'edge'"):
        results.load(sqlite_uri, ["edgy"])


@pytest.mark.usefixtures("processes")
def test_analysis_and_tracking_import_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys, mlflow_ngraph.analysis.results, mlflow_ngraph.analysis.compare, mlflow_ngraph.tables.summary,"
        " mlflow_ngraph.tracking.recorder;"
        "sys.exit(', '.join({'torch', 'mlflow', 'onnx', 'openvino'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
