"""Tests of plugins have the fixtures of those of the core."""

from tests.cli.conftest import cli, cli_json
from tests.compilers.conftest import cnn, prepared
from tests.conftest import *  # noqa: F403 - its list of names is the list of the fixtures

__all__ = ["cli", "cli_json", "cnn", "prepared"]
