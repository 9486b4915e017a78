"""The same question about the same results is answered from what this machine has kept, and no other one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
from mlflow import MlflowClient

from benchmarks import seed_server
from mlflow_ngraph.analysis import answer_cache
from mlflow_ngraph.analysis.pivot import Pivot
from mlflow_ngraph.tracking.schema import Tag
from tests.support.served import Served

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


@pytest.mark.usefixtures("compilers")
def test_a_kept_answer_from_a_plain_server_needs_no_heavy_imports(served: Served) -> None:
    command = [sys.executable, "-c", FRESH, "compare", "--tracking-uri", served.address, "--json"]
    first, second = (subprocess.run(command, capture_output=True, text=True, timeout=120, check=True) for _ in range(2))
    assert first.stdout == second.stdout
    assert "pandas" in first.stderr
    assert second.stderr.strip() == ""


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
    kept = place.get("answer-4")
    assert kept is not None
    assert Pivot.from_plain(kept) == Pivot.from_plain(answer)
    (tmp_path / "answer-4.json").write_text("{")
    assert place.get("answer-4") is None


def test_a_kept_answer_that_was_changed_is_none(seeded: str, cli) -> None:
    question = ("compare", "--tracking-uri", seeded)
    first = cli(*question)
    (kept,) = answers()
    whole = kept.read_bytes()
    place = whole.index(b'"value":') + 10
    kept.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert cli(*question) == first
    assert kept.read_bytes() == whole
