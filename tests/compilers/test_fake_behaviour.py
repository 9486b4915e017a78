from __future__ import annotations

import os
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mlflow_ngraph.compilers.base import Engine, Target, Workbench
from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.errors import CompileError, UnknownNameError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_testing import fake
from mlflow_ngraph_testing.fake import FakeCompiler, FakeFlags
from mlflow_ngraph_testing.steps import in_fresh_process

pytestmark = pytest.mark.long


def compiler(**flags: Any) -> FakeCompiler:
    return FakeCompiler(FakeFlags(**flags))


def loaded(source: Source, directory: Path, target: Target | None = None, **flags: Any) -> Engine:
    target = target or Target()
    compiler(**flags).compile(source, [1, 3], target, directory, Workbench(directory / "work"))
    return compiler(**flags).load(directory, 3, target)


def outputs(source: Source, directory: Path, **flags: Any) -> list[Any]:
    invocation = loaded(source, directory, **flags).bind(source.example(3))
    invocation.call()
    return invocation.outputs()


@pytest.mark.usefixtures("compilers")
def test_it_is_right_by_default(cnn: Source, tmp_path: Path) -> None:
    np.testing.assert_array_equal(outputs(cnn, tmp_path)[0], cnn.reference(3)[0])


def test_it_is_wrong_as_told(cnn: Source, tmp_path: Path) -> None:
    np.testing.assert_array_equal(outputs(cnn, tmp_path, behaviour="wrong")[0], -cnn.reference(3)[0])


def test_it_gives_nan_as_told(cnn: Source, tmp_path: Path) -> None:
    assert np.isnan(outputs(cnn, tmp_path, behaviour="nan")[0]).all()


def test_it_knows_the_prepared_inputs_only(cnn: Source, tmp_path: Path) -> None:
    engine = loaded(cnn, tmp_path)
    with pytest.raises(UnsupportedError, match="prepared inputs"):
        engine.bind([array + 1 for array in cnn.example(3)])


@pytest.mark.parametrize("wait", ["sleep", "spin"])
def test_its_delay_is_exact(cnn: Source, tmp_path: Path, wait: str) -> None:
    call = loaded(cnn, tmp_path, behaviour="slow", delay_ms=5, wait=wait).bind(cnn.example(3)).call
    start = time.perf_counter()
    for _ in range(10):
        call()
    assert 0.05 <= time.perf_counter() - start < 0.5


def test_slow_needs_a_delay() -> None:
    with pytest.raises(ValueError, match="delay_ms above 0"):
        FakeFlags(behaviour="slow")


def test_it_leaks_as_told(cnn: Source, tmp_path: Path) -> None:
    call = loaded(cnn, tmp_path, behaviour="leak").bind(cnn.example(3)).call
    before = len(fake._leaked)
    call()
    call()
    assert len(fake._leaked) == before + 2
    fake._leaked.clear()


STAGES = ["compile", "search", "explain", "load", "run"]


def go_through(told: FakeCompiler, source: Source, directory: Path, reached: list[str]) -> None:
    """Every step in order; adds the names of those that were reached."""
    for stage, step in {
        "compile": lambda: told.compile(source, [1], Target(), directory, Workbench(directory / "work")),
        "explain": lambda: told.explain(directory, 1, Target()),
        "load": lambda: told.load(directory, 1, Target()),
        "run": lambda: told.load(directory, 1, Target()).bind(source.example(1)).call(),
    }.items():
        reached.append(stage)
        step()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("behaviour", "error"), [("oom", MemoryError), ("raise", RuntimeError), ("unsupported", UnsupportedError)]
)
def test_it_raises_as_told_and_where_told(
    cnn: Source, tmp_path: Path, behaviour: str, error: type[Exception], stage: str
) -> None:
    told = compiler(behaviour=behaviour, at=stage, search_batches=1)
    reached: list[str] = []
    with pytest.raises(error):
        go_through(told, cnn, tmp_path, reached)
    assert reached[-1] == ("compile" if stage == "search" else stage)
    assert (tmp_path / "work" / fake.SEARCH_LOG).exists() == (stage != "search")


@pytest.mark.parametrize("stage", STAGES)
def test_it_leaks_threads_as_told_and_where_told(cnn: Source, tmp_path: Path, stage: str) -> None:
    assert in_fresh_process(leaked_threads, cnn.directory, tmp_path, stage) == (2 if stage == "load" else 1)


def leaked_threads(materials: Path, directory: Path, stage: str) -> int:
    go_through(compiler(behaviour="leak_threads", at=stage, search_batches=1), Source(materials), directory, [])
    return sum(thread.name == "leaked" for thread in threading.enumerate())


@pytest.mark.usefixtures("processes")
def test_it_leaves_a_process_in_a_session_of_its_own(cnn: Source, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    compiler(behaviour="leave_process", at="compile").compile(cnn, [1], Target(), tmp_path, Workbench(tmp_path / "w"))
    (left,) = set(psutil.Process().children()) - before
    assert os.getsid(left.pid) == left.pid
    left.kill()
    left.wait()


def test_it_gives_constants_as_told(cnn: Source, tmp_path: Path) -> None:
    invocation = loaded(cnn, tmp_path, behaviour="constant").bind([array + 1 for array in cnn.example(3)])
    invocation.call()
    np.testing.assert_array_equal(invocation.outputs()[0], cnn.reference(3)[0])


def test_its_search_goes_on_where_it_was_left(cnn: Source, tmp_path: Path) -> None:
    said: list[str] = []
    bench = Workbench(tmp_path / "work", said.append)
    told = compiler(search_batches=4)
    assert told.searches
    assert not compiler().searches
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / fake.SEARCH_LOG).write_text("1\n2\n")
    told.compile(cnn, [1], Target(), tmp_path, bench)
    assert said == ["tune: batch 3/4", "tune: batch 4/4"]
    assert (tmp_path / "work" / fake.SEARCH_LOG).read_text() == "1\n2\n3\n4\n"
    assert list(bench.seconds) == ["tune", "compile", "save"]


def test_a_stage_without_a_search_needs_no_search() -> None:
    with pytest.raises(ValueError, match="at search needs search_batches above 0"):
        FakeFlags(at="search")


def test_it_explains_what_it_replays(cnn: Source, tmp_path: Path) -> None:
    loaded(cnn, tmp_path)
    explanation = compiler().explain(tmp_path, 3, Target())
    assert explanation.nodes_after == len(cnn.outputs)
    assert [kernel.operation for kernel in explanation.kernels] == ["Replay"]


def crash(materials: Path, directory: Path) -> None:
    loaded(Source(materials), directory, behaviour="crash").bind(Source(materials).example(3)).call()


def test_it_crashes_as_told(cnn: Source, tmp_path: Path) -> None:
    with pytest.raises(BrokenProcessPool):
        in_fresh_process(crash, cnn.directory, tmp_path)


def test_async_mode_keeps_two_requests(cnn: Source, tmp_path: Path) -> None:
    assert loaded(cnn, tmp_path, Target(mode="async")).bind(cnn.example(3)).requests == 2


def test_an_engine_serves_its_own_batch_sizes_only(cnn: Source, tmp_path: Path) -> None:
    loaded(cnn, tmp_path)
    with pytest.raises(CompileError, match="batch size 2"):
        compiler().load(tmp_path, 2, Target())


def test_the_product_does_not_register_it() -> None:
    assert "fake" not in COMPILERS.names()
    with pytest.raises(UnknownNameError, match="fake"):
        create("fake")
