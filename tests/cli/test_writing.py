"""Output goes to a file, or to the standard output, and a failure to write it is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.cli import writing
from mlflow_ngraph.errors import DiskFullError, UsageError


def test_a_dash_is_the_standard_output(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writing.write("a,b\n", "-")
    assert capsys.readouterr().out == "a,b\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["folder/", "table.csv/"])
def test_the_name_of_a_directory_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="it names a directory"):
        writing.write("a,b\n", f"{tmp_path}/{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no full device")
def test_a_full_disk_is_no_wrong_request() -> None:
    with pytest.raises(DiskFullError, match="no space left on a disk while writing /dev/full"):
        writing.write("a,b\n", "/dev/full")
