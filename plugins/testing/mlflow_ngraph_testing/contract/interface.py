"""Tests of an adapter's description, before it compiles anything."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from mlflow_ngraph.compilers.base import Compiler, Precision
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import FlagError
from mlflow_ngraph_testing.contract.base import Base
from mlflow_ngraph_testing.steps import Answers

RUNTIMES = {"torch", "onnxruntime", "openvino", "tvm", "tensorrt", "tensorrt_rtx_bindings", "timm"}
"""Modules that take long to import."""


class Interface(Base):
    """Names, flags, and answers in the parent process."""

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

    def test_what_the_parent_asks_imports_no_runtime(self, kind: type[Compiler[Any]], answers: Answers) -> None:
        runtimes = {*RUNTIMES, *kind.runtime_modules, *(kind.compile_modules or ())}
        assert not runtimes & answers.modules

    def test_batch_sizes_are_split_into_engines(self, answers: Answers) -> None:
        assert sorted(batch for group in answers.groups for batch in group) == [1, 2, 4]

    def test_what_an_engine_requires_is_known_and_stays(self, answers: Answers) -> None:
        first, second = answers.requires
        assert first == second
        assert first
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in first.items())
