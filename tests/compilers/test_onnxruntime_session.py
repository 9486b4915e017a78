from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Build, Target, Workbench
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags
from mlflow_ngraph.compilers.onnxruntime.session import affinities
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from tests.support.closeness import assert_close
from tests.support.installed import needs

pytestmark = needs("onnxruntime")


def compiled(source: Source, directory: Path, batches: list[int], **flags: object) -> Build:
    bench = Workbench(directory.with_name("work"))
    return create("onnxruntime", flags).compile(source, batches, Target(threads=1), directory, bench)


def test_the_saved_graph_is_optimised_and_its_weights_lie_beside_it(cnn: Source, tmp_path: Path) -> None:
    import onnx

    compiled(cnn, tmp_path, [1])
    saved = onnx.load(str(tmp_path / "model.onnx"), load_external_data=False)
    before = onnx.load(str(cnn.onnx()), load_external_data=False)
    assert len(saved.graph.node) < len(before.graph.node)
    assert (tmp_path / "model.weights").is_file()


def test_static_engines_fix_the_batch_axis(cnn: Source, tmp_path: Path) -> None:
    import onnx

    compiled(cnn, tmp_path, [3], dynamic_batch=False)
    (value,) = onnx.load(str(tmp_path / "model-b3.onnx"), load_external_data=False).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == 3
    with pytest.raises(CompileError, match="batch size 1"):
        create("onnxruntime", {"dynamic_batch": False}).load(tmp_path, 1, Target(threads=1))


def test_a_fixed_batch_size_is_said_not_to_be_dynamic(fixed: Source, tmp_path: Path) -> None:
    build = compiled(fixed, tmp_path, [3])
    assert build.flags["dynamic_batch"] is False
    assert create("onnxruntime").load(tmp_path, 3, Target(threads=1)).flags["dynamic_batch"] is False


@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_in_force_are_those_asked_for(cnn: Source, tmp_path: Path, threads: int) -> None:
    compiled(cnn, tmp_path, [1])
    engine = create("onnxruntime").load(tmp_path, 1, Target(threads=threads))
    assert engine.flags["threads"] == threads


def test_the_runtimes_own_number_of_threads_is_found_out(cnn: Source, tmp_path: Path) -> None:
    compiled(cnn, tmp_path, [1])
    engine = create("onnxruntime").load(tmp_path, 1, Target(threads=None))
    assert isinstance(engine.flags["threads"], int)
    assert engine.flags["threads"] >= 1


def test_the_session_is_asked_for_its_memory_flags(cnn: Source, tmp_path: Path) -> None:
    flags = {"memory_pattern": False, "memory_arena": False, "inter_op_threads": 2}
    compiled(cnn, tmp_path, [1], **flags)
    engine = create("onnxruntime", flags).load(tmp_path, 1, Target(threads=1))
    assert {name: engine.flags[name] for name in flags} == flags


def test_bound_inputs_are_the_runtimes_own_copies(cnn: Source, tmp_path: Path) -> None:
    compiled(cnn, tmp_path, [1])
    engine = create("onnxruntime").load(tmp_path, 1, Target(threads=1))
    inputs = cnn.example(1)
    invocation = engine.bind(inputs)
    for array in inputs:
        array[...] = 0
    invocation.call()
    outputs = invocation.outputs()
    assert_close(outputs[0], cnn.reference(1)[0], rtol=1e-3, atol=1e-4)
    outputs[0][...] = 0
    assert_close(invocation.outputs()[0], cnn.reference(1)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("threads", "requests", "in_flight", "intra"), [(2, None, 2, 1), (4, 2, 2, 3), (3, 1, 1, 3), (2, 5, 5, 1)]
)
def test_the_threads_are_shared_out_among_the_requests(
    cnn: Source, tmp_path: Path, threads: int, requests: int | None, in_flight: int, intra: int
) -> None:
    flags, target = {"requests": requests}, Target(mode="async", threads=threads)
    create("onnxruntime", flags).compile(cnn, [1], target, tmp_path, Workbench(tmp_path / "work"))
    engine = create("onnxruntime", flags).load(tmp_path, 1, target)
    invocation = engine.bind(cnn.example(1))
    assert invocation.requests == engine.flags["requests"] == in_flight
    assert engine._session.get_session_options().intra_op_num_threads == intra  # type: ignore[attr-defined]
    assert engine.flags["threads"] == max(threads, in_flight)
    invocation.call()
    for request in invocation.each():
        assert_close(request.outputs()[0], cnn.reference(1)[0], rtol=1e-3, atol=1e-4)
    engine.close()


def test_requests_are_in_flight_at_the_same_time(cnn: Source, tmp_path: Path) -> None:
    """Each request is called by a thread of its own."""
    compiled(cnn, tmp_path, [1])
    engine = create("onnxruntime", {"requests": 3}).load(tmp_path, 1, Target(mode="async", threads=2))
    before = threading.active_count()
    engine.bind(cnn.example(1))
    assert threading.active_count() == before + 3
    engine.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("flags", "reason"),
    [({"provider": "tensorrt"}, "one inference of a session at a time"), ({"cuda_graph": True}, "no cuda_graph")],
)
def test_what_runs_one_inference_at_a_time_has_no_async_mode(flags: dict[str, object], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        create("onnxruntime", flags).check(Target(mode="async", accelerator="cuda"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor binds nothing")
@pytest.mark.parametrize("pinning", [True, False])
def test_a_worker_thread_has_a_processor_of_its_own(cnn: Source, tmp_path: Path, pinning: bool) -> None:
    """As by the runtime's own default, which a number of threads takes away."""
    compiled(cnn, tmp_path, [1])
    threads = Path("/proc/self/task")
    before = set(threads.iterdir())
    engine = create("onnxruntime", {"pinning": pinning}).load(tmp_path, 1, Target(threads=2))
    (worker,) = {*threads.iterdir()} - before
    wanted = 1 if pinning else len(os.sched_getaffinity(0))
    end = time.monotonic() + 30
    # The thread binds itself, once a busy machine lets it begin.
    while len(os.sched_getaffinity(int(worker.name))) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    assert len(os.sched_getaffinity(int(worker.name))) == wanted
    assert engine.flags["pinning"] is pinning


def test_more_threads_than_processors_are_bound_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 6, 9})
    flags = OnnxRuntimeFlags()
    assert affinities(flags, Target(threads=3)) == "7;10"
    assert affinities(flags, Target(threads=4)) == ""
    assert affinities(flags, Target(threads=None)) == ""
    assert affinities(flags, Target(threads=2, mode="async")) == ""
