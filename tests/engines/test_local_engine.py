"""A loaded engine answers as its model does, to whoever asks, in batches of any size, and says what it cannot do."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlflow_ngraph import LoadedEngine, load_model, parity
from mlflow_ngraph.compilers import host
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.arrays import check_integers, input_arrays
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.workloads.base import TensorSpec
from tests.support.logged import COMPILERS, WORKLOAD, Logged
from tests.support.published import rewrite


@pytest.fixture(scope="module", params=COMPILERS)
def engine(request: pytest.FixtureRequest, logged: Logged) -> Iterator[LoadedEngine]:
    with load_model(logged.packages[request.param]) as found:
        yield found


def probe(engine: LoadedEngine) -> tuple[list[np.ndarray], list[np.ndarray]]:
    known = read_probe(engine.directory / "engine")
    return known.inputs, known.outputs


def batch(engine: LoadedEngine, samples: int) -> np.ndarray:
    spec = engine.inputs[0]
    return np.random.default_rng(samples).standard_normal(spec.resolve(samples), dtype=np.float32)


def one_by_one(engine: LoadedEngine, inputs: np.ndarray) -> np.ndarray:
    return np.concatenate([engine.run([inputs[at : at + 1]])[0] for at in range(len(inputs))])


def test_the_outputs_are_those_of_the_model(engine: LoadedEngine) -> None:
    inputs, reference = probe(engine)
    assert parity.problem(parity.compare(engine.run(inputs), reference), "fp32") is None
    name = engine.inputs[0].name
    by_name = engine.run({name: inputs[0]})
    assert list(by_name) == [engine.outputs[0].name]
    np.testing.assert_array_equal(by_name[engine.outputs[0].name], engine.run(inputs)[0])
    assert engine.flags["threads"] == 2


def test_outputs_belong_to_the_caller(engine: LoadedEngine) -> None:
    inputs, _ = probe(engine)
    first = engine.run(inputs)[0]
    kept = first.copy()
    engine.run([inputs[0] + 1])
    np.testing.assert_array_equal(first, kept)


def test_whatever_speaks_dlpack_is_taken(engine: LoadedEngine) -> None:
    inputs, _ = probe(engine)
    np.testing.assert_array_equal(engine.run([torch.from_numpy(inputs[0])])[0], engine.run(inputs)[0])
    with pytest.raises(UsageError, match="cannot be read in the host's memory"):
        engine.run([torch.zeros(1, 10, 16, device="meta")])


@pytest.mark.parametrize("samples", [2, 3])
def test_smaller_batches_are_padded_when_asked(engine: LoadedEngine, samples: int) -> None:
    inputs = batch(engine, samples)
    with pytest.raises(UsageError, match=r"batch sizes 1, 4, not .: ask for batching='pad' or"):
        engine.run([inputs])
    found = engine.run([inputs], batching="pad")[0]
    np.testing.assert_allclose(found, one_by_one(engine, inputs), atol=1e-5)


@pytest.mark.parametrize("samples", [3, 5, 11])
def test_larger_batches_are_split_when_asked(engine: LoadedEngine, samples: int) -> None:
    inputs = batch(engine, samples)
    found = engine.run([inputs], batching="split")[0]
    np.testing.assert_allclose(found, one_by_one(engine, inputs), atol=1e-5)
    if samples > 4:
        with pytest.raises(UsageError, match="padding makes batches larger only"):
            engine.run([inputs], batching="pad")


def test_the_thread_of_the_engine_may_run_it(engine: LoadedEngine) -> None:
    inputs = [batch(engine, 1)]
    within = engine.call(lambda: engine.run(inputs)[0])
    np.testing.assert_array_equal(within, engine.run(inputs)[0])


def test_threads_get_each_their_own_answers(engine: LoadedEngine) -> None:
    given = [np.full(engine.inputs[0].resolve(1), value, np.float32) for value in np.linspace(-1, 1, 16)]
    expected = [engine.run([array])[0] for array in given]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, wanted in zip(pool.map(lambda array: engine.run([array])[0], given), expected, strict=True):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("number", [np.float32(2.5), np.array(2.5, np.float32), torch.tensor(2.5)])
def test_a_number_is_an_array_without_axes(number: Any) -> None:
    specs = [TensorSpec("x", "float32", ("batch", 2)), TensorSpec("factor", "float32", ())]
    _, factor = input_arrays([np.zeros((3, 2), np.float32), number], specs)
    assert (type(factor), factor.shape, factor.item()) == (np.ndarray, (), 2.5)
    with pytest.raises(UsageError, match="input 'factor' is float64, the engine takes float32"):
        input_arrays({"x": np.zeros((3, 2), np.float32), "factor": np.float64(2.5)}, specs)


IDS = TensorSpec("ids", "int64", ("batch", 3), high=50)


@pytest.mark.parametrize(
    ("spec", "widest", "taken", "refused"),
    [
        (IDS, None, (0, 49), (-1, 50)),
        (IDS, "int32", (0, 49), (-1, 50, 2**32 + 3)),
        # Zeros are what engines are warmed up with.
        (replace(IDS, low=5), None, (0, 5, 49), (-1, 50)),
        # Of two values it may be that nobody has said how many there are.
        (replace(IDS, high=2), None, (-(2**63), 2**63 - 1), ()),
        (replace(IDS, high=2), "int32", (-(2**31), 2**31 - 1), (-(2**31) - 1, 2**31)),
        (replace(IDS, name="position_ids", high=3), None, (0, 400), ()),
        (replace(IDS, high=2**63 - 1), None, (-5, 2**63 - 1), ()),
        (TensorSpec("x", "uint64", ("batch",)), None, (0, 2**64 - 1), ()),
    ],
)
def test_integers_that_a_runtime_would_make_something_else_of_are_refused(
    spec: TensorSpec, widest: str | None, taken: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    for value in taken:
        check_integers([np.array([0, value], spec.dtype)], [spec], widest)
    for value in refused:
        with pytest.raises(UsageError, match=f"input '{spec.name}' has values of .*, the engine takes "):
            check_integers([np.array([0, value], spec.dtype)], [spec], widest)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": np.zeros(1)}, "no input is called 'x': the engine takes input"),
        ({}, "input 'input' is missing"),
        ([], "takes 1 inputs"),
        (None, "by name or in a list, found NoneType"),
        ("input", "by name or in a list, found str"),
        (7, "by name or in a list, found int"),
        (np.zeros((1, 10, 16), np.float32), "found a single array"),
        (np.float32(1), "found a single array"),
        ([np.float32(1)], r"has shape \(\), the engine takes \(batch, 10, 16\)"),
        ([np.zeros((1, 10, 16))], "is float64, the engine takes float32"),
        ([np.zeros((1, 10, 17), np.float32)], r"has shape \(1, 10, 17\), the engine takes \(batch, 10, 16\)"),
        ([np.zeros((10, 16), np.float32)], "has shape"),
        ([np.zeros((0, 10, 16), np.float32)], "at least one sample"),
        (["text"], "is a str"),
        ([np.ma.masked_array(np.zeros((1, 10, 16), np.float32), True)], "has masked values"),
    ],
)
def test_wrong_inputs_are_named(engine: LoadedEngine, inputs: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        engine.run(inputs, batching="split")
    with pytest.raises(UsageError, match="batching is exact, pad or split"):
        engine.run(probe(engine)[0], batching="guess")  # type: ignore[call-overload]


def test_warm_up_loads_every_size(engine: LoadedEngine) -> None:
    engine.warmup()
    with pytest.raises(UsageError, match="batch sizes 1, 4, not 3"):
        engine.warmup([3])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_what_was_exchanged_after_loading_is_not_loaded_for_another_batch_size(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    copy = shutil.copytree(logged.packages[compiler], tmp_path / "engine")
    monkeypatch.chdir(tmp_path)
    with load_model("engine") as engine:
        monkeypatch.chdir("/")
        one, four = [batch(engine, 1)], [batch(engine, 4)]
        expected = engine.run(one)
        largest = max(
            (copy / "engine" / name for name in engine.manifest.engine_files()), key=lambda path: path.stat().st_size
        )
        content = largest.read_bytes()
        largest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(EngineError, match="has changed since it was written: load the engine again"):
            engine.run(four)
        np.testing.assert_array_equal(engine.run(one)[0], expected[0])
        # The same content again, such as a copy that was made once more.
        largest.write_bytes(content)
        assert len(engine.run(four)[0]) == 4
    with load_model(copy) as engine:
        shutil.rmtree(copy)
        with pytest.raises(EngineError, match="is missing: load the engine again"):
            engine.run(four)


def test_a_closed_engine_says_so(logged: Logged) -> None:
    with load_model(logged.packages["openvino"]) as engine:
        inputs, _ = probe(engine)
    with pytest.raises(EngineError, match="is closed"):
        engine.run(inputs)
    engine.close()
    assert "closed" in repr(engine)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_engine_that_nobody_holds_ends(logged: Logged, compiler: str) -> None:
    engine = load_model(logged.packages[compiler])
    inputs, _ = probe(engine)
    engine.run(inputs)
    worker, dropped = engine._worker, weakref.ref(engine)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(engine.run, [inputs] * 4))
    with pytest.raises(UsageError):
        engine.run([])
    del engine
    assert dropped() is None
    worker.thread.join(30)
    assert not worker.thread.is_alive()
    assert not worker.engines


def test_an_engine_is_not_pickled(logged: Logged) -> None:
    with load_model(logged.packages["onnxruntime"]) as engine, pytest.raises(UsageError, match="load it there"):
        pickle.dumps(engine)


@pytest.mark.parametrize("how", ["", "import threading; threading.Thread(target=lambda: engine.run(inputs)).start()"])
def test_a_program_ends_with_its_engines_open(logged: Logged, how: str) -> None:
    code = (
        "import numpy, mlflow_ngraph\n"
        f"engine = mlflow_ngraph.load_model({str(logged.packages['onnxruntime'])!r})\n"
        "inputs = [numpy.zeros(spec.resolve(1), spec.dtype) for spec in engine.inputs]\n"
        f"engine.run(inputs)\n{how}\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_that_ends_loads_none(logged: Logged) -> None:
    code = (
        "import atexit\n"
        "from mlflow_ngraph import load_model\n"
        "from mlflow_ngraph.errors import EngineError\n"
        "@atexit.register\n"
        "def last():\n"
        f"    try: load_model({str(logged.packages['onnxruntime'])!r})\n"
        "    except EngineError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("the engine gets no thread: ")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_torch_and_no_mlflow_is_imported(logged: Logged, compiler: str) -> None:
    code = (
        "import sys, mlflow_ngraph\n"
        "with mlflow_ngraph.load_model(sys.argv[1]) as engine: engine.warmup()\n"
        "print([name for name in ('torch', 'mlflow', 'pandas', 'tests') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(logged.packages[compiler])], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def altered(logged: Logged, compiler: str, place: Path, requires: dict[str, str]) -> Path:
    """A package that says it needs something else, and whose digests say that it always did."""
    package = logged.copy(compiler, place)
    rewrite(package, lambda manifest: manifest["spec"]["requires"].update(requires))
    return package


@pytest.mark.parametrize(
    ("compiler", "requires", "said"),
    [
        ("openvino", {"openvino": "2031.1.0"}, "it needs openvino 2031.1.0, here is 20"),
        ("onnxruntime", {"onnxruntime_build": "onnxruntime-gpu"}, "it needs onnxruntime_build onnxruntime-gpu"),
        ("onnxruntime", {"isa": "aarch64 sve"}, "here lacks aarch64 sve"),
        ("openvino", {"isa": "riscv64"}, "here lacks riscv64"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_command_that_builds_it(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, requires: dict[str, str], said: str
) -> None:
    package = altered(logged, compiler, tmp_path / "package", requires)
    monkeypatch.setattr(LoadedEngine, "_engine", lambda *_: pytest.fail("a runtime saw it"))
    with pytest.raises(EngineError) as error:
        load_model(package)
    assert said in str(error.value)
    assert f"build it here: mlflow-ngraph benchmark --workloads '{WORKLOAD.replace('?', '?depth=1&')}'" in str(
        error.value
    )
    assert "--batch-sizes 1,4 --precision fp32 --threads 2 --mode sync --device host" in str(error.value)


def test_the_command_is_one_that_the_command_line_takes(logged: Logged) -> None:
    import shlex

    from click.testing import CliRunner

    from mlflow_ngraph.cli.benchmark import benchmark

    manifest = open_package(logged.packages["openvino"]).manifest
    flags = {**manifest.spec.asked, "num_streams": 2, "dynamic_batch": True}
    chosen = manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"asked": flags})})
    command = shlex.split(compatibility.rebuild(chosen).removeprefix("build it here: "))
    assert command[:2] == ["mlflow-ngraph", "benchmark"]
    done = CliRunner().invoke(benchmark, [*command[2:], "--dry-run", "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    (lane,) = [lane for lane in json.loads(done.stdout)["lanes"] if lane["compiler"] == "openvino"]
    assert (lane["workload"], lane["batch_sizes"]) == (manifest.spec.workload, [1, 4])
    assert {**lane["flags"], **flags} == lane["flags"]


def test_builds_of_one_release_are_one_version(logged: Logged) -> None:
    manifest = open_package(logged.packages["openvino"]).manifest
    local = {**manifest.spec.requires, "openvino": manifest.spec.requires["openvino"] + "+local"}
    spec = manifest.spec.model_copy(update={"requires": local})
    assert compatibility.incompatibility(manifest.model_copy(update={"spec": spec})) == ""


def test_an_engine_that_computes_in_another_precision_is_refused(logged: Logged) -> None:
    package = open_package(logged.packages["openvino"])
    manifest = package.manifest.model_copy(update={"precision_in_force": "bf16"})
    changed = type(package)(package.directory, manifest, package.digest)
    with pytest.raises(EngineError, match="computes in fp32 here; measured was bf16"):
        LoadedEngine(changed)


def test_instruction_sets_are_those_of_the_host() -> None:
    assert host.isa().split()[0] in {"x86_64", "aarch64"}
