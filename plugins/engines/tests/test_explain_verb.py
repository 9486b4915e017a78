"""The verb ``explain``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.explanation import Explanation
from tests.cli.test_verbs import documented, keys_of
from tests.support.explanations import IDENTITY, OPENVINO, write_explanations, write_study
from tests.support.records import study_record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    write_study(path)
    monkeypatch.setenv("NGRAPH_HOME", str(path))
    return path


def test_one_cell(home: Path, cli) -> None:
    code, out, err = cli("results", "explain", "resnet18/openvino/b8")
    assert (code, err) == (0, "")
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["nodes before"].endswith("120".ljust(len(lines["nodes before"].rpartition(" 120")[2]) + 3))
    assert "41" in lines["nodes after"]
    assert "nhwc 2, nc 1" in lines["layouts"]
    assert "longest kernels of ResNet-18/openvino/b8" in out
    assert "70.0%" in out
    assert "conv1, bn1, act|1" in out


def test_cells_side_by_side(home: Path, cli) -> None:
    code, out, _ = cli("results", "explain", "resnet18/identity/b8", "resnet18/openvino/b8")
    assert code == 0
    (before,) = [line.split() for line in out.splitlines() if line.startswith("nodes before")]
    assert before == ["nodes", "before", "5", "120"]


def test_a_pattern_shows_also_what_is_not_explained(home: Path, cli) -> None:
    code, out, _ = cli("results", "explain", "resnet18/*/b8")
    assert code == 0
    assert "there is no engine: unsupported: no Col2Im" in " ".join(out.split())
    assert "could not explain its engine: timed out" in " ".join(out.split())


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_the_tables_fit_the_width(width: int, home: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = cli("results", "explain", "resnet18/*/b*")
    assert max(map(len, out.splitlines())) <= width
    assert out.count("nodes before") == -(-8 // max(1, (width - 18) // 32))


def test_the_study_is_named_where_several_have_the_cell(home: Path, cli) -> None:
    for name in ("mine-2", "mine-3"):
        write_study(home, name, float(name[-1]))
    code, _, err = cli("results", "explain", "resnet18/openvino/b8")
    said = "ResNet-18/openvino/b8 is of study mine-3; 2 other studies have it, too: --study mine-2 takes another"
    assert (code, " ".join(err.split())) == (0, said)
    assert cli("results", "explain", "resnet18/openvino/b8", "--study", "mine-2")[2] == ""


def test_how_many_kernels(home: Path, cli) -> None:
    assert "longest" not in cli("results", "explain", "resnet18/openvino/b8", "--kernels", "0")[1]
    out = cli("results", "explain", "resnet18/openvino/b8", "--kernels", "1")[1]
    assert "input reorder" not in out


def test_markdown(home: Path, cli) -> None:
    code, out, _ = cli("results", "explain", "resnet18/identity/b8", "resnet18/openvino/b8", "--format", "markdown")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "|  | ResNet-18/identity/b8 | ResNet-18/openvino/b8 |"
    assert "| nodes before | 5 | 120 |" in lines
    assert r"| 3 | conv1 | Convolution | conv1, bn1, act\|1 |" in lines


def test_for_programs(home: Path, cli_json) -> None:
    found = cli_json("results", "explain", "resnet18/openvino/b8")
    assert keys_of(found, "cells", "cells.kernels") == documented("results explain")
    (cell,) = found["cells"]
    assert (cell["cell"], cell["nodes_after"], cell["layouts"]) == ("openvino-b8", 41, {"nhwc": 2, "nc": 1})
    assert cli_json("results", "explain", cell["cell"], "--format", "json") == found


def test_an_explanation_that_says_nothing_is_shown_as_such(home: Path, cli) -> None:
    Explanation().write(home / "studies/mine-1/engines/openvino/explanation-b8.json")
    code, out, _ = cli("results", "explain", "resnet18/openvino/b8")
    assert code == 0
    assert "nodes before    –" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resnet18/openvin/b8"], 2, "no cell 'resnet18/openvin/b8': did you mean ResNet-18/openvino/b8"),
        (["resnet18/openvino"], 2, "may be any of ResNet-18/openvino/b1, ResNet-18/openvino/b8"),
        (["resnet18/runtime-onnx/b8"], 2, "no cell 'resnet18/runtime-onnx/b8'"),
        (["resnet18/vm-tvm/b8"], 1, "ResNet-18/vm-tvm/b8: there is no engine: unsupported: no Col2Im"),
        (["resnet18/compile-torch/b8"], 1, "compile-torch could not explain its engine: timed out"),
        (["resnet18/openvino/b8", "--study", "yours"], 2, "unknown study 'yours': known: mine"),
        (["resnet18/openvino/b8", "--format", "xml"], 2, "format: expected table, markdown, json, found 'xml'"),
        (["resnet18/openvino/b8", "--kernels", "many"], 2, "kernels: expected a whole number, found 'many'"),
        ([], 2, "Missing argument 'CELL...'"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, message: str, home: Path, cli) -> None:
    found, out, err = cli("results", "explain", *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err


def test_from_a_tracking_server(sqlite_uri: str, tmp_path: Path, home: Path, cli_json, cli) -> None:
    from mlflow_ngraph.tracking.recorder import Recorder

    record = study_record(tmp_path / "study")
    write_explanations(record, tmp_path / "study", {("openvino", 4): OPENVINO, ("identity", 4): IDENTITY})
    recorder = Recorder(sqlite_uri, "edge")
    run = recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    for where in (["--tracking-uri", sqlite_uri], ["--tracking-uri", sqlite_uri, "--run", run]):
        found = cli_json("results", "explain", "resnet18/openvino/b4", *where)["cells"]
        assert [cell["nodes_after"] for cell in found] == [41]
    code, _, err = cli("results", "explain", "resnet18/openvino/b4", "--tracking-uri", sqlite_uri, "--run", "0" * 32)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("processes")
def test_it_starts_fast_because_it_imports_no_runtime(home: Path) -> None:
    code = (
        "import sys; from mlflow_ngraph.cli.app import run; run(['results', 'explain', 'resnet18/openvino/b8']);"
        "sys.exit(', '.join({'torch', 'mlflow', 'onnx', 'openvino', 'tvm', 'pandas', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


STUDY = """
workloads: ["block:mha?width=64"]
compilers: [fake]
batch_sizes: [1, 2]
repetitions: 2
stability: {max_foreign_cpu_percent: 10000, max_spread: 1000, max_drift: 1000}
"""


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("fake_compiler")
def test_from_the_compiler_to_the_table(tmp_path: Path, cli_json) -> None:
    """What the fake compiler says about its engine, whatever that is, arrives for each batch size."""
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY)
    cli_json("benchmark", str(study), "--home", str(tmp_path), "--offline")
    found = cli_json("results", "explain", "*/fake/b*", "--home", str(tmp_path))["cells"]
    assert [(cell["compiler"], cell["batch"], cell["problem"]) for cell in found] == [("fake", 1, ""), ("fake", 2, "")]
