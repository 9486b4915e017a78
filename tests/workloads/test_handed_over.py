"""Modules and factories as people have them are taken as they are, or refused in one line."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from mlflow_ngraph.errors import UnsupportedError, WorkloadError
from mlflow_ngraph.execute import worker as worker_module
from mlflow_ngraph.processes import environment, fork_server
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads import side_effects
from mlflow_ngraph.workloads.base import Init, Workload, WorkloadRef
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

VALUES = {"shape": ["batch", 4]}
BATCH = 3


def reference(name: str, **options: Any) -> WorkloadRef:
    return WorkloadRef("torch", f"tests.workloads.handed:{name}", {"inputs": [VALUES], **options})


def workload(name: str, **options: Any) -> Workload:
    return create(reference(name, **options), Init())


def prepared(name: str, directory: Path, **options: Any) -> Source:
    prepare(workload(name, **options), directory, batch_sizes=[BATCH], formats=["module", "exported"], seed=0)
    return Source(directory)


def given(module: torch.nn.Module, source: Source) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        output = module(*map(torch.tensor, source.example(BATCH)))
    return np.asarray((output[0] if isinstance(output, tuple) else output).numpy())


PYTHON = (
    *("compiled", "compiled_within", "compiled_in_place", "CompiledForward", "parallel"),
    *("parallel_and_compiled_with_a_hook", "hooked", "Lazy", "weight_normed", "parametrised", "Drawn", "ready"),
    *("exported", "exported_module", "exported_within", "made_in_inference_mode", "sets_everything"),
)
TORCHSCRIPT = ("scripted", "traced", "frozen", "scripted_within", "quantised", "SparseProduct")
"""Those that torch.export does not take."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", [*PYTHON, *TORCHSCRIPT])
def test_a_module_is_the_same_in_every_form_that_it_has(tmp_path: Path, name: str) -> None:
    source = prepared(name, tmp_path)
    expected = source.reference(BATCH)[0]
    assert not source.materials.behaviour.impure
    module = source.module()
    np.testing.assert_allclose(given(module, source), expected, rtol=1e-6)
    traced = torch.jit.trace(module, tuple(map(torch.tensor, source.example(BATCH))))
    np.testing.assert_allclose(given(traced, source), expected, rtol=1e-5, atol=1e-6)
    if name in PYTHON:
        program = torch.export.load(source.exported()).module()
        np.testing.assert_allclose(given(program, source), expected, rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(UnsupportedError) as caught:
            source.exported()
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_hooks_of_a_module_and_of_what_is_around_it_take_part(tmp_path: Path) -> None:
    plain = prepared("compiled", tmp_path / "plain")
    around = prepared("parallel_and_compiled_with_a_hook", tmp_path / "around")
    np.testing.assert_allclose(around.reference(BATCH)[0], 2 * plain.reference(BATCH)[0], rtol=1e-6)
    assert plain.materials.digest != around.materials.digest


@pytest.mark.filterwarnings("ignore")
def test_what_torch_compile_has_wrapped_runs_eagerly() -> None:
    for name in ("compiled", "compiled_within", "compiled_in_place", "CompiledForward"):
        module = workload(name).module()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        module(torch.ones(2, 4))
        assert not torch._dynamo.utils.counters["frames"], name


@pytest.mark.filterwarnings("ignore")
def test_lazy_layers_take_named_inputs_and_samples(tmp_path: Path) -> None:
    named = prepared("LazyByName", tmp_path / "named", inputs={"values": VALUES})
    np.testing.assert_array_equal(named.reference(BATCH)[0], prepared("Lazy", tmp_path / "lazy").reference(BATCH)[0])
    np.savez(tmp_path / "samples.npz", input=np.ones((2, 4), np.float32))
    sampled = prepared("Lazy", tmp_path / "sampled", samples=str(tmp_path / "samples.npz"))
    (tmp_path / "samples.npz").unlink()
    np.testing.assert_allclose(given(sampled.module(), sampled), sampled.reference(BATCH)[0], rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_constants_of_a_frozen_module_belong_to_its_content(tmp_path: Path) -> None:
    digests = [
        prepare(
            create(reference("frozen"), Init(seed=seed)), tmp_path / str(number), batch_sizes=[], formats=[], seed=0
        ).digest
        for number, seed in enumerate((0, 0, 1))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_program_whose_inputs_have_names_wants_them_in_its_own_order(tmp_path: Path) -> None:
    source = prepared("exported", tmp_path, inputs={"values": VALUES})
    assert [spec.name for spec in source.inputs] == ["values"]
    with pytest.raises(
        WorkloadError, match="returned a program with the inputs values: name them in this order, not x"
    ):
        workload("exported", inputs={"x": VALUES}).module()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("on_meta", "first.weight is on the device meta and has no values: build the model on the CPU"),
        ("LazyForGood", "unused.weight is still lazy after a call of the model: give it a size"),
        ("exits", "it ended the process: no licence found"),
        ("ExitsWhenCalled", "does not run on input float32[2, 4]: it ended the process: licence expired"),
        (
            "needs",
            "missing 1 required positional argument: 'width': its arguments stand in the options of the study file",
        ),
        ("none", "returned NoneType, not a torch.nn.Module: a return may be missing"),
        ("a_class", "returned the class Net, not a torch.nn.Module: return an object of it"),
        (
            "with_inputs",
            "returned tuple, not a torch.nn.Module: return the module alone; its inputs stand in the options",
        ),
        (
            "weights_alone",
            "returned OrderedDict, not a torch.nn.Module: return the model with these weights loaded into it",
        ),
        ("doubled", "first.weight is float64: give the model in float32"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        prepared(name, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_callable_of_the_running_program_is_found_by_nobody_else() -> None:
    with pytest.raises(WorkloadError, match=r"put it into a file, such as models\.py, and write torch:models:make"):
        create(WorkloadRef("torch", "__main__:make", {"inputs": [VALUES]}), Init())


def outside() -> list[Any]:
    """What a factory may set for its whole process."""
    return [
        *side_effects.settings(),
        Path.cwd(),
        dict(os.environ),
        list(warnings.filters),
        np.geterr(),
        logging.root.manager.disable,
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),
    ]


def test_what_a_factory_sets_for_its_process_is_undone() -> None:
    before = outside()
    workload("sets_everything").module()
    assert outside() == before
    assert torch.ones(1).device.type == "cpu"


def test_what_a_module_sets_when_it_is_imported_is_left_to_its_factories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets_its_type.py").write_text(
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "def make():\n    assert torch.ones(1).dtype is torch.float64\n    return torch.nn.Linear(4, 3).float()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = create(WorkloadRef("torch", "sets_its_type:make", {"inputs": [VALUES]}), Init())
    for _ in range(2):
        found.module()
        assert torch.get_default_dtype() is torch.float32


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A child process of a study, which builds models."""
    place = tmp_path_factory.mktemp("worker")
    env = environment.of_threads(1, place / "scratch", patient=True)
    with fork_server.shared(), closing(Warden()) as warden:
        child = Child(worker_module.__name__, env, place / "child.log", warden=warden, forked=True)
        with closing(child):
            yield child


def ask(worker: Child, name: str, directory: Path) -> Any:
    fields: dict[str, Any] = {"directory": str(directory), "seed": 0, "batch_sizes": [BATCH]}
    return worker.request("prepare", 60, workload=asdict(reference(name)), init=asdict(Init()), **fields)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", r"handed:exits: it ended the process: no licence found"),
        ("interrupts", r"it interrupted the process: not now"),
        ("asks", r"EOFError: it asks 'Licence key\?', and nobody is there to answer"),
    ],
)
def test_a_worker_tells_what_a_factory_says_and_lives_on(worker: Child, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ChildFailure, match=reason) as caught:
        ask(worker, name, tmp_path / "failing")
    assert caught.value.verdict is Verdict.FAILED
    assert ask(worker, "noisy", tmp_path / "noisy")["seconds"] > 0


@pytest.mark.usefixtures("processes")
def test_threads_and_processes_of_a_factory_end_with_its_worker(tmp_path: Path) -> None:
    env = environment.of_threads(1, tmp_path / "scratch", patient=True)
    with fork_server.shared(), closing(Warden()) as warden:
        child = Child(worker_module.__name__, env, tmp_path / "child.log", warden=warden, forked=True)
        with closing(child):
            ask(child, "starts_threads_and_processes", tmp_path / "materials")
            begun = psutil.Process(child.pid).children(recursive=True)
            assert len(begun) >= 2  # of each time that it was built
        _, alive = psutil.wait_procs(begun, 10)
        assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
