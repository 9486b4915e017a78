"""Verbs that plugins bring: listed and explained without them, and those of third parties beside them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mlflow_ngraph import entry_points
from mlflow_ngraph.cli import app, fleet
from mlflow_ngraph.cli.lazy import LazyGroup, Verbs
from mlflow_ngraph.errors import DependencyError
from mlflow_ngraph.version import __version__

POINTS = "mlflow_ngraph.cli"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """A command line where a third party brings a verb of its own, and one whose name is taken."""
    info = tmp_path / "party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: party\nVersion: 1.0\nSummary: A verb of others.\n")
    (info / "entry_points.txt").write_text("[party.verbs]\nparty = party:verb\nstudies = party:verb\n")
    (tmp_path / "party.py").write_text("import click\n\n\n@click.command()\ndef verb():\n    click.echo('a party')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return LazyGroup("ngraph", verbs={"studies": (f"{POINTS}.studies:studies", "Ours.")}, points="party.verbs")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plugin is installed."""

    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(entry_points, "distribution", none)


def test_a_verb_of_a_third_party_is_listed_and_runs(group: LazyGroup) -> None:
    told = CliRunner().invoke(group, ["--help"]).output
    assert "party    A verb of others. (party)" in told
    assert CliRunner().invoke(group, ["party"]).output == "a party\n"
    assert "did you mean 'party'?" in CliRunner().invoke(group, ["prty"]).output


def test_a_third_party_cannot_replace_a_verb(group: LazyGroup) -> None:
    assert "studies  Ours." in CliRunner().invoke(group, ["--help"]).output
    assert "a party" not in CliRunner().invoke(group, ["studies"]).output


def brought(verbs: Verbs, points: str, path: str = "") -> Iterator[tuple[str, str, str]]:
    """The verbs of plugins: their entry-point group, how they are typed, and the distribution."""
    for verb, (place, _) in verbs.items():
        if not isinstance(place, str):
            yield from brought(place, f"{points}.{verb}", f"{path}{verb} ")
        elif ":" not in place:
            yield points, f"{path}{verb}", place


BROUGHT = [*brought(app._VERBS, POINTS), *brought(fleet._VERBS, f"{POINTS}.fleet", "fleet ")]


@pytest.mark.parametrize(("points", "path", "plugin"), BROUGHT)
def test_a_plugin_has_the_verbs_that_the_tables_name(points: str, path: str, plugin: str) -> None:
    assert isinstance(entry_points.load_plugin(plugin, points, path.rsplit(maxsplit=1)[-1], path), click.Command)


@pytest.mark.parametrize(("points", "path", "plugin"), BROUGHT)
def test_a_verb_without_its_plugin_says_how_to_install_it(
    points: str, path: str, plugin: str, cli, missing: None
) -> None:
    code, out, err = cli(*path.split(), "--help")
    assert (code, out) == (2, "")
    assert err == (
        f"error: 'mlflow-ngraph {path}' is part of {plugin} {__version__}, which is not installed; in a checkout of that "
        f"version: pip install ./plugins/{plugin.removeprefix('mlflow-ngraph-')}\n"
    )


def test_a_study_on_a_fleet_without_its_plugin_says_so_too(cli, missing: None) -> None:
    code, _, err = cli("benchmark", "smoke", "--device", "xeon,orin")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: a study on several devices is part of mlflow-ngraph-fleet {__version__}")
    assert "unknown device 'lab-7'" in cli("benchmark", "smoke", "--device", "lab-7")[2]


def test_a_plugin_of_another_version_is_named(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "__version__", "9.9")
    code, _, err = cli("server", "--help")
    assert code == 2
    assert f"needs mlflow-ngraph-serve 9.9, and {__version__} is installed; in a checkout of that version" in err


def test_a_verb_that_an_installation_of_before_lacks_is_not_there() -> None:
    with pytest.raises(DependencyError, match=r"'it' is part of mlflow-ngraph-serve .*, which is not installed"):
        entry_points.load_plugin("mlflow-ngraph-serve", POINTS, "nothing", "'it'")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('too old')", "cannot be loaded from party:Adapter: RuntimeError: too old"),
        ("import mlflow_ngraph.gone", "needs mlflow_ngraph.gone; install it with: pip install --upgrade party"),
        ("", "cannot be loaded from party:Adapter: AttributeError"),
    ],
)
def test_a_broken_adapter_of_a_third_party_is_named(group: LazyGroup, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "party-1.0.dist-info/entry_points.txt").write_text("[party.adapters]\nparty = party:Adapter\n")
    (tmp_path / "party.py").write_text(f"{text}\n")
    sys.modules.pop("party", None)
    with pytest.raises(DependencyError, match=re.escape(f"adapter 'party' {said}")):
        entry_points.Registry[object]("adapter", "party.adapters", {}).get("party")


@pytest.mark.parametrize(
    ("text", "said"),
    [("raise RuntimeError('too old')", "cannot be loaded: RuntimeError: too old"), ("verb = 1", "is no click command")],
)
def test_a_broken_verb_of_a_third_party_is_named(group: LazyGroup, tmp_path: Path, text: str, said: str) -> None:
    sys.modules.pop("party", None)
    (tmp_path / "party.py").write_text(f"{text}\n")
    told = CliRunner().invoke(group, ["party"])
    assert isinstance(told.exception, DependencyError)
    assert f"the verb 'party' of party {said}" in str(told.exception)
