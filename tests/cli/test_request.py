from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_ngraph.cli.request import overrides, requested
from mlflow_ngraph.errors import StudyError, WorkloadError
from mlflow_ngraph.study import WorkloadChoice
from mlflow_ngraph.workloads.base import WorkloadRef


def test_nothing_asked_for_is_nothing_replaced() -> None:
    assert overrides() == {}
    assert overrides(device="", workloads="", compilers=(), batch_sizes="", threads="", mode="") == {}


def test_lists_are_separated_by_commas_or_said_again() -> None:
    found = overrides(workloads=("resnet18, timm:vgg11", "onnx:a.onnx"), batch_sizes="1,2, 8", precision="fp32,bf16")
    assert found == {
        "workloads": ["resnet18", "timm:vgg11", "onnx:a.onnx"],
        "batch_sizes": [1, 2, 8],
        "precision": ["fp32", "bf16"],
    }


def test_flags_have_the_types_that_they_would_have_in_a_file() -> None:
    (compiler,) = overrides(compilers="openvino?performance_hint=throughput&num_streams=2&enable_cpu_pinning=true&x=")[
        "compilers"
    ]
    assert compiler == {
        "name": "openvino",
        "flags": {"performance_hint": "throughput", "num_streams": 2, "enable_cpu_pinning": True, "x": None},
    }


@pytest.mark.parametrize("value", ["[1", "{a: 1}", "2020-01-01"])
def test_a_flag_that_is_no_single_value_in_yaml_is_text(value: str) -> None:
    (compiler,) = overrides(compilers=f"tvm?mcpu={value}")["compilers"]
    assert compiler["flags"] == {"mcpu": value}


def test_a_flag_or_an_option_has_one_value() -> None:
    with pytest.raises(StudyError, match="a flag stands twice in 'openvino"):
        overrides(compilers="openvino?num_streams=1&num_streams=2")
    with pytest.raises(WorkloadError, match="has an option twice"):
        WorkloadRef.parse("block:mha?width=16&width=32")
    choice = WorkloadChoice(ref="block:mha?width=16", options={"width": 32})
    with pytest.raises(WorkloadError, match="width is 16 there, and another one in options"):
        choice.parsed()


def test_threads_are_a_number_or_a_word() -> None:
    assert overrides(threads="4") == {"threads": 4}
    assert overrides(threads="default") == {"threads": "default"}


def test_a_ready_made_study_with_other_keys_keeps_its_name() -> None:
    study = requested("smoke", overrides(batch_sizes="4", device="xeon"))
    assert (study.name, study.batch_sizes, study.device) == ("smoke", [4], "xeon")


def test_other_workloads_without_a_study_make_an_ad_hoc_one() -> None:
    study = requested(None, overrides(workloads="timm:vgg11", compilers="openvino"))
    assert study.name == "adhoc"
    assert [choice.label for choice in study.compilers] == ["identity", "openvino"]
    assert study.repetitions == requested(None, {}).repetitions
    assert requested(None, {"device": "xeon"}).name == "quick"


def test_a_wrong_option_is_not_blamed_on_the_file() -> None:
    with pytest.raises(StudyError, match=r"^command line: batch_sizes\.0: expected at least"):
        requested("smoke", overrides(batch_sizes="0"))


def test_a_wrong_file_is_blamed_even_with_options(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workloads: [resnet18]\ncompilers: [identity]\nbatch_sizes: [1]\nrepetition: 5\n")
    with pytest.raises(StudyError, match=r"mine\.yaml: repetition: unknown key: did you mean 'repetitions'"):
        requested(str(path), overrides(device="xeon"))


def test_options_complete_a_file_that_leaves_something_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("compilers: [identity]\nbatch_sizes: [1]\n")
    assert requested(str(path), overrides(workloads="resnet18")).name == "mine"


def test_repetitions_are_a_number_or_auto() -> None:
    assert requested("smoke", overrides(repetitions="auto")).repetitions == "auto"
    assert requested("smoke", overrides(repetitions="7")).repetitions == 7
    with pytest.raises(StudyError, match=r"^command line: repetitions: expected a whole number, found 'often'"):
        requested("smoke", overrides(repetitions="often"))


def test_a_decision_has_an_objective_limits_and_a_time() -> None:
    given = overrides(purpose="decide", objective="latency", within="5m", max_latency_ms=None, min_throughput=10.0)
    assert given == {
        "purpose": "decide",
        "objective": "latency",
        "within": "5m",
        "bounds": {"min_throughput": 10.0},
    }
    found = requested("smoke", given)
    assert (found.purpose, found.objective, found.within) == ("decide", "latency", 300)
    assert found.bounds == {"min_throughput": 10}
    with pytest.raises(
        StudyError, match=r"^command line: objective needs 'purpose: decide' \(--purpose decide\): write that as well"
    ):
        requested("smoke", overrides(objective="latency"))


def test_arrivals_are_rates_or_auto_and_a_bound(tmp_path: Path) -> None:
    assert overrides(arrivals="auto") == {"arrivals": {"rates": "auto"}}
    assert overrides(arrivals="50, 100.5", max_p99_ms="20") == {
        "arrivals": {"rates": [50.0, 100.5], "max_p99_ms": 20.0}
    }
    found = requested("smoke", overrides(max_p99_ms="20")).arrivals
    assert found is not None
    assert (found.rates, found.max_p99_ms) == ("auto", 20)
    path = tmp_path / "mine.yaml"
    path.write_text("compilers: [identity]\nbatch_sizes: [1]\nworkloads: [resnet18]\narrivals: [30, 60]\n")
    kept = requested(str(path), overrides(max_p99_ms="20")).arrivals
    assert kept is not None
    assert (kept.rates, kept.max_p99_ms) == ([30, 60], 20)
    for wrong in ({"arrivals": "often"}, {"arrivals": "10,-5"}, {"max_p99_ms": "soon"}, {"max_p99_ms": "0"}):
        with pytest.raises(StudyError, match=r"^command line: "):
            requested("smoke", overrides(**wrong))


@pytest.mark.usefixtures("compilers")
def test_a_spelling_error_is_told_before_anything_heavy_is_imported() -> None:
    script = (
        "import sys\nfrom mlflow_ngraph.cli.app import run\ncode = run(sys.argv[1:])\n"
        "print(sorted({'mlflow', 'pandas', 'scipy', 'torch'} & set(sys.modules)))\nsys.exit(code)"
    )
    command = [sys.executable, "-c", script, "benchmark", "smoke", "--compilers", "identity,openvno"]
    for more in ((), ("--dry-run",)):
        told = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert (told.returncode, told.stdout) == (2, "[]\n")
        assert "unknown compiler 'openvno': did you mean 'openvino'?" in told.stderr
