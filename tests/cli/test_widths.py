"""Whatever a verb prints off a terminal fits 100 columns, and no line ends in blanks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_ngraph.cli.output import WIDTH, broken
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record

pytestmark = pytest.mark.long

Cli = Callable[..., tuple[int, str, str]]
STUDIES = tuple(f"quick-0123abcd-20251009-09000{number}" for number in range(2))
NOISE = "other processes used at least 77 % of the machine meanwhile; stop them, then measure again with --resume"


def recorded(uri: str, home: Path) -> None:
    for study_id in STUDIES:
        record = study_record(home / study_id, study_id=study_id)
        for lane in record.lanes.values():
            for cell in lane.cells.values():
                cell.noise = NOISE if cell.metrics else ""
        recorder = Recorder(uri)
        recorder.open(record, home / study_id)
        for identifier in record.lanes:
            recorder.record_lane(record, identifier)
        recorder.close(record, "FINISHED")


def too_wide(text: str) -> list[str]:
    """Lines beyond the width that could have been broken."""
    return [line for line in text.splitlines() if len(line) > WIDTH and len(line.split()) > 1]


@pytest.mark.long
def test_no_verb_prints_wide_lines_or_ends_them_in_blanks(
    sqlite_uri: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    recorded(sqlite_uri, tmp_path)
    first, second = STUDIES
    for arguments in (
        ("benchmark", "paper-models", "--device", "xeon", "--dry-run"),
        (
            "local",
            "cache",
        ),
        (
            "local",
            "clean",
        ),
        ("compare",),
        ("compare", "--all", "--intervals"),
        ("compare", "--rows", "workload,batch", "--columns", "device,compiler_label,precision", "--metric", "speedup"),
        (
            "info",
            "compilers",
        ),
        ("info", "compilers", "openvino", "onnxruntime", "tvm"),
        (
            "info",
            "devices",
        ),
        ("results", "diff", first, second),
        ("doctor",),
        ("results", "findings", "--limit", "0"),
        ("results", "gate", "--baseline", first, "--candidate", second),
        ("results", "history", "resnet18/openvino/b1"),
        (
            "engine",
            "list",
        ),
        ("engine", "prune", "--keep-newest", "0"),
        (
            "study",
            "cleanup",
        ),
        ("recommend",),
        ("recommend", "--objective", "latency", "--fleet", "--front"),
        ("results", "report", "--no-log", "--output", "report.html"),
        (
            "study",
            "list",
        ),
        (
            "info",
            "workloads",
        ),
        ("info", "workloads", "block:mha?width=16"),
    ):
        code, out, err = cli(*arguments)
        assert code != 2, (arguments, err)
        said = f"{out}\n{err if not err.startswith('error: ') else ''}"
        assert too_wide(said) == [], arguments
        assert [line for line in said.splitlines() if line != line.rstrip()] == [], arguments


def test_a_command_that_is_broken_stays_one_command() -> None:
    command = "mlflow-ngraph benchmark 'a study.yaml' --workloads timm:resnet18,timm:deit --compilers openvino --more"
    lines = broken(f"undecided between two; run: {command}", 60).splitlines()
    assert lines[0] == "undecided between two; run:"
    assert lines[1:] == [
        "  mlflow-ngraph benchmark 'a study.yaml' \\",
        "      --workloads timm:resnet18,timm:deit \\",
        "      --compilers openvino --more",
    ]
    there = "cd '/models of mine' && mlflow-ngraph benchmark /studies/a/study.yaml --workloads torch:nets:mlp"
    assert broken(f"50 repetitions would tell: {there}", 60).splitlines() == [
        "50 repetitions would tell:",
        "  cd '/models of mine' && mlflow-ngraph benchmark \\",
        "      /studies/a/study.yaml --workloads torch:nets:mlp",
    ]


def test_sentences_go_on_further_in_and_long_words_stay_whole() -> None:
    address = "file:///" + "a" * 40
    assert broken(f"  see it at {address} or elsewhere", 30).splitlines() == [
        "  see it at",
        f"    {address}",
        "    or elsewhere",
    ]
