from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mlflow_ngraph.cli.app import run


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line here; returns exit code, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(arguments)
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def taken_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines of invented records have no probe, and are not opened."""
    monkeypatch.setattr("mlflow_ngraph_engines.logged_engine.check_whole", lambda *_: None)


@pytest.fixture
def cli_json(cli: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """Runs a verb with --json; returns the document."""

    def call(*arguments: str) -> Any:
        code, out, err = cli(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return call
