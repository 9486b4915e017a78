"""The compiler that is wrong on purpose: each damage changes what the engine says, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlflow_ngraph_testing.steps import Case, Job, Refusal, attempt, compile_cases, prepare_models, run_cases, within

SECONDS = 120.0
DAMAGES = ("weight", "swapped", "dropped", "repeated", "rounded", "clipped")
BATCH = 3


def _outcomes(directory: Path) -> dict[str, object]:
    prepare_models(directory, ["parallel", "two_headed"], [BATCH], ["module"])
    right = Case(Job("torchscript"), directory / "parallel", directory / "right", [BATCH])
    cases = {
        # Clipped where ordinary activations are already, so that ordinary inputs show it.
        damage: Case(
            Job("broken", {"damage": damage, "limit": 0.1}), directory / "parallel", directory / damage, [BATCH]
        )
        for damage in DAMAGES
    }
    cases["right"] = right
    compile_cases(cases)
    nothing = Case(Job("broken", {"damage": "clipped"}), directory / "two_headed", directory / "nothing", [BATCH])
    return {**run_cases(cases), **attempt(compile_cases, {"nothing": nothing})}


@pytest.fixture(scope="module")
def outcomes(processes: None, broken_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return within(SECONDS, _outcomes, tmp_path_factory.mktemp("broken"))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_changes_outputs_and_their_numbers_only(outcomes, damage):
    right, wrong = outcomes["right"][BATCH].first, outcomes[damage][BATCH].first
    assert [array.shape for array in wrong] == [array.shape for array in right]
    assert not all(map(np.array_equal, wrong, right))


def test_repeated_gives_the_last_sample_what_the_one_before_gets(outcomes):
    (wrong,) = outcomes["repeated"][BATCH].first
    assert np.array_equal(wrong[-1], wrong[-2])
    assert np.allclose(wrong[:-1], outcomes["right"][BATCH].first[0][:-1])


def test_a_model_without_an_activation_that_could_be_clipped_is_unsupported(outcomes):
    refusal = outcomes["nothing"]
    assert isinstance(refusal, Refusal)
    assert (refusal.verdict, "nothing that can be clipped" in refusal.reason) == ("unsupported", True)
