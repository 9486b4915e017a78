from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.saved import FILE, Saved
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import TensorSpec

SAVED = Saved(
    "mine",
    "fp32",
    (TensorSpec("tokens", "int64", ("batch", 8), 0, 100),),
    (TensorSpec("logits", "float32", ("batch", 10)),),
    {"level": 3},
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    SAVED.write(tmp_path)
    assert Saved.read(tmp_path, "mine", Target()) == SAVED


def test_an_engine_of_another_compiler_is_refused(tmp_path: Path) -> None:
    SAVED.write(tmp_path)
    with pytest.raises(CompileError, match="an engine of mine, not of other"):
        Saved.read(tmp_path, "other", Target())


def test_another_precision_is_unsupported(tmp_path: Path) -> None:
    SAVED.write(tmp_path)
    with pytest.raises(UnsupportedError, match="compiled for fp32, not for bf16"):
        Saved.read(tmp_path, "mine", Target(precision="bf16"))


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_directory_without_an_engine_is_said_to_be_one(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(CompileError, match="holds no engine"):
        Saved.read(tmp_path, "mine", Target())
