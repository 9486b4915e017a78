"""The same question about the same results is answered from what this machine has kept, and no other one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from mlflow import MlflowClient

from benchmarks import seed_server
from mlflow_ngraph.analysis import answer_cache, results
from mlflow_ngraph.analysis.pivot import Pivot
from mlflow_ngraph.tracking import connection, sqlite_file
from mlflow_ngraph.tracking.schema import Tag
from tests.support.served import Served

pytestmark = pytest.mark.long

FRESH = """
import sys
from mlflow_ngraph.cli.app import run

code = run(sys.argv[1:])
heavy = sorted({"mlflow", "numpy", "pandas", "pyarrow", "scipy"} & set(sys.modules))
print(",".join(heavy), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def seeded(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(seed_server, "WORKLOADS_A_STUDY", 2)
    monkeypatch.setattr(seed_server, "COMPILERS_A_STUDY", 3)
    seed_server.seed(sqlite_uri, 2)
    return sqlite_uri


def answers() -> list[Path]:
    return sorted(Path(platformdirs.user_cache_dir("mlflow-ngraph"), "answers").glob("*.json"))


def test_every_format_is_the_same_from_what_is_kept(seeded: str, cli) -> None:
    question = ("compare", "--tracking-uri", seeded, "--batch-sizes", "8", "--relative-to", "compiler=identity")
    for form in ("table", "markdown", "csv", "json", "latex"):
        fresh = cli(*question, "--format", form, "--intervals", "--no-cache")
        assert fresh[0] == 0
        assert cli(*question, "--format", form, "--intervals") == fresh
        assert cli(*question, "--format", form, "--intervals") == fresh
        assert len(answers()) == 1, "a format is no other question"


@pytest.fixture
def settled(seeded: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that nobody has written to for long enough, as far as its readers care."""
    monkeypatch.setattr(sqlite_file, "_COARSE_NS", 0)
    time.sleep(0.02)
    return seeded


@pytest.mark.usefixtures("compilers")
def test_a_database_is_asked_without_mlflow_and_not_at_all_for_what_is_kept(seeded: str) -> None:
    (one, *_) = MlflowClient(seeded).search_runs(["1"], f"tags.`{Tag.KIND}` = 'lane'")
    model, compiler = (one.data.params[name] for name in ("model", "compiler"))
    time.sleep(2)
    for verb in ("compare", "recommend", "results findings", f"results history {model}/{compiler}/b8"):
        command = [sys.executable, "-c", FRESH, *verb.split(), "--tracking-uri", seeded, "--json"]
        first, second = (
            subprocess.run(command, capture_output=True, text=True, timeout=120, check=False) for _ in range(2)
        )
        assert (first.stdout, first.returncode) == (second.stdout, second.returncode)
        assert json.loads(first.stdout)
        assert "pandas" in first.stderr.splitlines()[-1].split(",")
        assert "mlflow" not in first.stderr.splitlines()[-1].split(",")
        assert second.stderr.splitlines()[-1] == "", verb


@pytest.fixture
def unread(settled: str, cli, monkeypatch: pytest.MonkeyPatch):
    """Asks for findings, and tells whether results were read for it."""
    read: list[bool] = []
    reading = results.select

    def noted(*given: Any, **named: Any) -> Any:
        read.append(True)
        return reading(*given, **named)

    monkeypatch.setattr(results, "select", noted)

    def ask(*more: str) -> tuple[tuple[int, str, str], bool]:
        read.clear()
        time.sleep(0.02)
        return cli("results", "findings", "--tracking-uri", settled, *more), bool(read)

    return ask


def test_an_answer_is_printed_again_while_nobody_writes(unread) -> None:
    first, computed = unread()
    again, computed_again = unread()
    assert (again, computed, computed_again) == (first, True, False)
    assert unread("--limit", "1")[1], "another question"
    assert unread("--experiment", "seeded")[1], "another experiment"
    assert unread("--no-cache")[1]
    assert unread("--since", "2020-01-01")[1], "time may have a say"


def test_a_store_that_changed_is_read_again(unread, settled: str) -> None:
    assert [unread()[1], unread()[1]] == [True, False]
    client = MlflowClient(settled)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    (gone, *_) = client.search_runs(ids, f"tags.`{Tag.KIND}` = 'study'")
    before = unread()[0]
    client.delete_run(gone.info.run_id)
    after, computed = unread()
    assert computed
    assert after != before


def test_what_the_log_alone_has_is_read(unread, settled: str) -> None:
    path = connection.database_file(settled)
    assert path is not None
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        before, _ = unread()
        assert not unread()[1]
        written = path.stat().st_mtime_ns
        (gone,) = writer.execute("SELECT run_uuid FROM tags WHERE key = 'ngraph.kind' AND value = 'study'").fetchone()
        writer.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (gone,))
        writer.commit()
        assert path.stat().st_mtime_ns == written
        after, computed = unread()
        assert computed
        assert after != before


def test_another_version_of_the_package_answers_anew(unread, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [unread()[1], unread()[1]] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(answer_cache, "__version__", "0.2.0")
        assert unread()[1]
    with monkeypatch.context() as patch:
        patch.setattr(answer_cache, "code", list)
        assert unread()[1], "another checkout of the same version"
    assert not unread()[1]


def test_what_was_written_a_moment_ago_is_not_kept(unread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_COARSE_NS", 3_600_000_000_000)
    assert [unread()[1], unread()[1]] == [True, True]


@pytest.mark.usefixtures("compilers")
def test_a_kept_answer_from_a_plain_server_needs_no_heavy_imports(served: Served) -> None:
    command = [sys.executable, "-c", FRESH, "compare", "--tracking-uri", served.address, "--json"]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=120, check=True) for _ in range(2))
    assert first.stdout == second.stdout
    assert "pandas" in first.stderr
    assert second.stderr.splitlines()[-1] == ""


def test_what_changed_on_the_server_is_asked_again(seeded: str, cli_json) -> None:
    question = ("compare", "--tracking-uri", seeded, "--rows", "study_id", "--columns", "batch")
    shown = {value["study_id"] for value in cli_json(*question)["values"]}
    client = MlflowClient(seeded)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    (gone, *_) = client.search_runs(ids, f"tags.`{Tag.KIND}` = 'study'")
    client.delete_run(gone.info.run_id)
    left = {value["study_id"] for value in cli_json(*question)["values"]}
    assert left == shown - {gone.data.tags[Tag.STUDY_ID]}
    assert len(answers()) == 2
    client.restore_run(gone.info.run_id)
    assert {value["study_id"] for value in cli_json(*question)["values"]} == shown
    assert len(answers()) == 2


def test_other_questions_have_other_answers(seeded: str, cli_json) -> None:
    question = ("compare", "--tracking-uri", seeded)
    every = cli_json(*question)
    for more in (
        ("--batch-sizes", "8"),
        ("--metric", "speedup"),
        ("--all",),
        ("--best", "label"),
        ("--devices", "gpu"),
    ):
        assert cli_json(*question, *more) != every
    assert len(answers()) == 6


def test_results_whose_digest_nobody_tells_are_never_kept(seeded: str, cli_json) -> None:
    client = MlflowClient(seeded)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    (run, *_) = client.search_runs(ids, f"tags.`{Tag.KIND}` = 'study'")
    client.delete_tag(run.info.run_id, Tag.RESULTS_SHA256)
    assert cli_json("compare", "--tracking-uri", seeded)["values"]
    assert answers() == []


def test_old_answers_make_room_and_broken_ones_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_cache, "_KEPT", 3)
    place = answer_cache.Answers(tmp_path)
    answer = Pivot(("label",), ("device",), (("a",),), (("x",),), {"values": []}).to_plain()
    for number in range(5):
        place.put(f"answer-{number}", answer)
    assert len(list(tmp_path.iterdir())) == 3
    one = place.get("answer-4")
    assert one is not None
    assert Pivot.from_plain(one) == Pivot.from_plain(answer)
    (tmp_path / "answer-4.json").write_text("{")
    assert place.get("answer-4") is None


def test_a_kept_answer_that_was_changed_is_none(seeded: str, cli) -> None:
    question = ("compare", "--tracking-uri", seeded)
    first = cli(*question)
    (one,) = answers()
    whole = one.read_bytes()
    place = whole.index(b'"value":') + 10
    one.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert cli(*question) == first
    assert one.read_bytes() == whole
