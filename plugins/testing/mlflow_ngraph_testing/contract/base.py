"""Base of the contract suite: attributes that a subclass sets, pytest fixtures (models, builds, outputs), helpers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

import pytest

from mlflow_ngraph.compilers.base import Compiler, Target
from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.parity import compare, problem
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_testing import preparation, steps
from mlflow_ngraph_testing.preparation import BATCH_SIZES, FIXED, FIXED_BATCH, MODELS, SEEDS
from mlflow_ngraph_testing.steps import STEP_SECONDS, Answers, BuildResult, Case, Job, Outcome, in_fresh_process, within

P = ParamSpec("P")
T = TypeVar("T")

FEW_BATCH_SIZES = (1, FIXED_BATCH)
"""Enough for a compiler that makes an engine for each."""
THREADS = 2

_prepared: dict[tuple[str, ...], Path] = {}
"""Materials by formats."""


class Base:
    """Attributes and fixtures. A subclass sets the class attributes."""

    compiler: ClassVar[str]
    """The name under which the adapter is registered."""
    flags: ClassVar[Mapping[str, Any]] = {}
    """The flags that the engines are compiled with; the defaults are right for most."""
    other_flags: ClassVar[Mapping[str, Any]] = {}
    """A valid value other than the default for every flag."""
    other_meaning: ClassVar[Sequence[str]] = ()
    """Flags whose other value changes the function that the engine computes."""
    together: ClassVar[Sequence[Sequence[str]]] = ()
    """Flags whose other values one engine is compiled with, where compiling takes long; each has one of its own else."""
    never_imported: ClassVar[Sequence[str]] = ()
    """Modules that an engine must load without, such as ``torch`` or ``timm``."""
    needs_model_code: ClassVar[bool] = False
    """Let engines import the code that defines the model; else the suite blocks it."""
    models: ClassVar[Sequence[str]] = (*MODELS, FIXED)
    """Models to compile, where a compiler cannot take all of them."""
    other_inputs: ClassVar[bool] = True
    """True where engines take other inputs than those that were prepared."""
    repeatable: ClassVar[float] = 0.0
    """Largest difference, relative to the largest output, between engines that were compiled twice from the same."""
    cycles: ClassVar[int] = 200
    """Cycles of loading, running and closing in the leak tests; fewer where loading is slow."""
    build_for: ClassVar[str] = ""
    """The device to compile for, such as ``gpu:sm89``, where this machine compiles and cannot run what it compiled: the
    tests that need the device are skipped then."""
    step_seconds: ClassVar[float] = STEP_SECONDS
    """Time limit of a process of the suite; beyond it the compiler hangs, and the test fails."""

    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> type[Compiler[Any]]:
        """The adapter; the whole suite is skipped where it cannot even compile."""
        kind = COMPILERS.get(cls.compiler)
        availability = kind.building() if cls.build_for else kind.availability()
        if not availability.available:
            pytest.skip(f"{cls.compiler}: {availability.reason}; {availability.hint}")
        return kind

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, kind: type[Compiler[Any]]) -> None:
        """This machine, as far as it runs engines; tests that need one are skipped where it does not."""
        availability = kind.availability()
        if not availability.available:
            pytest.skip(f"{cls.compiler} needs a device to run engines on: {availability.reason}")

    @pytest.fixture(scope="class")
    @classmethod
    def materials(cls, kind: type[Compiler[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The prepared models, shared by all adapters that start from the same formats."""
        if kind.formats not in _prepared:
            directory = tmp_path_factory.mktemp("materials")
            in_fresh_process(preparation.prepare_suite, directory, kind.formats)
            _prepared[kind.formats] = directory
        return _prepared[kind.formats]

    @pytest.fixture(scope="class")
    @classmethod
    def answers(cls, kind: type[Compiler[Any]]) -> Answers:
        """Answers of the compiler before any runtime is imported."""
        return cls._run(steps.ask, cls._job())

    @pytest.fixture(scope="class")
    @classmethod
    def cases(cls, materials: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
        """Each model with the suite's own flags."""
        root = tmp_path_factory.mktemp("engines")
        return {name: cls._case(materials, name, root / name) for name in cls.models}

    @pytest.fixture(scope="class")
    @classmethod
    def builds(cls, cases: Mapping[str, Case]) -> Mapping[str, list[BuildResult]]:
        return cls._run(steps.compile_cases, cases)

    @pytest.fixture(scope="class")
    @classmethod
    def outcomes(
        cls, device: None, cases: Mapping[str, Case], builds: object, tmp_path_factory: pytest.TempPathFactory
    ) -> Mapping[str, Mapping[int, Outcome]]:
        """Results of the engines in a fresh process, from another directory than they were compiled in."""
        moved = {}
        for name, case in cases.items():
            moved[name] = replace(case, engines=tmp_path_factory.mktemp("moved") / "engines")
            shutil.copytree(case.engines, moved[name].engines)
        return cls._run(steps.run_cases, moved, cls._blocked())

    @pytest.fixture(scope="class")
    @classmethod
    def variants(cls, materials: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Case]:
        """One model with the other value of every flag that does not change its meaning, compiled. By the flags' names."""
        root = tmp_path_factory.mktemp("variants")
        grouped = {flag for group in cls.together for flag in group}
        alone = [(flag,) for flag in cls.other_flags if flag not in {*grouped, *cls.other_meaning}]
        cases = {}
        for group in (*cls.together, *alone):
            label = ", ".join(group)
            flags = {**cls.flags, **{flag: cls.other_flags[flag] for flag in group}}
            case = cls._case(materials, cls.models[0], root / "-".join(group), flags)
            cases[label] = replace(case, batch_sizes=FEW_BATCH_SIZES[-1:])
        cls._run(steps.compile_cases, cases)
        return cases

    @pytest.fixture(scope="class")
    @classmethod
    def variant_outcomes(cls, device: None, variants: Mapping[str, Case]) -> Mapping[str, Mapping[int, Outcome]]:
        """Results of the engines of `variants` in a fresh process."""
        return cls._run(steps.run_cases, variants, cls._blocked())

    @classmethod
    def _run(cls, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return within(cls.step_seconds, step, *args, **kwargs)

    @classmethod
    def _blocked(cls) -> Sequence[str]:
        return cls.never_imported if cls.needs_model_code else (*cls.never_imported, *steps.MODEL_CODE)

    @classmethod
    def _job(cls, flags: Mapping[str, Any] | None = None, **target: Any) -> Job:
        """The compiler for a target; override it to run the suite for another one, such as a GPU."""
        if cls.build_for and not COMPILERS.get(cls.compiler).availability().available:
            target = {"build_for": cls.build_for, **target}
        return Job(cls.compiler, cls.flags if flags is None else flags, Target(**{"threads": THREADS, **target}))

    @classmethod
    def _case(
        cls, materials: Path, model: str, engines: Path, flags: Mapping[str, Any] | None = None, **target: Any
    ) -> Case:
        """A model at every batch size where one engine serves several, else at few."""
        job = cls._job(flags, **target)
        others = [preparation.model(materials, model, seed) for seed in SEEDS[1:]] if cls.other_inputs else []
        batch_sizes = BATCH_SIZES if serves_several(job) else FEW_BATCH_SIZES
        return Case(job, preparation.model(materials, model), engines, batch_sizes, others)

    def _require(self, model: str) -> None:
        if model not in self.models:
            pytest.skip(f"{self.compiler} does not take {model}")


def serves_several(job: Job) -> bool:
    """True where one engine serves several batch sizes."""
    return len(create(job.compiler, job.flags).engines(BATCH_SIZES)) < len(BATCH_SIZES)


def parity_problem(outputs: Sequence[Any], materials: Path, batch: int, precision: str = "fp32") -> str | None:
    """Difference from the model's outputs for the inputs of some materials, or None."""
    reference = Source(materials).reference(batch)
    if [array.dtype for array in outputs] != [array.dtype for array in reference]:
        return f"outputs of {[str(array.dtype) for array in outputs]}, not {[str(array.dtype) for array in reference]}"
    return problem(compare(outputs, reference), precision)
