"""Who waits is told what for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mlflow_ngraph.cli.waiting import waiting


def test_a_line_after_a_moment(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting("reading", logged=True):
        pass
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("mlflow_ngraph.cli.waiting._AFTER_S", 0.01)
    with waiting("reading"):
        time.sleep(0.2)
    assert capfd.readouterr().err == ""
    with waiting("reading", logged=True):
        time.sleep(0.2)
    assert capfd.readouterr().err == "note: reading ...\n"


@pytest.mark.parametrize(
    "verb", [
        ("compare",),
        ("recommend",),
        ("results", "report"),
        ("results", "diff", "a", "b"),
        ("engine", "list"),
        ("engine", "pull", "models:/a@b"),
        ("engine", "prune", "--keep-best", "1"),
    ]
)  # fmt: skip
def test_a_reader_makes_no_database(
    verb: tuple[str, ...], cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "with space" / "none.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    code, out, err = cli(*verb)
    assert (code, out) == (2, "")
    assert f"nothing is recorded there yet: there is no file {path}" in err
    assert not path.exists()
