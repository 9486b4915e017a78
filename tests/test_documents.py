"""What a few bytes can stand for, and what is no file, costs who reads it neither time nor memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_ngraph.engines import trust
from mlflow_ngraph.errors import NGraphError, StudyError
from mlflow_ngraph.study import Study, load
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seed: 010", "line 4, column 7: 010 is read as 8: write that, or quotes around a text"),
        ("within: 1:30", "line 4, column 9: 1:30 is read as 90: write that, or quotes around a text"),
        ("repetitions: 1:30.5", "line 4, column 14: 1:30.5 is read as 90.5: write that, or quotes around a text"),
        ("limits: {cell_seconds: .inf}", "line 4, column 24: .inf is no finite number"),
        ("limits: {cell_seconds: -1.0e+999}", "line 4, column 24: -1.0e+999 is no finite number"),
        ("limits: {cell_seconds: .nan}", "line 4, column 24: .nan is no finite number"),
        ("batch_sizes: [2]", "line 4, column 1: the key 'batch_sizes' stands in it twice"),
        (
            "limits:\n  cell_seconds: 1\n  'cell_seconds': 2",
            "line 6, column 3: the key 'cell_seconds' stands in it twice",
        ),
        ("name: 2026-01-01", "line 4, column 7: 2026-01-01 is read as timestamp: if it is a text, write it in quotes"),
        ("metrics: {1: x}", "line 4, column 11: the key 1 is read as int: if it is a text, write it in quotes"),
        ("name: !!python/name:os.system x", "line 4, column 7: x is read as python/name:os.system: if it is a text"),
        ("name: [", "line 5, column 1"),
        ("? [a]\n: 1", "line 4, column 3: the key there is read as seq"),
    ],
)
def test_what_is_not_what_it_looks_like_is_told_with_its_place(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"batch_sizes: [1]\nworkloads: ['block:mha']\ncompilers: [identity]\n{line}\n")
    with pytest.raises(NGraphError) as error:
        load(str(path))
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_words_are_words_as_in_newer_yaml(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "base: &base {pretrained: yes}\ncache: off\nname: 'on'\ninit: {<<: *base, seed: 0}\n"
        "batch_sizes: [1]\nworkloads: ['block:mha']\ncompilers: [identity]\nseed: 0\n".partition("\n")[2].replace(
            "{<<: *base, seed: 0}", "&base {pretrained: yes, calibrate: no}"
        )
    )
    study = load(str(path))
    assert (study.cache, study.name, study.init.pretrained, study.init.calibrate) == ("off", "on", True, False)


def test_infinities_are_refused_from_python_too() -> None:
    with pytest.raises(StudyError, match="cell_seconds: expected a finite number"):
        Study(workloads=["block:mha"], compilers=["identity"], batch_sizes=[1], limits={"cell_seconds": float("inf")})
