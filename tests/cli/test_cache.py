"""``mlflow-ngraph local cache``: what is there, and what goes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from mlflow_ngraph.engines.manifest import FILE
from mlflow_ngraph.engines.store import EngineStore
from tests.cli.test_verbs import documented, keys_of
from tests.engines.test_store import written
from tests.support.specs import stored_engine

DAY = 86400.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three engines that nobody has used for 1, 40 and 90 days; no study has the files of the last."""
    kept = EngineStore(tmp_path / "home" / "engines")
    for number, days in enumerate((1, 40, 90)):
        source = written(tmp_path / "home" / "studies" / f"s-{number}" / "engine", "x" * 1000 * (number + 1))
        engine = stored_engine(source, f"{number}" * 64, f"model-{number}")
        kept.add(engine, source)
        then = time.time() - days * DAY
        os.utime(kept.root / engine.compiled.key / FILE, (then, then))
    shutil.rmtree(tmp_path / "home" / "studies" / "s-2")
    return tmp_path / "home"


def keys(document: dict) -> list[str]:
    return [engine["key"][0] for engine in document["engines"]]


def left(home: Path) -> list[str]:
    return sorted(path.name[0] for path in (home / "engines").iterdir())


def test_the_list_says_what_is_there(home: Path, cli, cli_json) -> None:
    found = cli_json("local", "cache", "--home", str(home))
    assert keys(found) == ["2", "1", "0"], "the longest unused first"
    assert not found["removed"]
    (longest, *others) = found["engines"]
    assert longest["freed_bytes"] == longest["size_bytes"] > 3e6
    assert all(engine["freed_bytes"] == 0 for engine in others), "studies have them"
    assert longest["unused_s"] == pytest.approx(90 * DAY, rel=0.01)
    code, out, _ = cli("local", "cache", "--home", str(home))
    assert code == 0
    for text in ("model-0", "fake", "fp32", "1 2", "90 d", "s-1", "3 engines kept, 6.0 MB; 3.0 MB of it in no study's"):
        assert text in out


def test_an_empty_cache_is_no_error(tmp_path: Path, cli) -> None:
    code, out, _ = cli("local", "cache", "--home", str(tmp_path))
    assert (code, "0 engines kept" in out) == (0, True)


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--older-than", "60d"], ["2"]),
        (["--older-than", "5w"], ["2", "1"]),
        (["--older-than", "12h"], ["2", "1", "0"]),
        (["--older-than", "900"], []),
        (["--max-size", "3.5MB"], ["2"]),
        (["--max-size", "1.5mb"], ["2", "1"]),
        (["--max-size", "0"], ["2", "1", "0"]),
        (["--max-size", "1GB"], []),
        (["--older-than", "60d", "--max-size", "1.5MB"], ["2", "1"]),
    ],
)
def test_pruning_by_age_and_size(home: Path, cli_json, options: list[str], gone: list[str]) -> None:
    announced = cli_json("local", "cache", "--home", str(home), "--prune", *options, "--dry-run")
    assert (keys(announced), announced["removed"], left(home)) == (gone, False, ["0", "1", "2"])
    done = cli_json("local", "cache", "--home", str(home), "--prune", *options)
    assert (keys(done), done["removed"]) == (gone, True)
    assert left(home) == sorted({"0", "1", "2"} - set(gone))


def test_pruning_says_what_it_does_and_takes_nothing_from_studies(home: Path, cli) -> None:
    assert (
        "3 engines would be removed"
        in cli("local", "cache", "--home", str(home), "--prune", "--max-size", "0", "--dry-run")[1]
    )
    assert "3 engines removed" in cli("local", "cache", "--home", str(home), "--prune", "--max-size", "0")[1]
    assert (home / "studies" / "s-0" / "engine" / "model.bin").stat().st_size == 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prune"], "--prune needs --older-than or --max-size"),
        (["--older-than", "3d"], "add --prune"),
        (["--dry-run"], "add --prune"),
        (
            ["--prune", "--older-than", "3y"],
            "--older-than: expected a number with one of the units h, d, w, found '3y'",
        ),
        (["--prune", "--max-size", "much"], "--max-size: expected a number with one of the units KB, MB, GB, TB"),
    ],
)
def test_a_wrong_request_removes_nothing(home: Path, cli, options: list[str], message: str) -> None:
    code, _, err = cli("local", "cache", "--home", str(home), *options)
    assert (code, message in err) == (2, True), err
    assert left(home) == ["0", "1", "2"]


def test_the_keys_of_json_are_those_of_the_reference(home: Path, cli_json) -> None:
    assert keys_of(cli_json("local", "cache", "--home", str(home)), "engines") == documented("local cache") - {"reused"}
