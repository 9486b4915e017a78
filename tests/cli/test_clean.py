"""What this machine keeps: what may go is shown first, and what nobody else has goes only if it is named."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.cli.app import run
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.execute.journal import Journal
from tests.support.specs import stored_engine

DAY = 86400
FIELDS: dict[str, dict[str, Any]] = {"study_finished": {"offline": False}, "study_recorded": {"run_id": "0" * 32}}
"""Of the events that readers look into."""


def study(home: Path, name: str, *events: str, age_s: float = 0) -> Path:
    """A study whose journal has these events, with a log, scratch and an engine of 1000 bytes."""
    directory = home / "studies" / name
    with Journal(directory) as writer:
        for event in events:
            writer.append(event, **FIELDS.get(event, {}))
    for path, size in {"logs/one.log": 100, "materials/x": 10, "scratch/y": 10, "engines/a/b/model": 1000}.items():
        (directory / path).parent.mkdir(parents=True)
        (directory / path).write_bytes(bytes(size))
    moment = time.time() - age_s
    os.utime(directory / "journal.jsonl", (moment, moment))
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a recorded study, an older one, one that is not recorded, an open one, and engines."""
    done = ("study_started", "study_finished", "lane_recorded", "study_recorded")
    recorded = study(tmp_path, "recorded", *done)
    study(tmp_path, "old", *done, age_s=40 * DAY)
    study(tmp_path, "measured", *done[:-1])
    study(tmp_path, "open", "study_started", "study_interrupted")
    (tmp_path / "studies" / "strange").mkdir()
    (tmp_path / "pulled" / "engine").mkdir(parents=True)
    (tmp_path / "pulled" / "engine" / "manifest.json").write_bytes(bytes(500))
    source = recorded / "engines/a/b"
    EngineStore(tmp_path / "engines").add(stored_engine(source, "k" * 64, "net"), source)
    return tmp_path


def clean(home: Path, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run(["local", "clean", "--home", str(home), "--json", *arguments]) == code
    return dict(json.loads(capsys.readouterr().out))


def there(home: Path) -> set[str]:
    return {path.name for path in (home / "studies").iterdir()}


def test_all_is_shown_and_nothing_is_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(home.rglob("*"))
    shown = clean(home, capsys)
    assert sorted(home.rglob("*")) == before
    assert not shown["removed"]
    stays = {item["name"]: item["stays"] for item in shown["items"] if item["what"] == "studies"}
    assert stays == {
        "recorded": "",
        "old": "",
        "measured": "it is not recorded",
        "open": "it did not come to its end",
    }
    assert {item["what"] for item in shown["items"]} == {"studies", "logs", "scratch", "cache", "pulled"}
    assert shown["items"][0]["name"] == "old", "the longest unused first"
    assert run(["local", "clean", "--home", str(home)]) == 0
    said = capsys.readouterr().out
    assert "2 studies stay" in said
    assert "nothing was removed" in said
    assert "strange" not in said


def test_studies_that_a_server_has_go_and_others_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    removed = clean(home, capsys, "studies", "--older-than", "30d", "--yes")
    assert [item["name"] for item in removed["items"]] == ["old"]
    assert removed["freed_bytes"] > 1000
    assert there(home) == {"recorded", "measured", "open", "strange"}
    removed = clean(home, capsys, "studies", "--yes")
    assert there(home) == {"measured", "open", "strange"}
    assert removed["freed_bytes"] < 1000 + 500, "the cache has its engine, too"
    assert (home / "engines" / ("k" * 64) / "engine" / "model").stat().st_size == 1000


def test_what_nobody_else_has_goes_if_it_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = clean(home, capsys, "--study", "measured")
    assert [(item["name"], item["stays"]) for item in shown["items"]] == [("measured", "")]
    clean(home, capsys, "--study", "measured", "--yes")
    assert there(home) == {"recorded", "old", "open", "strange"}
    assert run(["local", "clean", "--home", str(home), "--study", "opne", "--yes"]) == 2
    assert "did you mean 'open'" in capsys.readouterr().err


def test_logs_and_scratch_go_without_their_study(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    removed = clean(home, capsys, "logs", "scratch", "--yes")
    assert removed["freed_bytes"] == 4 * 120
    for name in ("recorded", "old", "measured", "open"):
        assert {path.name for path in (home / "studies" / name).iterdir()} == {
            "journal.jsonl",
            "journal.lock",
            "engines",
        }


def test_engines_go_from_the_cache_and_from_what_was_pulled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    removed = clean(home, capsys, "cache", "pulled", "--yes")
    assert removed["freed_bytes"] >= 500
    assert list((home / "pulled").iterdir()) == []
    assert list((home / "engines").iterdir()) == []
    assert (home / "studies/recorded/engines/a/b/model").is_file()


def test_a_study_that_somebody_runs_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(home / "studies" / "recorded"):
        removed = clean(home, capsys, "studies", "logs", "--yes", code=1)
    problems = {(item["what"], item["name"]): item["stays"] for item in removed["items"] if item["stays"]}
    assert set(problems) == {("studies", "recorded"), ("logs", "recorded")}
    assert "another process is running this study" in problems["studies", "recorded"]
    assert (home / "studies/recorded/logs/one.log").is_file()


def test_yes_alone_removes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["local", "clean", "--home", str(home), "--yes"]) == 2
    assert "needs to know what goes" in capsys.readouterr().err
    assert run(["local", "clean", "--home", str(home / "nowhere")]) == 0
    assert not (home / "nowhere").exists()
