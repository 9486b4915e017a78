"""The studies of a machine: listed, and named wherever one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.home import IMPORTED_FROM
from tests.support.script import Script

Cli = Callable[..., tuple[int, str, str]]
RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three studies: one is recorded, one waits for it, and one is another that did not come to its end."""
    studies = tmp_path / "studies"
    script(1, "smoke").say("study_finished", status="FINISHED", offline=False).say("study_recorded", run_id=RUN).write(
        studies / "smoke-1"
    )
    script(2, "smoke").say("study_finished", status="FINISHED", offline=True).write(studies / "smoke-2")
    script(3, "quick").write(studies / "quick-3")
    return tmp_path


def script(number: int, name: str) -> Script:
    made = Script(study_id=f"{name}-{number}", name=name, at=1e9 * number, lanes=("identity",))
    return made.finished("identity", 1).finished("identity", 4, verdict="timeout")


def test_runs_lists_them_with_what_became_of_them(home: Path, cli: Cli, cli_json: Callable[..., Any]) -> None:
    rows = cli_json("study", "runs", "--home", str(home))["studies"]
    states = {row["study_id"]: (row["state"], row["ok"], row["cells"], row["run_id"]) for row in rows}
    assert list(states.items()) == [
        ("quick-3", ("unfinished", 1, 2, None)),
        ("smoke-2", ("to be recorded: sync", 1, 2, None)),
        ("smoke-1", ("recorded", 1, 2, RUN)),
    ]
    code, out, _ = cli("study", "runs", "--home", str(home))
    assert code == 0
    assert all(text in out for text in ("smoke-2", "quick", "host", "1/2", "unfinished"))


def test_one_that_is_damaged_is_said(home: Path, cli_json: Callable[..., Any]) -> None:
    journal = home / "studies" / "smoke-1" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"timeout"', b'"timeouT"'))
    rows = cli_json("study", "runs", "--home", str(home))["studies"]
    assert {row["study_id"]: row["state"] for row in rows}["smoke-1"] == "damaged"


@pytest.mark.parametrize(
    ("text", "directory"),
    [("smoke", "smoke-2"), ("smoke~1", "smoke-1"), ("smoke-1", "smoke-1"), (RUN, "smoke-1"), ("quick", "quick-3")],
)
def test_a_study_is_named_by_name_id_or_run(home: Path, text: str, directory: str) -> None:
    assert study_directories.named(home, text) == home / "studies" / directory


def test_what_is_not_there_is_said(home: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown study 'smok': did you mean 'smoke'"):
        study_directories.named(home, "smok")
    with pytest.raises(UsageError, match="'smoke~2' is not there: 2 studies have this name"):
        study_directories.named(home, "smoke~2")


def test_the_one_before_was_measured_to_its_end(home: Path) -> None:
    studies = home / "studies"
    earlier = study_directories.measured_before(studies / "smoke-2")
    assert earlier is not None
    assert earlier.study_id == "smoke-1"
    (studies / "smoke-1" / IMPORTED_FROM).write_text("/media/stick/t.tar: not signed")
    assert study_directories.measured_before(studies / "smoke-2") is None, "that is somebody else's"
    assert study_directories.measured_before(studies / "smoke-1") is None
    assert study_directories.measured_before(studies / "quick-3") is None


def test_sync_alone_lists_what_waits(home: Path, cli: Cli, cli_json: Callable[..., Any]) -> None:
    code, out, _ = cli("study", "sync", "--home", str(home))
    assert code == 0
    assert out.splitlines() == ["smoke-2", "quick-3", "record them with: mlflow-ngraph study sync --all"]
    assert cli_json("study", "sync", "--home", str(home))["waiting"] == ["smoke-2", "quick-3"]


def test_export_takes_a_name_and_needs_no_file(
    home: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("study", "export", "smoke", "--home", str(home))
    assert code == 0, err
    assert (tmp_path / "smoke-2.tar").is_file()
    code, _, err = cli("study", "export", "smoke", "quick", "--home", str(home))
    assert (code, "name it with -o FILE" in err) == (2, True)


def test_a_file_that_is_not_there_is_a_wrong_request(tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("study", "import", str(tmp_path / "nothing.tar"))
    assert code == 2
    assert "does not exist" in err
