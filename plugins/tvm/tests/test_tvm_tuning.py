"""The search for fast kernels: what it leaves behind, and that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import DependencyError
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_tvm import adapter
from mlflow_ngraph_tvm.records import LOG, RECORDS, WORKLOADS
from tests.support.installed import needs

pytestmark = needs("tvm", "xgboost")


ROOT = Path(__file__).parents[3]
CANDIDATES = 3
FLAGS = {
    "trials": 18,
    "candidates": CANDIDATES,
    "population": 8,
    "generations": 1,
    "evaluator_repeat": 1,
    "evaluator_min_ms": 1,
}
BATCH = 3


class Tuning(subprocess.Popen[str]):
    """A process that tunes the small CNN."""

    def __init__(self, source: Source, folder: Path, **flags: Any) -> None:
        self.engine, self.work = folder / "engine", folder / "work"
        arguments = [source.directory, self.engine, self.work, json.dumps({**FLAGS, **flags})]
        super().__init__(
            [sys.executable, "-m", "tests.support.tune", *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    @property
    def records(self) -> list[Any]:
        return lines(self.work / "tuning" / RECORDS)

    def result(self) -> dict[str, Any]:
        out, _ = self.communicate(timeout=400)
        assert self.returncode == 0
        return dict(json.loads(out.splitlines()[-1]))


def lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def group(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return found


@pytest.fixture(scope="module")
def whole(processes: None, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, dict[str, Any]]:
    """A search that nobody disturbed, and what it printed."""
    tuning = Tuning(Source(prepared / "cnn"), tmp_path_factory.mktemp("whole"))
    return tuning, tuning.result()


@pytest.mark.usefixtures("compilers")
def test_database_and_log_are_files_of_the_engine(whole: tuple[Tuning, dict[str, Any]]) -> None:
    tuning, result = whole
    folder = tuning.engine / "tuning"
    assert sorted(path.name for path in folder.iterdir()) == sorted([LOG, RECORDS, WORKLOADS])
    log = lines(folder / LOG)
    assert [line["trial"] for line in log] == list(range(1, FLAGS["trials"] + 1))
    assert len(lines(folder / RECORDS)) == FLAGS["trials"] == result["flags"]["trials_made"]
    assert len({line["task"] for line in log}) == result["flags"]["tasks"] == len(lines(folder / WORKLOADS))
    assert result["flags"]["tuned_tasks"] == result["flags"]["tasks"]
    for line in log:
        assert line["task_name"]
        assert line["weight"] >= 1
        if line["latency_ms"] is not None:
            assert line["latency_ms"] >= line["best_ms"] > 0
    elapsed = [line["elapsed_s"] for line in log]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] <= result["seconds"]["tune"]
    estimates = [line["model_ms"] for line in log if line["model_ms"] is not None]
    assert estimates
    assert estimates == sorted(estimates, reverse=True)


def test_nothing_but_the_database_stays_in_the_workbench(whole: tuple[Tuning, dict[str, Any]]) -> None:
    tuning, _ = whole
    assert [path.name for path in tuning.work.iterdir()] == ["tuning"]


def test_flags_that_a_search_decides_are_reported_as_they_took_effect(whole: tuple[Tuning, dict[str, Any]]) -> None:
    _, result = whole
    assert result["flags"]["conv_layout"] == "nhwc"
    assert result["flags"]["prepack_weights"] is True
    assert result["flags"]["tiling_seeds"] is True


@pytest.mark.usefixtures("processes")
def test_the_engine_explains_itself(whole: tuple[Tuning, dict[str, Any]]) -> None:
    tuning, result = whole
    found = create("tvm").explain(tuning.engine, BATCH, Target(threads=2))
    assert found.nodes_before is not None
    assert found.nodes_after == len(found.kernels) < found.nodes_before
    assert found.fused_groups >= 2
    assert any("conv2d" in kernel.name and len(kernel.fused) >= 3 for kernel in found.kernels)
    # From NCHW to NHWC for the first convolution.
    assert found.layout_changes
    assert all("tuned" in kernel.implementation for kernel in found.kernels)
    assert found.code_bytes is not None
    assert found.code_bytes > 1000
    assert found.facts["tasks"] == result["flags"]["tasks"]
    assert found.facts["trials_made"] == FLAGS["trials"]


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_search_that_is_killed_ends_with_the_database_of_one_that_is_not(
    whole: tuple[Tuning, dict[str, Any]], cnn: Source, tmp_path: Path
) -> None:
    first = Tuning(cnn, tmp_path)
    deadline = time.monotonic() + 300
    while len(first.records) < FLAGS["trials"] // 2:
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    while group(first.pid):
        assert time.monotonic() < deadline, "processes of the search are left"
        time.sleep(0.05)
    kept = first.records
    spent = lines(first.work / "tuning" / LOG)[-1]["elapsed_s"]
    for name in (RECORDS, LOG):
        with (first.work / "tuning" / name).open("a") as stream:
            stream.write('[0, [[["torn')

    first.engine.rmdir()
    second = Tuning(cnn, tmp_path)
    result = second.result()
    undisturbed, expected = whole
    assert second.records[: len(kept)] == kept
    assert abs(len(second.records) - len(undisturbed.records)) <= CANDIDATES
    assert result["flags"]["trials_made"] == len(second.records)
    assert result["flags"]["tasks"] == expected["flags"]["tasks"]
    assert result["flags"]["tuned_tasks"] == expected["flags"]["tuned_tasks"]
    tasks, all_tasks = (Counter(record[0] for record in tuning.records) for tuning in (second, undisturbed))
    assert len(tasks) == len(all_tasks)
    # No schedule is measured twice.
    traces = [json.dumps(record[:1] + record[1][:1]) for record in second.records]
    assert len(set(traces)) == len(traces)
    assert result["seconds"]["tune"] > spent
    assert not (second.work / "candidates").exists()


@pytest.mark.usefixtures("processes")
def test_a_finished_search_is_not_made_again(whole: tuple[Tuning, dict[str, Any]], cnn: Source, tmp_path: Path) -> None:
    undisturbed, _ = whole
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "tuning").symlink_to(undisturbed.engine / "tuning")
    again = Tuning(cnn, tmp_path)
    result = again.result()
    assert result["flags"]["trials_made"] == FLAGS["trials"]
    assert len(again.records) == FLAGS["trials"]


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_task_without_improvement_gets_no_more_trials(cnn: Source, tmp_path: Path) -> None:
    tuning = Tuning(cnn, tmp_path, trials=1000, early_stopping=1, cost_model="random")
    made = tuning.result()["flags"]["trials_made"]
    assert made < 200


def test_a_missing_cost_model_is_named_before_any_work(
    cnn: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    assert "xgboost" in create("tvm").availability().hint
    assert create("tvm").availability().available
    with pytest.raises(DependencyError, match=r"xgboost.*cost_model random"):
        create("tvm", {"trials": 1}).compile(cnn, [BATCH], Target(), tmp_path, Workbench(tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_a_version_that_crashes_is_refused_before_any_work(
    cnn: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "version", lambda name: "0.1.15.post2")
    with pytest.raises(DependencyError, match=r"apache-tvm-ffi==.*0\.1\.15\.post2"):
        create("tvm", {"trials": 1}).compile(cnn, [BATCH], Target(), tmp_path, Workbench(tmp_path / "work"))


def test_estimates_know_a_search() -> None:
    untuned, tuned = create("tvm"), create("tvm", {"trials": 1500})
    assert not untuned.searches
    assert tuned.searches
    assert tuned.expected_compile_s > 60 * untuned.expected_compile_s
    assert tuned.expected_slowdown < untuned.expected_slowdown / 5
