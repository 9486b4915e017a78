"""What a few bytes can stand for, and what is no file, costs who reads it neither time nor memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_ngraph.engines import trust
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.study import load
from mlflow_ngraph_fleet import description

READERS = (lambda path: load(str(path)), description.load, lambda path: trust.load(str(path)))


def bomb(depth: int) -> str:
    """Aliases that unfold to ten times as much on every level."""
    levels = ["workloads:", "- ref: block:mha", "  options:", "    a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"    a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, depth)]
    return "\n".join(levels) + "\n"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", [bomb(30), "a: &a [*a]\n", "[" * 20_000, "x" * (5 << 20), "\udcff"])
def test_a_document_that_unfolds_without_end_is_refused(
    read: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "document.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(NGraphError) as error:
        read(path)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_is_no_document(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "document.yaml")
    with pytest.raises(NGraphError):
        read(tmp_path / "document.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "name: {long}", "workloads: [{long}]", "workloads: ['block:{long}']", "compilers: [{long}]", "device: {long}",
        "within: {long}", "{long}: 1", "workloads: [{{ref: 'block:mha', options: {{{long}: 1}}}}]", "objective: {long}",
        "metrics: {{one: {{unit: x, better: higher, expression: {long}}}}}",
    ],
)  # fmt: skip
def test_what_is_refused_is_not_repeated_at_length(text: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    whole = {"workloads": "workloads: ['block:mha']", "compilers": "compilers: [identity]", "name": "name: s"}
    whole[text.partition(":")[0]] = text.format(long="y" * 5000)
    path.write_text("\n".join(whole.values()) + "\n")
    with pytest.raises(NGraphError) as error:
        load(str(path))
    assert len(str(error.value)) < 1500
