"""What is found out about a model before anything is compiled, for every module of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.baseline import ModuleBaseline
from mlflow_ngraph.workloads.behaviour import differs_when_rebuilt, observe
from mlflow_ngraph.workloads.calling import tensors
from mlflow_ngraph.workloads.data_reads import follow
from mlflow_ngraph.workloads.evaluation import evaluate
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph.workloads.trials import draw
from tests.support.zoo.catalogue import specimens
from tests.support.zoo.specimen import Specimen

BATCH = 3
OTHERS = 3
INSISTING = ("InsistingDropout", "InsistingNorm")
UNWATCHED = ("Cond",)
"""PyTorch runs no operators of control flow while it is watched."""
pytestmark = pytest.mark.usefixtures("compilers")
ZOO = {name: one for name, one in specimens().items() if name not in INSISTING}


def workload(one: Specimen) -> Any:
    return create(WorkloadRef("torch", one.target, {"inputs": one.inputs}), Init())


def baseline(one: Specimen) -> ModuleBaseline:
    return ModuleBaseline(evaluate(workload(one).module(), one.name))


@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].verifiable and name not in UNWATCHED])
def test_python_is_seen_where_it_looks_at_the_data_and_nowhere_else(name):
    one = ZOO[name]
    rng = np.random.default_rng(0)
    inputs = tensors([spec.random(BATCH, rng) for spec in workload(one).inputs()])
    reads = follow(baseline(one).module, inputs).reads
    assert bool(reads) == one.looks, reads


@pytest.mark.parametrize("name", ZOO)
def test_what_is_no_function_of_its_inputs_is_found_and_nothing_else(name):
    one = ZOO[name]
    specs = workload(one).inputs()
    example = [spec.random(BATCH, np.random.default_rng(0)) for spec in specs]
    others = [draw(specs, BATCH, 0, number, example)[1] for number in range(OTHERS)]
    first = baseline(one)
    first.run(example)  # as whoever asks for shapes does
    impure = observe(first, example, others).impure or differs_when_rebuilt(first, baseline(one), example, others)
    assert bool(impure) == (one.truth in ("stateful", "random")), impure


@pytest.mark.parametrize("name", INSISTING)
def test_whoever_insists_on_training_is_refused(name):
    with pytest.raises(WorkloadError, match="stays in training mode"):
        baseline(specimens()[name])
