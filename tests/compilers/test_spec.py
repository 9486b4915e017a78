from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.spec import FILE, EngineSpec
from mlflow_ngraph.errors import CompileError, EngineError, UnsupportedError
from mlflow_ngraph.workloads.base import TensorSpec
from tests.support.specs import engine_spec

SPEC = engine_spec(
    compiler="identity",
    inputs=(TensorSpec("tokens", "int64", ("batch", 8), 0, 100),),
    target=Target(threads=2, transfers="inside"),
    facts={"level": 3, "share": 0.5, "name": None},
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    SPEC.write(tmp_path)
    assert EngineSpec.read(tmp_path) == EngineSpec.read_for(create("identity", {}), tmp_path, Target()) == SPEC
    assert isinstance(EngineSpec.read(tmp_path).inputs[0], TensorSpec)


def test_an_engine_of_another_compiler_is_refused(tmp_path: Path) -> None:
    SPEC.write(tmp_path)
    with pytest.raises(CompileError, match="an engine of identity, not of torchscript"):
        EngineSpec.read_for(create("torchscript", {}), tmp_path, Target())


def test_another_precision_is_unsupported(tmp_path: Path) -> None:
    SPEC.write(tmp_path)
    with pytest.raises(UnsupportedError, match="compiled for fp32, not for bf16"):
        EngineSpec.read_for(create("identity", {}), tmp_path, Target(precision="bf16"))


@pytest.mark.parametrize(
    "content", [None, "{", "[]", "{}", json.dumps({**json.loads(SPEC.model_dump_json()), "schema_version": 2})]
)
def test_a_directory_without_an_engine_of_this_version_is_said_to_be_one(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(EngineError, match="; compile the engine again"):
        EngineSpec.read(tmp_path)
    with pytest.raises(CompileError, match=r"holds no engine: .*; compile the engine again"):
        EngineSpec.read_for(create("identity", {}), tmp_path, Target())
