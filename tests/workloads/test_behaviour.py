"""What running the baseline tells before anything is compiled."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mlflow_ngraph.errors import UnsupportedError, WorkloadError
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.calling import called_by_name
from mlflow_ngraph.workloads.evaluation import training_operations
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from tests.workloads import behaving

INPUTS = [{"shape": ["batch", 4]}]


def prepared(name: str, directory: Path, batch_sizes=(1, 3), formats=("module",)) -> Source:
    ref = WorkloadRef("torch", f"tests.workloads.behaving:{name}", {"inputs": INPUTS})
    prepare(create(ref, Init()), directory, batch_sizes=batch_sizes, formats=formats, seed=0)
    return Source(directory)


def behaviour(name: str, directory: Path):
    return prepared(name, directory).materials.behaviour


def test_a_model_whose_author_insists_on_training_is_refused_by_name(tmp_path):
    with pytest.raises(WorkloadError, match=r"the model itself \(Insisting\) stays in training mode after eval\(\)"):
        prepared("Insisting", tmp_path)


@pytest.mark.usefixtures("compilers")
def test_what_wraps_and_counts_leaves_a_model_in_evaluation_mode(tmp_path):
    source = prepared("DroppedInMapping", tmp_path, formats=("module", "exported", "onnx"))
    assert source.materials.wrapped == ["flat_outputs"]
    assert not any(part.training for part in source.module().modules())
    program = torch.export.load(source.exported())
    assert training_operations(program) == []
    again = program.module()(torch.tensor(source.example(3)[0]))
    np.testing.assert_allclose(again.detach().numpy(), source.reference(3)[0], rtol=1e-5, atol=1e-6)


def test_a_program_in_training_form_is_told_by_its_operators():
    model = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.BatchNorm1d(4)).train()
    found = training_operations(torch.export.export(model, (torch.randn(2, 4),)))
    assert found == ["dropout (p=0.25) in 0", "batch_norm by the statistics of its batch in 1"]


@pytest.mark.parametrize(
    ("name", "impure"),
    [
        (
            "FunctionalDropout",
            r"nondeterministic: .* generator of torch, in behaving.py:\d+: return nn.functional.dropout",
        ),
        ("RareChance", "nondeterministic: each call draws random numbers from the generator of Python"),
        ("Counting", "stateful: each call changes 'calls'"),
        ("MovingAverage", "stateful: each call changes 'mean'"),
        ("LazyTable", "^$"),
        ("Linear", "^$"),
    ],
)
def test_chance_and_memory_are_found_and_named(name, impure, tmp_path):
    assert re.search(impure, behaviour(name, tmp_path).impure)


@pytest.mark.parametrize("name", ["InPlace", "ClampedInPlace"])
def test_a_model_that_writes_to_its_input_gets_copies(name, tmp_path, all_trials):
    source = prepared(name, tmp_path)
    assert source.materials.wrapped == ["copied_inputs"]
    module, given = source.module(), torch.full((1, 4), 9.0)
    assert torch.equal(module(given), module(given))
    assert torch.equal(given, torch.full((1, 4), 9.0))


def test_outputs_are_those_of_their_own_call(tmp_path, all_trials):
    source = prepared("OwnOutput", tmp_path)
    (reference,) = source.reference(3)
    again = source.module()(torch.tensor(source.example(3)[0]))
    np.testing.assert_array_equal(again.detach().numpy(), reference)
    outputs = source.trials(3).outputs
    assert not np.array_equal(outputs[0][0], outputs[1][0])
    assert source.materials.behaviour.impure == ""


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["Forces", "ForcesInside"])
def test_a_model_that_computes_gradients_has_them_in_every_mode(name, tmp_path):
    source = prepared(name, tmp_path, formats=("module", "onnx"))
    assert source.materials.wrapped[0] == "gradients"
    linear = source.module().get_submodule("model.model.linear" if name == "Forces" else "model.linear")
    (given,) = source.example(3)
    with torch.inference_mode():
        outputs = source.module()(torch.tensor(given))
    slope = 1 - torch.tanh(linear(torch.tensor(given))) ** 2
    expected = slope @ linear.weight * (-1 if name == "Forces" else 1)
    forces = outputs[1] if name == "Forces" else outputs
    torch.testing.assert_close(forces.detach(), expected.detach())
    with pytest.raises(UnsupportedError, match="computes gradients itself"):
        source.onnx()


def test_a_model_with_an_output_for_each_sample_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="returns 2 for 2 samples and 3 for 3 samples"):
        prepared("OneForEach", tmp_path)


@pytest.mark.parametrize(
    ("name", "mixes"),
    [
        ("Linear", ""),
        ("Centred", "sample 0 of a batch of 3 has another output 0 than alone"),
        ("OtherAtThree", "sample 0 of a batch of 3 has another output 0 than alone"),
    ],
)
def test_samples_that_influence_each_other_are_found(name, mixes, tmp_path):
    assert behaviour(name, tmp_path).mixes == mixes


def test_lines_that_look_at_the_data_are_named_and_those_that_look_at_shapes_and_parameters_are_not(tmp_path):
    (place,) = behaviour("Branching", tmp_path).reads
    assert place.startswith("behaving.py:")
    assert place.endswith("if out.amax() > 2.5")


def test_inputs_by_name_in_the_models_own_order_are_passed_by_position():
    """No wrapper keeps TorchScript from compiling control flow then."""
    model = behaving.Chosen()
    assert called_by_name(model, ["values", "scale"]) is model
    assert called_by_name(model, ["values"]) is model
    values, scale = torch.ones(2, 4), torch.full((2, 4), 3.0)
    swapped = called_by_name(model, ["scale", "values"])
    assert torch.equal(swapped(scale, values), model(values, scale))
    traced = called_by_name(torch.jit.trace(model, (values, scale)), ["values", "scale"])
    assert torch.equal(traced(values, scale), model(values, scale))


def test_memory_that_python_reads_without_an_operator_counts_too(tmp_path):
    assert any(".tolist()" in place for place in behaviour("Unscriptable", tmp_path).reads)


def test_data_that_are_read_as_text_are_exported_to_nothing(tmp_path):
    """Exporters print a stand-in, and no guard sees it."""
    materials = prepared("Printed", tmp_path, formats=("module", "exported", "onnx")).materials
    for kind in ("exported", "onnx"):
        error = materials.formats[kind].error
        assert error is not None
        assert re.match(r"Python reads data as text in behaving.py:\d+: .* no graph does", error)


def test_trials_vary_unless_the_model_is_deaf(tmp_path, all_trials):
    deaf = prepared("Deaf", tmp_path / "deaf").trials(1)
    assert deaf.variation is not None
    assert deaf.variation.max_rel == 0
    hearing = prepared("Linear", tmp_path / "hearing").trials(3)
    assert hearing.variation is not None
    assert hearing.variation.max_rel > 1
    assert len({trial.kind for trial in hearing.trials}) > 8


def test_complex_outputs_are_compared_whole(tmp_path):
    source = prepared("Spectrum", tmp_path)
    assert source.reference(1)[0].dtype == np.complex64
    variation = source.trials(1).variation
    assert variation is not None
    assert variation.max_rel > 0
