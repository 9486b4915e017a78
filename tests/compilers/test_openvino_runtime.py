from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.openvino.library import core
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_testing.steps import in_fresh_process
from tests.support.closeness import assert_close
from tests.support.installed import needs

pytestmark = needs("openvino")


@pytest.fixture
def engine_directory(cnn: Source, tmp_path: Path) -> Path:
    create("openvino").compile(cnn, [1, 3], Target(threads=2), tmp_path, Workbench(tmp_path / "work"))
    return tmp_path


def test_fp32_is_fp32_where_the_runtime_would_choose_less(engine_directory: Path) -> None:
    engine = create("openvino").load(engine_directory, 1, Target(threads=2))
    assert engine.precision == "fp32"
    assert engine.flags["inference_precision"] == "f32"
    assert engine.flags["threads"] == 2


def test_weights_are_saved_in_full(engine_directory: Path, cnn: Source) -> None:
    weights = (cnn.directory / "weights.safetensors").stat().st_size
    assert (engine_directory / "model.bin").stat().st_size > 0.7 * weights


def test_one_ir_serves_all_batch_sizes_by_reshaping(engine_directory: Path) -> None:
    assert sorted(path.name for path in engine_directory.glob("*.xml")) == ["model.xml"]
    for batch in (1, 3):
        engine = create("openvino").load(engine_directory, batch, Target(threads=1))
        assert engine.flags["dynamic_batch"] is False


def test_the_build_keeps_what_the_runtime_requires_of_a_machine(cnn: Source, tmp_path: Path) -> None:
    build = create("openvino").compile(cnn, [1], Target(threads=1), tmp_path, Workbench(tmp_path / "work"))
    assert build.requires["openvino"]
    assert set(build.requires) >= {"openvino"}
    assert all(isinstance(value, str) and value for value in build.requires.values())


def test_a_precision_that_this_cpu_lacks_is_not_replaced_silently(cnn: Source, tmp_path: Path) -> None:
    capabilities = core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for precision, capability in (("bf16", "BF16"), ("fp16", "FP16")):
        directory = tmp_path / precision
        directory.mkdir()
        target = Target(precision=precision, threads=1)  # type: ignore[arg-type]
        compiler = create("openvino")
        if capability in capabilities:
            compiler.compile(cnn, [1], target, directory, Workbench(directory / "work"))
            assert compiler.load(directory, 1, target).precision == precision
        else:
            with pytest.raises(UnsupportedError, match=precision):
                compiler.compile(cnn, [1], target, directory, Workbench(directory / "work"))


def test_async_mode_uses_the_requests_that_the_runtime_wants(cnn: Source, tmp_path: Path) -> None:
    target = Target(mode="async", threads=2)
    create("openvino", {"num_streams": 2}).compile(cnn, [1], target, tmp_path, Workbench(tmp_path / "work"))
    engine = create("openvino", {"num_streams": 2}).load(tmp_path, 1, target)
    invocation = engine.bind(cnn.example(1))
    assert engine.flags["performance_hint"] == "throughput"
    assert invocation.requests == engine.flags["requests"] == 2
    invocation.call()
    assert_close(invocation.outputs()[0], cnn.reference(1)[0], rtol=1e-3, atol=1e-4)


def test_the_number_of_requests_can_be_asked_for(cnn: Source, tmp_path: Path) -> None:
    target, flags = Target(mode="async", threads=2), {"requests": 3}
    create("openvino", flags).compile(cnn, [1], target, tmp_path, Workbench(tmp_path / "work"))
    engine = create("openvino", flags).load(tmp_path, 1, target)
    invocation = engine.bind(cnn.example(1))
    assert invocation.requests == engine.flags["requests"] == 3
    invocation.call()
    for request in invocation.each():
        assert_close(request.outputs()[0], cnn.reference(1)[0], rtol=1e-3, atol=1e-4)
    assert create("openvino", flags).load(tmp_path, 1, Target(threads=2)).flags["requests"] == 1, "in sync mode"


def processes_and_connections(materials: Path, directory: Path) -> list[str]:
    import sys
    import time

    seen: list[str] = []
    events = ("os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo")
    sys.addaudithook(lambda event, _: seen.append(event) if event in events else None)
    create("openvino").compile(Source(materials), [1], Target(threads=1), directory, Workbench(directory / "work"))
    engine = create("openvino").load(directory, 1, Target(threads=1))
    engine.bind(Source(materials).example(1)).call()
    time.sleep(0.5)  # telemetry is sent from a thread
    return seen


def test_nothing_is_sent_anywhere(cnn: Source, tmp_path: Path) -> None:
    assert in_fresh_process(processes_and_connections, cnn.directory, tmp_path) == []


def test_a_kind_of_core_can_be_asked_for(cnn: Source, tmp_path: Path) -> None:
    flags = {"scheduling_core_type": "pcore"}
    create("openvino", flags).compile(cnn, [1], Target(threads=1), tmp_path, Workbench(tmp_path / "work"))
    assert create("openvino", flags).load(tmp_path, 1, Target(threads=1)).flags["scheduling_core_type"] == "pcore"
