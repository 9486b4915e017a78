"""What one copies from a table is whole, however narrow the terminal is."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mlflow_ngraph.cli import tables
from mlflow_ngraph.cli.costs import said
from mlflow_ngraph.tables.sheet import Cell, Column, Sheet, number, prose
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record

Cli = Callable[..., tuple[int, str, str]]
COLUMNS = ("engine", Column("family", spare=1), number("samples per second"), prose("what it is"))
ROWS = [("m-0123456789abcdef0123456789abcdef", "ResNet", "31.1", "a network with connections that skip layers")]


def printed(width: int) -> str:
    stream = io.StringIO()
    tables.show(Console(file=stream, width=width), Sheet("", COLUMNS, ROWS))
    return stream.getvalue()


def test_with_room_everything_stands_in_one_line() -> None:
    assert [line.split() for line in printed(200).splitlines()] == [
        ["engine", "family", "samples", "per", "second", "what", "it", "is"],
        [*" ".join(ROWS[0]).split()],
    ]


def test_with_less_room_sentences_go_on_in_the_next_line_and_spare_columns_go() -> None:
    for width in range(75, 120):
        lines = printed(width).splitlines()
        assert max(map(len, lines)) <= width
        assert ROWS[0][0] in printed(width)
        assert " ".join(ROWS[0][3].split()[:2]) in printed(width)
        assert ("ResNet" in printed(width)) != ("no room for family" in printed(width).replace("\n", " "))
    assert "ResNet" in printed(90)
    assert "ResNet" not in printed(75)


def test_without_room_there_are_records_with_everything() -> None:
    lines = printed(60).splitlines()
    assert lines[0].split() == ["engine", ROWS[0][0]]
    assert lines[1].split() == ["family", "ResNet"]
    assert lines[3].startswith("what it is          a network")
    for width in range(20, 60):
        assert "".join(ROWS[0][0].split()) in printed(width).replace("\n", "")


def test_of_many_rows_a_table_breaks_the_words_of_sentences() -> None:
    where = "sqlite:////a/place/of/which/the/name/is/long/mlflow.db"
    rows = [(f"check-{number}", "ok", f"answers at {where}", "") for number in range(5)]
    for count in (3, 5):
        stream = io.StringIO()
        sheet = Sheet("", ["check", "status", prose("found"), prose("what to do")], rows[:count])
        tables.show(Console(file=stream, width=60), sheet)
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) <= 60 or count == 3
        assert lines[0].split() == (
            ["check", "check-0"] if count == 3 else ["check", "status", "found", "what", "to", "do"]
        )
        assert re.sub(r"\s", "", stream.getvalue()).count("mlflow.db") == count


def test_of_many_rows_flags_go_on_after_a_comma() -> None:
    rows = [(f"model-{number}", "tvm[cost_model=xgb,early_stopping=150,trials=1,500]", "3 h") for number in range(5)]
    stream = io.StringIO()
    tables.show(Console(file=stream, width=45), Sheet("", ["model", prose("compiler"), number("about")], rows))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines[0] == ["model", "compiler", "about"]
    assert ["model-0", "tvm[cost_model=xgb,", "3", "h"] in lines
    assert ["early_stopping=150,"] in lines
    assert ["trials=1,500]"] in lines


def test_columns_without_content_go_first_and_without_a_word() -> None:
    stream = io.StringIO()
    columns = ("name", number("interval", spare=2), number("energy", spare=1), number("power", spare=1))
    tables.show(Console(file=stream, width=18), Sheet("", columns, [("a", "1.0 to 1.2", "", "–")]))
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["name", "interval"],
        ["a", *["1.0", "to", "1.2"]],
    ]


def test_notes_that_differ_in_their_numbers_are_one() -> None:
    said = [f"{number} of 10 repetitions within the {number}.5 s that a cell may take" for number in range(1, 7)]
    sheet = Sheet("", ["verdict"], [[Cell("ok", note=note)] for note in [*said, "another"]], one="cell")
    assert [line.text for line in sheet.lines] == [f"¹ {said[0]} (6 cells, with other numbers)", "² another"]
    assert [row[0].text for row in sheet.cells] == ["ok ¹"] * 6 + ["ok ²"]


@pytest.mark.parametrize("width", [80, 120])
def test_no_verb_cuts_what_one_copies(width: int, sqlite_uri: str, tmp_path: Path, cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    for study in range(2):
        home = tmp_path / str(study)
        record = study_record(home, study_id=f"quick-0123abcd-20251009-09000{study}")
        recorder = Recorder(sqlite_uri)
        recorder.open(record, home)
        for lane in record.lanes:
            recorder.record_lane(record, lane)
        recorder.close(record, "FINISHED")
    compilers = {"openvino", "onnxruntime[opt_level=2]"}
    for arguments, whole in (
        (
            (
                "engine",
                "list",
            ),
            compilers | {"deit-t", "identity"},
        ),
        (("recommend", "--workloads", "resnet18"), compilers),
        (("recommend", "--workloads", "resnet18", "--objective", "latency", "--fleet", "--front"), compilers),
        (("engine", "prune", "--keep-newest", "0"), compilers),
        (("compare",), compilers | {"resnet18"}),
        (
            (
                "results",
                "gate",
                "--baseline",
                "quick-0123abcd-20251009-090000",
                "--candidate",
                "quick-0123abcd-20251009-090001",
            ),
            compilers,
        ),
        (("results", "history", "resnet18/openvino/b1"), {"quick-0123abcd-20251009-090000"}),
        (
            (
                "info",
                "workloads",
            ),
            {"timm:resnet18", "ResNet-18"},
        ),
        (
            (
                "info",
                "compilers",
            ),
            {"torch-compile", "torchscript"},
        ),
        (("info", "compilers", "openvino"), {"performance_hint"}),
        (
            (
                "study",
                "list",
            ),
            {"blocks"},
        ),
        (
            (
                "info",
                "devices",
            ),
            {"xeon"},
        ),
        (("benchmark", "paper-models", "--device", "xeon", "--dry-run"), {"DeiT-Small", "torch-compile"}),
    ):
        out = cli(*arguments)[1]
        assert "…" not in out, arguments
        for text in whole:
            assert text in out, (arguments, out)
    known = set(re.findall(r"\bm-[0-9a-f]{32}\b", cli("engine", "list", "--json")[1]))
    assert known
    assert known <= set(cli("engine", "list")[1].split())


COSTS = [
    ({"loss": 0.12, "loss_ci_low": 0.11, "loss_ci_high": 0.13}, "throughput", "higher", ("12.0 % slower", "11.0 to 13.0 %")),
    ({"loss": 0.5, "loss_ci_low": 0.4, "loss_ci_high": 0.6}, "throughput", "higher", ("2 times slower", "1.67 to 2.5 times")),
    ({"loss": 17.679, "loss_ci_low": 17.0, "loss_ci_high": 18.0}, "latency_p50_ms", "lower", ("18.7 times slower", "18 to 19 times")),
    ({"loss": 0.3, "loss_ci_low": float("nan"), "loss_ci_high": float("nan")}, "cpu_percent", "lower", ("30.0 % more", "")),
    ({"loss": -0.01, "loss_ci_low": -0.02, "loss_ci_high": 0.01}, "throughput", "higher", ("1.0 % faster", "−2.0 to 1.0 %")),
]  # fmt: skip


@pytest.mark.parametrize(("row", "metric", "better", "expected"), COSTS)
def test_costs_are_said_as_people_do(
    row: dict[str, float], metric: str, better: str, expected: tuple[str, str]
) -> None:
    assert said(row, {"metric": metric, "better": better, "fleet": None}) == expected
