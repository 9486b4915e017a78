"""The suite that every compiler adapter must pass. Needs pytest.

Subclass it in a test module, and say the compiler's name and another valid value of every flag::

    from mlflow_ngraph.testing.contract import CompilerContract

    class TestMine(CompilerContract):
        compiler = "mine"
        other_flags: ClassVar = {"level": 1}

Three small models (a CNN with a residual branch, one with two inputs and two outputs, a text encoder with integer
inputs) at two batch sizes, and one with a fixed batch size, are compiled in one process, and loaded and run in another.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

from mlflow_ngraph.compilers.base import Build, Compiler, Precision, Target
from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.errors import FlagError, UnsupportedError
from mlflow_ngraph.measure.parity import TOLERANCES, Tolerance, compare
from mlflow_ngraph.testing import steps
from mlflow_ngraph.testing.steps import Job, Outcome, in_fresh_process
from mlflow_ngraph.workloads.materials import Source

MODELS = ("cnn", "two_headed", "text_encoder")
FIXED = "fixed_batch"
FIXED_BATCH = 3
BATCH_SIZES = (1, FIXED_BATCH)
THREADS = 2
RUNTIMES = {"torch", "onnxruntime", "openvino", "tvm", "tensorrt", "timm"}
"""What takes long to import."""
STRICT = Tolerance(cosine=0.9999, max_rel=1e-4)
"""fp32 engines of small models differ from the baseline by rounding alone."""

_prepared: dict[tuple[str, ...], Path] = {}
"""Materials by formats."""


class CompilerContract:
    """What an adapter promises. The class attributes are what a subclass says."""

    compiler: ClassVar[str]
    """The name under which the adapter is registered."""
    flags: ClassVar[Mapping[str, Any]] = {}
    """The flags that the engines are compiled with; the defaults are right for most."""
    other_flags: ClassVar[Mapping[str, Any]] = {}
    """A valid value other than the default for every flag."""
    other_meaning: ClassVar[Sequence[str]] = ()
    """Flags whose other value changes what the engine computes."""
    never_imported: ClassVar[Sequence[str]] = ()
    """Modules that an engine must load without, such as ``timm`` or ``torch``."""
    models: ClassVar[Sequence[str]] = (*MODELS, FIXED)
    """Models to compile, where a compiler cannot take all of them."""

    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> type[Compiler[Any]]:
        """The adapter; the whole suite is skipped where it cannot run."""
        kind = COMPILERS.get(cls.compiler)
        found = kind.availability()
        if not found.available:
            pytest.skip(f"{cls.compiler}: {found.reason}; {found.hint}")
        return kind

    @pytest.fixture(scope="class")
    @classmethod
    def materials(cls, kind: type[Compiler[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The prepared models, shared by all adapters that start from the same formats."""
        if kind.formats not in _prepared:
            directory = tmp_path_factory.mktemp("materials")
            in_fresh_process(steps.prepare_models, directory, (*MODELS, FIXED), BATCH_SIZES, kind.formats)
            _prepared[kind.formats] = directory
        return _prepared[kind.formats]

    @pytest.fixture(scope="class")
    @classmethod
    def engines(cls, kind: type[Compiler[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Where the engines are."""
        return tmp_path_factory.mktemp("engines")

    @pytest.fixture(scope="class")
    @classmethod
    def builds(cls, materials: Path, engines: Path) -> Mapping[str, tuple[Build, Mapping[str, float]]]:
        """What the compiler said of each model."""
        return in_fresh_process(steps.compile_engines, cls._job(), materials, engines, cls.models, BATCH_SIZES)

    @pytest.fixture(scope="class")
    @classmethod
    def outcomes(
        cls, builds: object, materials: Path, engines: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Mapping[tuple[str, int], Outcome]:
        """What the engines did in a fresh process, from a directory that is not the one they were compiled in."""
        moved = tmp_path_factory.mktemp("moved") / "engines"
        shutil.copytree(engines, moved)
        return in_fresh_process(
            steps.run_engines, cls._job(), materials, moved, cls.models, BATCH_SIZES, cls.never_imported
        )

    @classmethod
    def _job(cls, **target: Any) -> Job:
        return Job(cls.compiler, dict(cls.flags), Target(**{"threads": THREADS, **target}))

    def test_the_class_describes_itself(self, kind: type[Compiler[Any]]) -> None:
        assert kind.name == self.compiler
        assert kind.summary
        assert "\n" not in kind.summary
        assert set(kind.precisions) <= set(get_args(Precision))

    def test_every_flag_has_a_default_and_a_description(self, kind: type[Compiler[Any]]) -> None:
        for name, flag in kind.flags_type.model_fields.items():
            assert not flag.is_required(), f"{name} has no default"
            assert flag.description, f"{name} has no description"

    def test_flags_make_the_round_trip(self, kind: type[Compiler[Any]]) -> None:
        assert set(self.other_flags) == set(kind.flags_type.model_fields), "other_flags has not every flag"
        defaults = create(self.compiler).flags.model_dump()
        for name, value in self.other_flags.items():
            assert value != defaults[name], f"{value!r} is the default of {name}"
            flags = create(self.compiler, {name: value}).flags
            assert flags.model_dump()[name] == value
            assert create(self.compiler, flags.model_dump(mode="json")).flags == flags

    def test_unknown_flags_are_refused_by_name(self, kind: type[Compiler[Any]]) -> None:
        with pytest.raises(FlagError, match="no_such_flag"):
            create(self.compiler, {"no_such_flag": 1})

    def test_asking_for_availability_imports_no_runtime(self, kind: type[Compiler[Any]]) -> None:
        assert not RUNTIMES & set(in_fresh_process(steps.modules_after_asking, self.compiler))

    def test_batch_sizes_are_split_into_engines(self, kind: type[Compiler[Any]]) -> None:
        groups = create(self.compiler, self.flags).engines([1, 2, 4])
        assert sorted(batch for group in groups for batch in group) == [1, 2, 4]

    @pytest.mark.parametrize("batch", BATCH_SIZES)
    @pytest.mark.parametrize("model", MODELS)
    def test_a_reloaded_engine_computes_the_models_function(
        self, outcomes: Mapping[tuple[str, int], Outcome], materials: Path, model: str, batch: int
    ) -> None:
        self._require(model)
        _assert_parity(outcomes[model, batch].first, materials / model, batch, STRICT)

    def test_a_fixed_batch_size_is_served(self, outcomes: Mapping[tuple[str, int], Outcome], materials: Path) -> None:
        self._require(FIXED)
        _assert_parity(outcomes[FIXED, FIXED_BATCH].first, materials / FIXED, FIXED_BATCH, STRICT)

    def test_engines_in_one_process_do_not_disturb_each_other(
        self, outcomes: Mapping[tuple[str, int], Outcome]
    ) -> None:
        for key, outcome in outcomes.items():
            for first, second in zip(outcome.first, outcome.second, strict=True):
                np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, err_msg=str(key))

    def test_every_flag_is_reported_with_the_value_in_force(
        self, kind: type[Compiler[Any]], outcomes: Mapping[tuple[str, int], Outcome]
    ) -> None:
        for outcome in outcomes.values():
            assert set(kind.flags_type.model_fields) <= set(outcome.flags)
            assert "threads" in outcome.flags
            assert all(isinstance(value, str | int | float | bool | None) for value in outcome.flags.values())
            for name, value in self.flags.items():
                assert outcome.flags[name] == value

    def test_the_build_says_what_it_did(
        self, kind: type[Compiler[Any]], builds: Mapping[str, tuple[Build, Mapping[str, float]]]
    ) -> None:
        for build, stages in builds.values():
            assert set(kind.flags_type.model_fields) <= set(build.flags)
            assert build.requires
            assert build.export_format in (*kind.formats, None)
            assert set(stages) <= {"convert", "tune", "compile", "save"}
            assert all(seconds >= 0 for seconds in stages.values())

    def test_the_precision_in_force_is_the_one_asked_for(self, outcomes: Mapping[tuple[str, int], Outcome]) -> None:
        assert {outcome.precision for outcome in outcomes.values()} == {"fp32"}

    def test_a_precision_that_it_does_not_have_is_unsupported(
        self, kind: type[Compiler[Any]], builds: object, materials: Path, engines: Path, tmp_path: Path
    ) -> None:
        model = self.models[0]
        group = _group(self.compiler, self.flags)
        for precision in sorted(set(get_args(Precision)) - set(kind.precisions)):
            job = self._job(precision=precision)
            with pytest.raises(UnsupportedError, match=precision):
                in_fresh_process(steps.compile_engines, job, materials, tmp_path, [model], BATCH_SIZES[:1])
            with pytest.raises(UnsupportedError, match=precision):
                in_fresh_process(steps.load_engine, job, engines, model, group, BATCH_SIZES[0])
            shutil.rmtree(tmp_path / f"{model}-b{BATCH_SIZES[0]}", ignore_errors=True)

    def test_an_engine_is_not_loaded_for_another_precision_than_its_own(
        self, kind: type[Compiler[Any]], builds: object, engines: Path
    ) -> None:
        for precision in set(kind.precisions) - {"fp32"}:
            job, group = self._job(precision=precision), _group(self.compiler, self.flags)
            with pytest.raises(UnsupportedError, match="fp32"):
                in_fresh_process(steps.load_engine, job, engines, self.models[0], group, BATCH_SIZES[0])

    def test_reduced_precisions_take_effect_or_are_unsupported(
        self, kind: type[Compiler[Any]], materials: Path, tmp_path: Path
    ) -> None:
        model, batch = self.models[0], BATCH_SIZES[-1:]
        for precision in kind.precisions:
            if precision == "fp32":
                continue
            job, engines = self._job(precision=precision), tmp_path / precision
            try:
                in_fresh_process(steps.compile_engines, job, materials, engines, [model], batch)
                outcome = in_fresh_process(steps.run_engines, job, materials, engines, [model], batch)[model, batch[0]]
            except UnsupportedError:
                continue  # this machine's runtime has it not, and says so
            assert outcome.precision == precision
            _assert_parity(outcome.first, materials / model, batch[0], TOLERANCES[precision])

    def test_other_values_of_flags_give_the_same_function(
        self, kind: type[Compiler[Any]], materials: Path, tmp_path: Path
    ) -> None:
        model, batch = self.models[0], BATCH_SIZES[-1]
        jobs = {name: replace(self._job(), flags={name: value}) for name, value in self.other_flags.items()}
        for name in self.other_meaning:
            jobs.pop(name)
        where = (materials, tmp_path, [model], [batch])
        in_fresh_process(steps.compile_each, jobs, *where)
        for name, outcome in in_fresh_process(steps.run_each, jobs, *where).items():
            assert set(kind.flags_type.model_fields) <= set(outcome.flags), name
            _assert_parity(outcome.first, materials / model, batch, STRICT)

    def test_async_mode_keeps_requests_in_flight(
        self, kind: type[Compiler[Any]], builds: object, materials: Path, engines: Path
    ) -> None:
        if "async" not in kind.modes:
            with pytest.raises(UnsupportedError, match="async"):
                create(self.compiler, self.flags).check(Target(mode="async"))
            return
        job = self._job(mode="async")
        outcomes = in_fresh_process(steps.run_engines, job, materials, engines, self.models[:1], BATCH_SIZES)
        for (model, batch), outcome in outcomes.items():
            assert outcome.requests >= 1
            _assert_parity(outcome.second, materials / model, batch, STRICT)

    def _require(self, model: str) -> None:
        if model not in self.models:
            pytest.skip(f"{self.compiler} does not take {model}")


def _group(compiler: str, flags: Mapping[str, Any]) -> tuple[int, ...]:
    """The batch sizes that share the engine of the first one."""
    return next(group for group in create(compiler, flags).engines(BATCH_SIZES) if BATCH_SIZES[0] in group)


def _assert_parity(outputs: Sequence[Any], materials: Path, batch: int, tolerance: Tolerance) -> None:
    source = Source(materials)
    reference = source.reference(batch)
    assert [array.dtype for array in outputs] == [array.dtype for array in reference]
    found = compare(outputs, reference)
    assert found.cosine >= tolerance.cosine
    assert found.max_rel <= tolerance.max_rel
