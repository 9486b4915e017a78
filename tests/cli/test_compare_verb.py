"""What ``compare`` says beside the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record

pytestmark = pytest.mark.long


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path) -> str:
    """A study whose fastest cell computes something else, with nodes of another that fell back."""
    record = study_record(tmp_path / "study")
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[1]
    cell.verdict, cell.reason, cell.precision_in_force = Verdict.PARITY_FAILED, "relative error 1e-1", "bf16"
    cell = record.lanes[lane_id(record, "resnet18", "onnxruntime")].cells[1]
    cell.flags = {**cell.flags, "fallback_nodes": 2}
    recorder = Recorder(sqlite_uri)
    recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return sqlite_uri


def test_what_failed_parity_is_left_out_unless_asked_for(recorded: str, cli, cli_json) -> None:
    arguments = ("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--batch-sizes", "1")
    code, out, _ = cli(*arguments)
    assert code == 0
    assert "openvino" not in out
    assert "left out 1 parity_failed (--include or --all shows them)" in out
    assert "precision in force: fp32" in out
    for more in (("--include", "parity_failed"), ("--all",)):
        out = cli(*arguments, *more)[1]
        assert "250 bf16 (parity_failed)" in out
        assert "100 fp32" in out
        assert "precision in force" not in out
        (value,) = [row for row in cli_json(*arguments, *more)["values"] if row["compiler_label"] == "openvino"]
        assert (value["verdict"], value["precision_in_force"]) == ("parity_failed", "bf16")
    assert "250 bf16 (parity_failed)" in cli(*arguments, "--all", "--format", "markdown")[1]
    assert "parity_failed" not in cli(*arguments, "--all", "--format", "csv")[1]


def test_nodes_that_fell_back_are_told_beside_the_number(recorded: str, cli) -> None:
    out = cli("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--batch-sizes", "1,2")[1]
    assert "150 (2 nodes fell back to another provider)" in out
    assert out.count("fell back") == 1


def test_what_would_fall_together_is_told_apart_or_named(recorded: str, cli) -> None:
    arguments = ("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--rows", "label", "--columns")
    apart = cli(*arguments, "compiler")[1]
    assert "added to the rows, to tell cells apart: batch (--best COLUMN,... shows" in apart
    best = cli(*arguments, "compiler", "--best", "label,compiler")[1]
    assert "(batch 4)" in best
    assert "added to the rows" not in best


def test_an_unknown_verdict_is_refused(recorded: str, cli) -> None:
    code, _, err = cli("compare", "--tracking-uri", recorded, "--include", "wrong")
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown verdict 'wrong'" in err


def test_the_ids_of_cells_can_be_shown(recorded: str, cli, cli_json) -> None:
    out = cli("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--rows", "cell", "--columns", "label")[
        1
    ]
    for row in cli_json("compare", "--tracking-uri", recorded, "--workloads", "resnet18")["values"]:
        assert row["cell"] in out


def test_a_baseline_with_intervals(recorded: str, cli, cli_json) -> None:
    arguments = ("compare", "--tracking-uri", recorded, "--relative-to", "compiler=identity", "--batch-sizes", "1")
    code, out, err = cli(*arguments, "--intervals", "--compilers", "onnxruntime")
    assert (code, err) == (0, "")
    assert "1.5 [" in out
    assert "throughput relative to compiler=identity of 2 cells" in out
    found = cli_json(*arguments)
    assert (found["relative_to"], found["unit"]) == ("compiler=identity", "1")
    ends = {one["compiler_label"]: (one["ci_low"], one["ci_high"]) for one in found["values"]}
    assert ends["identity"] == (1, 1)


def test_the_best_alone_sorted_by_value(recorded: str, cli) -> None:
    rows = ("--rows", "label,batch", "--columns", "compiler", "--best", "label,batch", "--sort", "-value")
    lines = cli("compare", "--tracking-uri", recorded, *rows, "--format", "markdown")[1].splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines][:2] == ["resnet18", "resnet18"]
    values = [float(re.findall(r"\| ([\d.]+)[^|]* \\\*", line)[0]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert all(line.count("*") == 1 for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_wide_table_is_printed_in_parts(width: int, recorded: str, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = cli("compare", "--tracking-uri", recorded, "--rows", "label", "--columns", "compiler,batch")[1]
    table = out.partition("\nthroughput in")[0]
    assert max(map(len, (line.rstrip() for line in table.splitlines()))) <= width
    assert "openvino 4" in table
    assert table.count("resnet18") == table.count("label")


def test_latex_for_booktabs(recorded: str, cli) -> None:
    out = cli("compare", "--tracking-uri", recorded, "--batch-sizes", "2", "--format", "latex", "--intervals")[1]
    lines = out.splitlines()
    assert lines[:2] == [r"\begin{tabular}{llrrr}", r"\toprule"]
    assert r" &  & \multicolumn{3}{c}{xeon} \\" in lines
    assert r"\cmidrule(lr){3-5}" in lines
    assert r"label & batch & identity & onnxruntime[opt\_level=2] & openvino \\" in lines
    assert r"\textbf{287.2 [281.4, 292.9]}" in out
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.parametrize("name", ["table.csv", "table.md", "table.tex", "table.json", "table.parquet", "table.txt"])
def test_the_ending_of_a_file_tells_the_format(name: str, recorded: str, cli, tmp_path: Path) -> None:
    code, out, err = cli("compare", "--tracking-uri", recorded, "--output", str(tmp_path / name))
    assert (code, out, err) == (0, "", "")
    if name.endswith("parquet"):
        found = pd.read_parquet(tmp_path / name)
        assert {"label", "value", "ci_low", "ci_high", "verdict", "metric", "unit"} <= set(found.columns)
        assert len(found) == 12
    else:
        assert "resnet18" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], "parquet is no text: give --output FILE.parquet"),
        (["--output", "/proc/none/table.csv"], "cannot write /proc/none/table.csv: No such file"),
        (["--relative-to", "identity"], "'identity' is no baseline: write compiler=identity"),
        (["--tags", "owner"], "tags: expected name=value, found 'owner'"),
        (["--tags", "owner=me"], "no study run with results has the tags owner=me"),
        (["--since", "soon"], "'soon' is no time"),
        (["--since", "99999999999d"], "'99999999999d' is longer ago than there are dates"),
        (["--rows", "label,label"], "column 'label' stands twice in rows and columns"),
        (["--rows", "label", "--columns", "label"], "column 'label' stands twice in rows and columns"),
        (["--since", "2030-01-01"], "no result fits all filters: since 2030-01-01"),
        (["--git-commit", "0000"], "unknown git commit '0000'"),
        (["--best", "nothing"], "unknown column 'nothing'"),
    ],
)
def test_what_does_not_fit_is_one_line(arguments: list[str], message: str, recorded: str, cli) -> None:
    code, out, err = cli("compare", "--tracking-uri", recorded, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
