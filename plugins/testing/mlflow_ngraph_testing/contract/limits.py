"""Tests of leaks, and of compilations that are cut short."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_testing import steps
from mlflow_ngraph_testing.contract.base import Base, parity_problem
from mlflow_ngraph_testing.endurance import SAMPLES, load_and_run_often
from mlflow_ngraph_testing.interruption import Cut, compile_in_worker, cut_by_time, cut_with_parent
from mlflow_ngraph_testing.steps import BuildResult, Case, Outcome, Refusal, attempt


@dataclass(frozen=True)
class Interrupted:
    """A compilation that ran out of time, and one that did not."""

    whole_s: float
    """Duration of an undisturbed compilation."""
    again: Case
    """That one."""
    cut: Cut
    half: Case
    """Remains of the compilation that was cut short."""


@dataclass(frozen=True)
class Reloaded:
    """Results of loading."""

    again: Mapping[int, Outcome] | Refusal
    """Result of the complete engine."""
    half: Mapping[int, Outcome] | Refusal
    """Result of the incomplete one."""


class Limits(Base):
    """Leaks, time limits, kills."""

    @pytest.fixture(scope="class")
    @classmethod
    def interrupted(
        cls,
        cases: Mapping[str, Case],
        builds: Mapping[str, list[BuildResult]],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Interrupted:
        """The first model, compiled again in a worker, and then in too little time."""
        root, model = tmp_path_factory.mktemp("interrupted"), cls.models[0]
        case = _first_engine(cases[model], builds[model])
        again, half = replace(case, engines=root / "again"), replace(case, engines=root / "half")
        whole_s = compile_in_worker(again)
        cut = cut_by_time(half, whole_s)
        return Interrupted(whole_s, again, cut, half)

    @pytest.fixture(scope="class")
    @classmethod
    def reloaded(cls, device: None, interrupted: Interrupted) -> Reloaded:
        run = partial(steps.run_cases, never_imported=cls._blocked())
        ran = cls._run(attempt, run, {"again": interrupted.again, "half": interrupted.half})
        return Reloaded(ran["again"], ran["half"])

    def test_engines_leave_nothing_behind(self, device: None, cases: Mapping[str, Case], builds: object) -> None:
        usage = self._run(load_and_run_often, cases[self.models[-1]], self.cycles, self._blocked())
        assert usage.problem() is None

    def test_requests_in_flight_leave_nothing_behind(
        self, device: None, kind: type[Compiler[Any]], cases: Mapping[str, Case], builds: object, materials: Path
    ) -> None:
        if "async" not in kind.modes:
            pytest.skip(f"{self.compiler} has no mode async")
        model = self.models[-1]
        case = self._case(materials, model, cases[model].engines, mode="async")
        usage = self._run(load_and_run_often, case, max(SAMPLES, self.cycles // 4), self._blocked())
        assert usage.problem() is None

    def test_a_time_limit_ends_a_compilation_and_all_that_it_started(self, interrupted: Interrupted) -> None:
        assert interrupted.cut.verdict is Verdict.TIMEOUT, interrupted.cut.reason
        assert interrupted.cut.survivors == []

    def test_half_an_engine_is_not_taken_for_one(self, reloaded: Reloaded, cases: Mapping[str, Case]) -> None:
        if isinstance(reloaded.half, Refusal):
            assert reloaded.half.verdict is not None, f"{reloaded.half.kind}: {reloaded.half.reason}"
            return
        for batch, outcome in reloaded.half.items():  # it was complete before it was cut
            assert parity_problem(outcome.first, cases[self.models[0]].materials, batch) is None

    def test_compiling_again_gives_an_engine_that_behaves_the_same(
        self, reloaded: Reloaded, outcomes: Mapping[str, Mapping[int, Outcome]]
    ) -> None:
        assert not isinstance(reloaded.again, Refusal), reloaded.again
        for batch, outcome in reloaded.again.items():
            for again, before in zip(outcome.first, outcomes[self.models[0]][batch].first, strict=True):
                difference = np.abs(again - before).max() / np.abs(before).max()
                assert difference <= self.repeatable

    def test_a_search_goes_on_after_it_was_cut(
        self, device: None, cases: Mapping[str, Case], builds: Mapping[str, list[BuildResult]], tmp_path: Path
    ) -> None:
        if not create(self.compiler, self.flags).searches:
            pytest.skip(f"{self.compiler} does not search with these flags")
        model = self.models[0]
        case = replace(_first_engine(cases[model], builds[model]), engines=tmp_path / "engines")
        cut_by_time(case, builds[model][0].seconds)
        shutil.rmtree(case.engines)
        compile_in_worker(case)
        for batch, outcome in self._run(steps.run_cases, {model: case}, self._blocked())[model].items():
            assert parity_problem(outcome.first, case.materials, batch) is None

    def test_a_compilation_ends_with_the_process_that_asked_for_it(
        self,
        cases: Mapping[str, Case],
        builds: Mapping[str, list[BuildResult]],
        interrupted: Interrupted,
        tmp_path: Path,
    ) -> None:
        model = self.models[0]
        case = replace(_first_engine(cases[model], builds[model]), engines=tmp_path / "engines")
        assert cut_with_parent(case, interrupted.whole_s / 2).survivors == []


def _first_engine(case: Case, made: list[BuildResult]) -> Case:
    """The case with the batch sizes of its first engine alone."""
    return replace(case, batch_sizes=made[0].group)
