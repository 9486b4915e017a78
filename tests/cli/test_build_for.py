"""Engines that are built for another device: recorded with what they need, never measured, never an answer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import runner
from mlflow_ngraph.errors import StudyError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.record import CellRecord
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.release.pulling import pull_engine
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph.tracking.sources import EngineFilter
from mlflow_ngraph.verdicts import Verdict

pytestmark = pytest.mark.usefixtures("compilers")

TINY = "block:mha?width=16"
PORTABLE = {"name": "onnxruntime", "flags": {"graph_optimization_level": "extended"}}
BUILT = ("onnxruntime[graph_optimization_level=extended]", "openvino", "torchscript")


@dataclass(frozen=True)
class Builder:
    """A study that has built, and where it is recorded."""

    uri: str
    outcome: Outcome

    @property
    def cells(self) -> Mapping[str, CellRecord]:
        """By the compiler with its flags."""
        return {lane.lane.compiler_label: lane.cells[1] for lane in self.outcome.record.lanes.values()}


def study(**changes: Any) -> Study:
    base = {
        "name": "elsewhere",
        "workloads": [TINY],
        "batch_sizes": [1],
        "threads": 2,
        "repetitions": 2,
        "warmup": {"window": 2, "max_seconds": 0.1},
        # What is tested here must not depend on who else uses the machine.
        "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        "cache": "server",
    }
    return parse({**base, **changes})


@pytest.fixture(scope="module")
def builder(processes: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    home = tmp_path_factory.mktemp("builder")
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    given = study(build_for="xeon", compilers=[PORTABLE, "openvino", "torchscript", "onnxruntime", "torch-compile"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return Builder(uri, runner.run_study(given, home=home, tracking_uri=uri, experiment="elsewhere"))


def test_what_can_be_built_is_built_and_the_rest_says_why_not(builder: Builder) -> None:
    verdicts = {name: str(cell.verdict) for name, cell in builder.cells.items()}
    assert verdicts == {**dict.fromkeys(BUILT, "built"), "onnxruntime": "unsupported", "torch-compile": "unsupported"}
    assert builder.cells["openvino"].reason == "compiled for xeon, and neither verified nor measured"
    assert "build for xeon with graph_optimization_level=extended" in builder.cells["onnxruntime"].reason
    assert "cannot compile here for xeon" in builder.cells["torch-compile"].reason
    assert builder.outcome.record.device == "xeon"


def test_it_is_recorded_with_what_it_needs_and_what_it_took(builder: Builder) -> None:
    lanes = {lane.lane.compiler_label: lane for lane in builder.outcome.record.lanes.values()}
    for name in BUILT:
        (engine,) = lanes[name].engines
        assert engine.files
        assert engine.requires
        assert "isa" not in engine.requires
        assert builder.cells[name].metrics["compile_total_s"] > 0
        assert builder.cells[name].metrics["engine_size_mb"] > 0


def test_nothing_of_it_is_loaded_or_measured(builder: Builder) -> None:
    kinds = {event["event"] for event in journal.read(builder.outcome.directory)}
    assert not kinds & {"cell_verified", "cell_ready", "slice"}
    assert all("throughput" not in cell.metrics for cell in builder.cells.values())


def test_no_verb_answers_with_it(builder: Builder, cli) -> None:
    code, out, err = cli("recommend", "--tracking-uri", builder.uri)
    assert code == 2
    assert "throughput" in err
    assert "pull" not in out
    code, out, err = cli("engine", "pull", "--best", "--workloads", TINY, "--tracking-uri", builder.uri)
    assert code != 0


def test_the_device_pulls_it_and_compares_it_with_the_outputs_that_came_along(builder: Builder, tmp_path: Path) -> None:
    run_id = builder.outcome.where["run_id"]
    pulled = pull_engine(
        run_id, tmp_path / "engine", tracking_uri=builder.uri, wanted=EngineFilter(compilers=["openvino"])
    )
    assert {check.name: check.status for check in pulled.checks}["probe"] == "ok"
    assert [figures.verdict for figures in pulled.package.manifest.figures] == ["built"]


def test_a_study_on_the_device_takes_it_verifies_it_and_measures_it(builder: Builder, tmp_path: Path) -> None:
    there = runner.run_study(
        study(compilers=[PORTABLE, "openvino"]), home=tmp_path, tracking_uri=builder.uri, experiment="there"
    )
    assert there.exit_code == 0
    for lane in there.record.lanes.values():
        cell = lane.cells[1]
        assert cell.verdict is Verdict.OK
        if lane.lane.compiler != "identity":
            (engine,) = lane.engines
            assert engine.reused is not None
            assert engine.reused.study_id == builder.outcome.record.id
            assert cell.verified["inputs"] > 0


def test_how_many_threads_the_device_has_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"^threads: all: say how many processors xeon has, as in --threads 8"):
        runner.plan_study(study(build_for="xeon", compilers=["openvino"], threads="all"))


def test_the_baseline_alone_is_nothing_to_build() -> None:
    with pytest.raises(StudyError, match="nothing to build for xeon: identity compiles nothing"):
        runner.plan_study(study(build_for="xeon", compilers=["identity"]))


@pytest.mark.parametrize("text", ["gpu:ada", "gpu:sm8", "xeon:avx2"])
def test_an_architecture_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(StudyError, match="build_for: no architecture"):
        study(build_for=text, compilers=["openvino"])


def test_a_study_that_builds_is_another_one_than_a_study_that_measures() -> None:
    assert study(compilers=["openvino"]).digest() == study(compilers=["openvino"], build_for="").digest()
    assert study(compilers=["openvino"]).digest() != study(compilers=["openvino"], build_for="host").digest()


def test_the_device_of_the_study_is_the_one_that_it_builds_for() -> None:
    found = study(build_for="gpu:SM_89", compilers=["tensorrt-rtx"])
    assert (found.device, found.build_for) == ("gpu", "gpu:sm89")
