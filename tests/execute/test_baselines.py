"""Ratios over another lane than PyTorch's, with a file that PyTorch cannot run, and real compilers."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from mlflow_ngraph import load_results, runner
from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.cli import tables
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables import summary
from mlflow_ngraph.tables.summary import references
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_archives.recompute import recompute
from tests.support.onnx_models import branching

pytestmark = pytest.mark.long

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

REFERENCE = "onnxruntime "


def measured(folder: Path, template: Path, **changes: object) -> tuple[StudyRecord, str]:
    """The study of the file, recorded, and where."""
    uri = f"sqlite:///{shutil.copyfile(template, folder / 'mlflow.db')}"
    given = {
        "name": "branches",
        "workloads": [f"onnx:{branching(folder / 'branching.onnx')}"],
        "compilers": ["onnxruntime", "openvino"],
        "batch_sizes": [1, 2],
        "repetitions": 6,
        "slice_repetitions": 3,
        "threads": 1,
        "warmup": {"window": 2, "max_seconds": 0.1},
        "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
        "limits": {"reload_seconds": 0},
    }
    outcome = runner.run_study(parse({**given, **changes}), home=folder / "home", tracking_uri=uri)
    return outcome.record, uri


@pytest.fixture(scope="module")
def over_onnxruntime(
    compilers: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StudyRecord, str]:
    return measured(tmp_path_factory.mktemp("named"), sqlite_template, baseline="onnxruntime")


@pytest.fixture(scope="module")
def over_identity(
    compilers: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StudyRecord, str]:
    return measured(tmp_path_factory.mktemp("default"), sqlite_template)


def printed(record: StudyRecord) -> str:
    written = io.StringIO()
    tables.show(Console(file=written, width=200), summary.sheet(record))
    return written.getvalue()


def test_ratios_are_those_to_the_lane_that_the_study_names(over_onnxruntime: tuple[StudyRecord, str]) -> None:
    record, _ = over_onnxruntime
    lanes = {lane.lane.compiler: lane for lane in record.lanes.values()}
    assert list(lanes) == ["onnxruntime", "openvino"], "identity is not asked for, and needed for nothing"
    assert {cell.verdict for lane in lanes.values() for cell in lane.cells.values()} == {Verdict.OK}
    for batch, cell in lanes["openvino"].cells.items():
        shared = set(cell.log_medians) & set(lanes["onnxruntime"].cells[batch].log_medians)
        assert shared, "it was measured in rounds of the baseline"
        assert cell.metrics["speedup"] > 0
        assert {"bsr", "cpu_reduction"} <= set(cell.metrics)
    assert {cell.metrics["speedup"] for cell in lanes["onnxruntime"].cells.values()} == {1.0}
    assert lanes["openvino"].cells[1].metrics["parity_inputs"] > 1


def test_both_the_baseline_and_who_computed_the_reference_are_said(over_onnxruntime: tuple[StudyRecord, str]) -> None:
    record, uri = over_onnxruntime
    (said,) = references(record)
    assert said.startswith(f"speed-ups are over onnxruntime; outputs were compared with those of {REFERENCE}")
    assert said.endswith("without optimisation")
    text = printed(record)
    assert "speed-up over onnxruntime" in text
    assert said in text
    assert any(word in answers(record)[0] for word in ("times onnxruntime", "nothing was faster than", "undecided"))
    frame = load_results(uri)
    assert set(frame["baseline"]) == {"onnxruntime"}
    assert frame["reference_by"].str.startswith(REFERENCE).all()
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("ngraph").experiment_id])
    whole = next(run for run in runs if run.data.tags[Tag.KIND] == Kind.STUDY)
    assert whole.data.params["study.baseline"] == "onnxruntime"
    assert "speed-up over onnxruntime" in whole.data.tags[Tag.NOTE]
    lanes = [run for run in runs if run.data.tags[Tag.KIND] == Kind.LANE]
    assert {run.data.tags[Tag.BASELINE] for run in lanes} == {"onnxruntime"}
    assert all(run.data.tags[Tag.REFERENCE_BY].startswith(REFERENCE) for run in lanes)


def test_without_a_baseline_it_is_said_how_to_name_one(over_identity: tuple[StudyRecord, str]) -> None:
    record, uri = over_identity
    assert [lane.lane.compiler for lane in record.lanes.values()] == ["identity", "onnxruntime", "openvino"]
    hint = "branching: no speed-up: identity does not run it; name another lane, as with `baseline: onnxruntime`"
    assert references(record)[-1] == hint
    assert hint in printed(record)
    assert load_results(uri)["speedup"].isna().all()
    assert set(load_results(uri)["baseline"]) == {"identity"}


def test_what_was_recorded_is_derived_again(over_onnxruntime: tuple[StudyRecord, str]) -> None:
    _, uri = over_onnxruntime
    assert recompute(load_results(uri)["run_id"].iloc[0], uri).differences.empty
