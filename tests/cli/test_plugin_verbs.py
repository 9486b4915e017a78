"""Verbs that plugins bring: listed and explained without them, and those of third parties beside them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mlflow_ngraph import entry_points
from mlflow_ngraph.cli import app
from mlflow_ngraph.cli.lazy import LazyGroup
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


def test_a_verb_of_a_third_party_is_listed_and_runs(group: LazyGroup) -> None:
    told = CliRunner().invoke(group, ["--help"]).output
    assert "party    A verb of others. (party)" in told
    assert CliRunner().invoke(group, ["party"]).output == "a party\n"
    assert "did you mean 'party'?" in CliRunner().invoke(group, ["prty"]).output


def test_a_third_party_cannot_replace_a_verb(group: LazyGroup) -> None:
    assert "studies  Ours." in CliRunner().invoke(group, ["--help"]).output
    assert "a party" not in CliRunner().invoke(group, ["studies"]).output


@pytest.mark.parametrize(
    ("verb", "plugin"), [(verb, place) for verb, (place, _) in app._VERBS.items() if ":" not in place]
)
def test_a_verb_of_a_plugin_says_how_to_install_it(
    verb: str, plugin: str, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the plugin has it."""
    assert isinstance(entry_points.brought(plugin, POINTS, verb, verb), click.Command)

    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(entry_points, "distribution", none)
    code, out, err = cli(verb, "--help")
    assert (code, out) == (2, "")
    assert err == (
        f"error: 'mlflow-ngraph {verb}' is part of {plugin} {__version__}, which is not installed: pip install {plugin}, "
        f"or ./plugins/{plugin.removeprefix('mlflow-ngraph-')} of a checkout\n"
    )
