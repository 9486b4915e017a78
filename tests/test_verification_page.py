"""Figures about the project itself stand in records, and the page of them is what these render to."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType

import click
import pytest

from benchmarks.support import records
from benchmarks.support.records import Record
from mlflow_ngraph.cli.app import cli
from tests.support.scripts import loaded

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verification.md"
ALL = {record.id: record for topic in records.read().values() for record in topic}
PROGRAMS = ("python", "pytest", "make", "nox", "mlflow-ngraph")
FIGURE = re.compile(r"\d[\d.,]*\s?(?:%|times\b|(?:ns|ms|s|min|MB|GB)\b)")


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, whose neighbours are found where it lies."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return loaded(ROOT / "benchmarks" / "render_records.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the records."""
    monkeypatch.setattr(records, "FOLDER", shutil.copytree(records.FOLDER, tmp_path / "records"))
    return records.FOLDER


def test_the_page_is_what_the_records_render_to(renderer: ModuleType) -> None:
    text = PAGE.read_text()
    assert renderer.page(text) == text, "run make results"
    assert set(renderer.TOPICS) == set(records.read())


def test_no_line_of_the_page_is_long() -> None:
    assert [line for line in PAGE.read_text().splitlines() if len(line) > 300] == []


def test_ids_are_unique() -> None:
    assert len(ALL) == sum(map(len, records.read().values()))


@pytest.mark.parametrize("record", ALL.values(), ids=ALL)
def test_a_record_is_short_and_says_where_it_was_measured(record: Record) -> None:
    assert len(record.what.split()) <= 25
    assert record.machine is None or record.machine in records.machines()
    assert (record.date is not None) == bool(record.results)
    for result in record.results:
        assert len(result.note.split()) <= 20
        assert "|" not in f"{record.what}{result.name}{result.unit}{result.bar}"
        assert result.bar or result.met is None


@pytest.mark.parametrize("record", ALL.values(), ids=ALL)
def test_a_command_names_what_exists(record: Record) -> None:
    program, *words = shlex.split(record.command)
    assert program in PROGRAMS
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
    elif program == "mlflow-ngraph":
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            _, command, words = command.resolve_command(click.Context(cli), words)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
    elif program == "python":
        text = (ROOT / words[0]).read_text()
        assert all(word in text for word in words if word.startswith("--"))
    elif program == "pytest":
        assert (ROOT / words[0]).is_dir()


def test_scripts_replace_records_that_exist() -> None:
    for path in (ROOT / "benchmarks").glob("*.py"):
        for name in re.findall(r'keep\(\s*\w+,\s*"(\w+)"', path.read_text()):
            assert name in ALL, path
            assert f"benchmarks/{path.name}" in ALL[name].command


def test_files_are_as_the_writer_writes_them(folder: Path) -> None:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    for topic, found in records.read().items():
        records.write(topic, found)
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


@pytest.mark.usefixtures("processes")
def test_a_benchmark_replaces_its_own_record_and_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {record.id: record for topic in records.read().values() for record in topic}
    monkeypatch.setattr(sys, "argv", ["/x/zoo.py", "--home", "/tmp/place", "--record", "busy", "--chunk", "8"])
    parser = ArgumentParser()
    records.add_option(parser)
    options, _ = parser.parse_known_args()
    records.keep(options, "zoo", records.at_most("refused", 3, 2, "of 9"), records.at_least("right", 9, 9, "of 9"))
    after = {record.id: record for topic in records.read().values() for record in topic}
    zoo = after["zoo"]
    assert zoo.command == "python benchmarks/zoo.py --home place --chunk 8"
    assert (zoo.busy, zoo.note, zoo.what) == (True, "", before["zoo"].what)
    assert zoo.commit != before["zoo"].commit
    assert zoo.machine in records.machines()
    assert zoo.versions["mlflow"]
    assert [(one.bar, one.met) for one in zoo.results] == [("at most 2", False), ("all", True)]
    assert {**after, "zoo": None} == {**before, "zoo": None}


def test_nothing_is_recorded_without_the_option_or_a_result(folder: Path) -> None:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    parser = ArgumentParser()
    records.add_option(parser)
    records.keep(parser.parse_args([]), "zoo", records.at_most("refused", 3, 2))
    records.keep(parser.parse_args(["--record", "quiet"]), "zoo")
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_an_unknown_record_is_told_in_one_line(folder: Path) -> None:
    parser = ArgumentParser()
    records.add_option(parser)
    with pytest.raises(SystemExit, match="no record nothing"):
        records.keep(parser.parse_args(["--record", "quiet"]), "nothing", records.at_most("refused", 3, 2))


def test_figures_of_the_readme_link_to_their_record() -> None:
    """Examples of output are no figures, and 95 % intervals are what the package gives."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in text.replace("95 % interval", "").splitlines():
        if FIGURE.search(line):
            linked = re.findall(r"verification\.md#(\w+)", line)
            assert linked, f"no link to a record: {line}"
            assert set(linked) <= set(ALL)
