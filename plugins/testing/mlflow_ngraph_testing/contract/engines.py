"""Tests of engines: outputs, flags and precision in force, explanations, and refusals that name what is unsupported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from mlflow_ngraph.compilers.base import Compiler, Precision, Target
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph_testing import preparation, steps
from mlflow_ngraph_testing.contract.base import FEW_BATCH_SIZES, Base, parity_problem, serves_several
from mlflow_ngraph_testing.preparation import FIXED, FIXED_BATCH, MODELS
from mlflow_ngraph_testing.steps import Answers, BuildResult, Case, Outcome, Refusal, attempt

Outcomes = Mapping[str, Mapping[int, Outcome]]


class Engines(Base):
    """Parity, flags and precision in force, explanations."""

    @pytest.mark.parametrize("batch", FEW_BATCH_SIZES)
    @pytest.mark.parametrize("model", MODELS)
    def test_a_reloaded_engine_computes_the_models_function(
        self, outcomes: Outcomes, materials: Path, model: str, batch: int
    ) -> None:
        self._require(model)
        assert parity_problem(outcomes[model][batch].first, preparation.model(materials, model), batch) is None

    def test_a_fixed_batch_size_is_served(self, outcomes: Outcomes, materials: Path) -> None:
        self._require(FIXED)
        assert list(outcomes[FIXED]) == [FIXED_BATCH]
        outputs = outcomes[FIXED][FIXED_BATCH].first
        assert parity_problem(outputs, preparation.model(materials, FIXED), FIXED_BATCH) is None

    @pytest.mark.parametrize("model", [*MODELS, FIXED])
    def test_it_does_so_for_other_inputs(self, outcomes: Outcomes, cases: Mapping[str, Case], model: str) -> None:
        self._require(model)
        if not self.other_inputs:
            pytest.skip(f"{self.compiler} takes the prepared inputs only")
        for batch, outcome in outcomes[model].items():
            for materials, outputs in zip(cases[model].others, outcome.others, strict=True):
                assert parity_problem(outputs, materials, batch) is None, f"{materials.parent.name}, batch size {batch}"

    def test_one_engine_serves_several_batch_sizes(
        self, kind: type[Compiler[Any]], cases: Mapping[str, Case], outcomes: Outcomes, materials: Path, tmp_path: Path
    ) -> None:
        model = self.models[0]
        others = {name: value for name, value in self.other_flags.items() if name not in self.other_meaning}
        variants = [{**self.flags, name: value} for name, value in others.items()]
        if serves_several(self._job()):
            of_model = outcomes[model]
        elif flags := next((flags for flags in variants if serves_several(self._job(flags))), None):
            case = self._case(materials, model, tmp_path, flags)
            self._run(steps.compile_cases, {model: case})
            of_model = self._run(steps.run_cases, {model: case}, self._blocked())[model]
        else:
            pytest.skip(f"{self.compiler} makes an engine for each batch size")
        assert sorted(of_model) == sorted(preparation.BATCH_SIZES)
        for batch, outcome in of_model.items():
            assert parity_problem(outcome.first, cases[model].materials, batch) is None, batch

    def test_engines_in_one_process_do_not_disturb_each_other(self, outcomes: Outcomes) -> None:
        for model, of_model in outcomes.items():
            for batch, outcome in of_model.items():
                for first, second in zip(outcome.first, outcome.second, strict=True):
                    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, err_msg=f"{model} b{batch}")

    def test_other_values_of_flags_are_compiled(self, kind: type[Compiler[Any]], variants: Mapping[str, Case]) -> None:
        for flag, case in variants.items():
            for group in case.groups():
                assert any(case.directory(group).iterdir()), flag

    def test_other_values_of_flags_give_the_same_function(
        self, kind: type[Compiler[Any]], variants: Mapping[str, Case], variant_outcomes: Outcomes
    ) -> None:
        for flag, of_flag in variant_outcomes.items():
            for batch, outcome in of_flag.items():
                assert set(kind.flags_type.model_fields) <= set(outcome.flags), flag
                assert parity_problem(outcome.first, variants[flag].materials, batch) is None, flag

    def test_every_flag_is_reported_with_the_value_in_force(
        self, kind: type[Compiler[Any]], outcomes: Outcomes
    ) -> None:
        for outcome in (outcome for of_model in outcomes.values() for outcome in of_model.values()):
            assert set(kind.flags_type.model_fields) <= set(outcome.flags)
            assert "threads" in outcome.flags
            assert all(isinstance(value, str | int | float | bool | None) for value in outcome.flags.values())
            for name, value in self.flags.items():
                assert outcome.flags[name] == value

    def test_the_build_says_what_it_did(
        self, kind: type[Compiler[Any]], builds: Mapping[str, list[BuildResult]], answers: Answers
    ) -> None:
        for made in (made for of_model in builds.values() for made in of_model):
            assert set(kind.flags_type.model_fields) <= set(made.build.flags)
            assert set(answers.requires[0].items()) <= set(made.build.requires.items())
            assert made.build.export_format in (*kind.formats, None)
            assert set(made.stages) <= {"convert", "tune", "compile", "save"}
            assert all(seconds >= 0 for seconds in made.stages.values())

    def test_explanations_make_sense_and_the_round_trip(self, builds: Mapping[str, list[BuildResult]]) -> None:
        for made in (made for of_model in builds.values() for made in of_model):
            assert set(made.explanations) == set(made.group)
            for said, read in made.explanations.values():
                assert read == said
                _check(said)

    def test_the_precision_in_force_is_the_one_asked_for(self, outcomes: Outcomes) -> None:
        precisions = {outcome.precision for of_model in outcomes.values() for outcome in of_model.values()}
        assert precisions == {"fp32"}

    def test_a_precision_that_it_does_not_have_is_unsupported(
        self, kind: type[Compiler[Any]], materials: Path, tmp_path: Path
    ) -> None:
        model, missing = self.models[0], sorted(set(get_args(Precision)) - set(kind.precisions))
        cases = {name: self._case(materials, model, tmp_path / name, precision=name) for name in missing}
        for precision, refusal in self._run(attempt, steps.compile_cases, cases).items():
            _assert_unsupported(refusal, precision)

    def test_an_engine_is_not_loaded_for_another_precision_than_its_own(
        self, kind: type[Compiler[Any]], builds: object, materials: Path, cases: Mapping[str, Case]
    ) -> None:
        model = self.models[0]
        wrong = {
            name: self._case(materials, model, cases[model].engines, precision=name)
            for name in get_args(Precision)
            if name != "fp32"
        }
        for precision, refusal in self._run(attempt, steps.load_cases, wrong).items():
            _assert_unsupported(refusal, "fp32" if precision in kind.precisions else precision)

    def test_reduced_precisions_take_effect_or_are_unsupported(
        self, device: None, kind: type[Compiler[Any]], materials: Path, tmp_path: Path
    ) -> None:
        model, batch = self.models[0], FEW_BATCH_SIZES[-1]
        for precision in sorted(set(kind.precisions) - {"fp32"}):
            case = self._case(materials, model, tmp_path / precision, precision=precision)
            try:
                self._run(steps.compile_cases, {model: case})
                outcome = self._run(steps.run_cases, {model: case}, self._blocked())[model][batch]
            except UnsupportedError:
                continue  # this machine's runtime has it not, and says so
            assert outcome.precision == precision
            assert parity_problem(outcome.first, case.materials, batch, precision) is None

    def test_async_mode_keeps_requests_in_flight(
        self, device: None, kind: type[Compiler[Any]], builds: object, materials: Path, cases: Mapping[str, Case]
    ) -> None:
        if "async" not in kind.modes:
            with pytest.raises(UnsupportedError, match="async"):
                create(self.compiler, self.flags).check(Target(mode="async"))
            return
        model = self.models[0]
        case = self._case(materials, model, cases[model].engines, mode="async")
        for batch, served in self._run(steps.serve_cases, {model: case}, self._blocked())[model].items():
            assert served.requests >= 1
            assert served.flags["requests"] == served.requests, "the requests in force are not those that are in flight"
            assert len(served.together) == len(served.streamed) == len(served.at_once) == served.requests
            for outputs in (*served.together, *served.streamed, *served.at_once):
                assert parity_problem(outputs, case.materials, batch) is None

    def test_an_operator_that_nobody_knows_is_unsupported_by_its_name(
        self, kind: type[Compiler[Any]], materials: Path, tmp_path: Path
    ) -> None:
        where = {"torch": preparation.unknown_torch(materials)}
        if "onnx" in kind.formats:
            where["onnx"] = preparation.unknown_onnx(materials)
        cases = {
            label: Case(self._job(), directory, tmp_path / label, FEW_BATCH_SIZES[-1:])
            for label, directory in where.items()
        }
        made = self._run(attempt, steps.compile_cases, cases)
        compiled = {label: cases[label] for label, result in made.items() if not isinstance(result, Refusal)}
        ran = self._run(attempt, partial(steps.run_cases, never_imported=self._blocked()), compiled)
        results: dict[str, Any] = {**made, **ran}
        for label, result in results.items():
            if isinstance(result, Refusal):
                _assert_unsupported(result, preparation.OPERATOR)
            else:
                # PyTorch itself runs what its own process registered; an ONNX operator without meaning nobody runs.
                assert label == "torch", "it took an operator that has no meaning"
                for batch, outcome in result.items():
                    assert parity_problem(outcome.first, where[label], batch) is None


def _assert_unsupported(result: object, name: str) -> None:
    assert isinstance(result, Refusal), f"{name} was accepted"
    assert result.verdict == "unsupported", f"{result.kind}: {result.reason}"
    assert name.lower() in result.reason.lower()
    assert "\n" not in result.reason


def _check(explanation: Explanation) -> None:
    for count in (explanation.nodes_before, explanation.nodes_after):
        assert count is None or count >= 1
    assert explanation.layout_changes is None or explanation.layout_changes >= 0
    assert explanation.code_bytes is None or explanation.code_bytes > 0
    assert all(isinstance(name, str) for name in explanation.facts)
    assert all(isinstance(value, str | int | float | bool) for value in explanation.facts.values())
    for kernel in explanation.kernels:
        assert kernel.name
        assert kernel.microseconds is None or kernel.microseconds >= 0
        assert all(isinstance(node, str) for node in kernel.fused)
        for field in fields(Kernel):
            if field.name not in ("fused", "microseconds"):
                assert isinstance(getattr(kernel, field.name), str)
