"""The documents say what is so: their commands run, their files parse, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel

import mlflow_ngraph
from mlflow_ngraph import study
from mlflow_ngraph.cli.app import cli
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.study import Study
from mlflow_ngraph.verdicts import Verdict

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(path: Path, info: str) -> list[str]:
    """The fenced blocks of a document that begin with ``info``."""
    return re.findall(rf"^```{info}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks(ROOT / "README.md", "console test") for line in block.splitlines()]
    assert lines
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("command", commands())
def test_commands_of_the_readme_run(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *arguments = shlex.split(command)
    assert program == "mlflow-ngraph"
    monkeypatch.chdir(ROOT)
    told = CliRunner().invoke(cli, arguments)
    assert told.exit_code == 0, told.output
    assert told.stdout


def test_other_commands_of_the_readme_name_what_exists() -> None:
    for block in blocks(ROOT / "README.md", "console"):
        for line in block.splitlines():
            program, *words = shlex.split(line.removeprefix("$ "), comments=True)
            if program != "mlflow-ngraph":
                continue
            context = click.Context(cli, info_name="mlflow-ngraph")
            command: click.Command | None = cli
            while isinstance(command, click.Group):
                _, command, words = command.resolve_command(context, words)
            assert command is not None
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"\bmake ([a-z]+)\b(?! )|\$ make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {name for pair in used for name in pair if name} <= targets


def test_the_readme_installs_all_plugins_and_nothing_else() -> None:
    (names,) = re.findall(r"pip install .* \./plugins/\{(.*)\}", (ROOT / "README.md").read_text())
    assert set(names.split(",")) == {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}


def test_the_study_of_the_readme_is_valid() -> None:
    (text,) = blocks(ROOT / "README.md", "yaml")
    found = study.parse(yaml.safe_load(text), "README")
    assert [choice.label for choice in found.compilers].count("openvino[performance_hint=throughput]") == 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_of_the_documents_compiles(path: Path) -> None:
    for block in blocks(path, "python"):
        compile(block, str(path), "exec")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_every_verdict_is_explained() -> None:
    text = (ROOT / "docs/reference/verdicts.md").read_text()
    for verdict in Verdict:
        assert f"| `{verdict}` |" in text


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield name, field.default
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner)
        for argument in getattr(inner, "__args__", ()):
            for candidate in (argument, *getattr(argument, "__args__", ())):
                if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                    yield from keys(candidate)


def test_every_key_of_a_study_is_explained_with_its_default() -> None:
    text = (ROOT / "docs/reference/study-file.md").read_text()
    found = list(keys(Study))
    assert {"workloads", "ref", "flags", "window", "cell_seconds", "seed"} <= {name for name, _ in found}
    for name, default in found:
        rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert rows, name
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            assert any(f"| {default:g} |" in row for row in rows), f"{name}: {default}"


def test_every_parameter_of_init_is_explained() -> None:
    from dataclasses import fields

    from mlflow_ngraph.workloads.base import Init

    text = (ROOT / "docs/reference/study-file.md").read_text().partition("## `init`")[2]
    for field in fields(Init):
        assert f"| `{field.name}` | {str(field.default).lower()} |" in text


def test_every_scheme_of_workloads_is_explained() -> None:
    from mlflow_ngraph.workloads.registry import WORKLOADS

    text = (ROOT / "docs/reference/study-file.md").read_text()
    for scheme in WORKLOADS.names():
        assert f"| `{scheme}:" in text


def test_the_tree_of_errors_is_complete() -> None:
    from mlflow_ngraph import errors

    def below(kind: type[NGraphError]) -> Iterator[str]:
        for inner in kind.__subclasses__():
            if inner.__module__ == errors.__name__:
                yield inner.__name__
                yield from below(inner)

    assert errors.__doc__ is not None
    assert set(below(NGraphError)) <= set(re.findall(r"\w+Error", errors.__doc__))


@pytest.mark.usefixtures("processes")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """A warning is a link that leads nowhere, a page that is in no list, or a docstring that cannot be read."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "reference/python.html").read_text()
    named_elsewhere = {"Study", "StudyRecord", "Verdict", "__version__"}
    assert {name for name in mlflow_ngraph.__all__ if f'id="mlflow_ngraph.{name}"' not in page} == named_elsewhere
