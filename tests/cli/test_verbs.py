"""What each verb shows, to people and to programs."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from mlflow_ngraph.cli import checks, tables
from mlflow_ngraph.cli.benchmark import show_outcome
from mlflow_ngraph.cli.machine_checks import CheckResult
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.registry import DEVICES
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.study import ready_made
from mlflow_ngraph.tables import summary
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("processes")
def test_compilers(cli, cli_json) -> None:
    rows = cli_json("info", "compilers")["compilers"]
    assert [row["name"] for row in rows] == COMPILERS.names()
    for row in rows:
        assert row["available"] or (row["reason"] and row["hint"])
        for flag in row["flags"]:
            assert flag["description"], f"flag {flag['name']} of {row['name']} is not explained"
            assert flag["type"]
    _, out, _ = cli("info", "compilers")
    for name in COMPILERS.names():
        assert name in out


def test_flags_of_one_compiler(cli) -> None:
    code, out, _ = cli("info", "compilers", "openvino")
    assert code == 0
    assert "latency | throughput | none" in out
    assert "whole number ≥ 1 | none" in out


@pytest.mark.usefixtures("processes")
def test_a_compiler_whose_package_is_missing_costs_the_others_nothing(cli, cli_json, monkeypatch) -> None:
    from mlflow_ngraph.entry_points import Entry

    entries = {**COMPILERS.entries, "lost": Entry("no_such_package.compiler:Lost", "pip install lost")}
    monkeypatch.setattr(COMPILERS, "entries", entries)
    (lost,) = [row for row in cli_json("info", "compilers")["compilers"] if row["name"] == "lost"]
    assert (lost["available"], lost["version"]) == (False, None)
    assert lost["reason"] == "compiler 'lost' needs no_such_package"
    assert lost["hint"] == "pip install lost"
    assert "pip install lost" in cli("info", "compilers")[1]


def test_workloads_of_the_paper(cli_json) -> None:
    rows = cli_json("info", "workloads")["workloads"]
    assert len(rows) == 15 + 8
    assert rows[0]["parameters"] == 11689512
    assert {"ref", "label", "family", "inputs", "parameters", "paper_macs", "true_macs"} <= set(rows[0])


@pytest.mark.usefixtures("compilers")
def test_any_workload_is_built_to_be_described(cli_json) -> None:
    (row,) = cli_json("info", "workloads", "block:mha?width=64&depth=2")["workloads"]
    assert row["ref"] == "block:mha?depth=2&width=64"
    assert row["parameters"] == 2 * (4 * 64**2 + 4 * 64)
    assert row["inputs"][0]["shape"] == ["batch", 10, 64]


@pytest.mark.usefixtures("processes")
def test_devices(cli, cli_json) -> None:
    found = cli_json("info", "devices")
    assert [row["name"] for row in found["devices"]] == DEVICES.names()
    assert {"digest", "host", "processors", "hardware", "system"} <= set(found["machine"])
    assert found["versions"]["python"]
    assert found["machine"]["digest"] in cli("info", "devices")[1]


def test_studies(cli, cli_json) -> None:
    rows = cli_json("study", "list")["studies"]
    assert {row["name"] for row in rows} == set(ready_made())
    assert all(row["description"] for row in rows)
    assert "paper-models" in cli("study", "list")[1]


@pytest.mark.usefixtures("processes")
def test_a_dry_run_tells_lanes_cells_and_time_and_writes_nothing(cli, cli_json, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    found = cli_json("benchmark", "paper-blocks-mha", "--compilers", "openvino,onnxruntime", "--dry-run")
    assert found["cells"] == 24 * 3 * 6
    assert len(found["lanes"]) == 24 * 3
    assert 0 < found["estimate_low_s"] < found["estimate_s"] < found["estimate_high_s"]
    lanes = sum(lane["estimate_s"] for lane in found["lanes"])
    assert found["estimate_s"] == pytest.approx(found["preparing_s"] + lanes, abs=0.1 * (1 + len(found["lanes"])))
    assert found["estimate_from"] == {"measured": 0, "similar": 0, "assumed": pytest.approx(1.0)}
    assert found["study"]["name"] == "paper-blocks-mha"
    code, out, _ = cli("benchmark", "paper-blocks-mha", "--dry-run")
    assert code == 0
    assert "cells in" in out
    assert not (tmp_path / "home").exists()


def test_a_dry_run_tells_how_a_study_decides(cli_json, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    asked = ("benchmark", "smoke", "--workloads", "block:mha?width=64", "--dry-run", "--purpose", "decide")
    notes = "\n".join(cli_json(*asked)["notes"])
    assert "decides by throughput: a cell that certainly cannot be the best of its workload leaves" in notes
    assert "every cell is measured to its end" in "\n".join(cli_json(*asked, "--objective", "memory")["notes"])


def test_a_dry_run_tells_what_a_short_time_leaves_out(cli, cli_json, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    asked = ("benchmark", "smoke", "--workloads", "block:mha?width=64", "--dry-run", "--within", "1s")
    assert "mha-w64-d1: left out: all of it: having and measuring it takes about" in "\n".join(
        cli_json(*asked)["notes"]
    )
    _, out, _ = cli(*asked)
    assert "100 % assumed" in out


def test_engines_that_do_not_fit_on_the_disk_are_noticed_before_a_study_starts(cli, cli_json, tmp_path: Path) -> None:
    asked = ("benchmark", "smoke", "--dry-run", "--home", str(tmp_path / "home"), "--compilers", "onnxruntime")
    small = cli_json(*asked, "--workloads", "block:mha?width=64")
    assert not any("GB are free" in note for note in small["notes"])
    _, out, _ = cli(*asked, "--workloads", "block:mha?width=262144&depth=96")
    assert f"GB are free in {tmp_path / 'home'}" in out
    assert "--resume" in out


@pytest.mark.usefixtures("processes")
def test_every_ready_made_study_can_be_planned(cli_json) -> None:
    for name in ready_made():
        if name != "paper-models":
            assert cli_json("benchmark", name, "--dry-run")["cells"] > 0
    found = cli_json("benchmark", "paper-models", "--dry-run")
    assert found["cells"] == 15 * 6 * 6
    assert found["study"]["repetitions"] == 100


def outcome(directory: Path, unrecorded: str = "") -> Outcome:
    return Outcome(study_record(directory), directory, {"view": "http://here/#/view", "ui": "mlflow ui"}, unrecorded)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_the_final_table_fits_and_marks_what_is_not_ok(width: int, tmp_path: Path) -> None:
    import io

    from rich.console import Console

    stream = io.StringIO()
    tables.show(Console(file=stream, width=width), summary.sheet(study_record(tmp_path)))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "18 cells: 13 ok, " in text
    flat = "".join(text.split())
    assert "unsupported¹" in flat
    assert "¹noconversionforoperatoraten::scaled|dot(3cells)" in flat, "each reason once"


def test_best_first_within_a_batch_size(tmp_path: Path, capfd) -> None:
    show_outcome(outcome(tmp_path), as_json=False)
    lines = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("resnet18")]
    assert [line[2] for line in lines if line[1] == "1"] == ["openvino", "onnxruntime[opt_level=2]", "identity"]


def test_where_to_look_comes_before_the_answers(tmp_path: Path, capfd) -> None:
    show_outcome(outcome(tmp_path), as_json=False)
    lines = capfd.readouterr().out.splitlines()
    assert lines[-6:-3] == [f"directory: {tmp_path}", "view: http://here/#/view", "ui: mlflow ui"]


def test_what_is_not_recorded_is_said_with_the_remedy(tmp_path: Path, capfd) -> None:
    show_outcome(outcome(tmp_path, "the server went away"), as_json=False)
    assert f"the server went away; later: mlflow-ngraph study sync {tmp_path}\n" in capfd.readouterr().out
    to = {"tracking_uri": "http://me:pw@lab:5000", "experiment": "my own"}
    show_outcome(outcome(tmp_path, "it is down"), as_json=False, **to)
    told = capfd.readouterr().out
    assert f"study sync {tmp_path} --tracking-uri http://lab:5000 --experiment 'my own'" in told


def test_an_outcome_as_json(tmp_path: Path, capfd) -> None:
    show_outcome(outcome(tmp_path), as_json=True)
    found = json.loads(capfd.readouterr().out)
    keys = {
        "study_id",
        "directory",
        "exit_code",
        "where",
        "unrecorded",
        "answers",
        "refers_to",
        "rows",
        "races",
        "left_out",
    }
    assert keys == set(found)
    assert found["exit_code"] == 3
    assert {row["verdict"] for row in found["rows"]} >= {"ok", "unsupported"}


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path) -> str:
    """A store that has a study."""
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri, "mine")
    recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return sqlite_uri


def test_compare(recorded: str, cli, cli_json) -> None:
    code, out, err = cli("compare", "--tracking-uri", recorded)
    assert code == 0, err
    assert "throughput in samples/s of 13 cells; left out " in out
    assert "xeon openvino" in out
    found = cli_json("compare", "--tracking-uri", recorded, "--metric", "speedup", "--batch-sizes", "1")
    assert found["metric"] == "speedup"
    cells = {(row["label"], row["compiler_label"]): row["value"] for row in found["values"]}
    assert cells["resnet18", "openvino"] > cells["resnet18", "identity"]
    assert {row["batch"] for row in found["values"]} == {"1"}


def test_compare_takes_what_mlflow_passes(recorded: str, cli) -> None:
    empty = [
        text
        for name in ("workloads", "devices", "compilers", "metric", "rows", "columns", "format")
        for text in (f"--{name}", "")
    ]
    code, out, err = cli("compare", "--experiment", "mine", *empty, "--tracking-uri", recorded)
    assert (code, err) == (0, "")
    assert "resnet18" in out


def test_compare_prints_what_other_programs_read(recorded: str, cli) -> None:
    arguments = (
        "compare",
        "--tracking-uri",
        recorded,
        "--rows",
        "label",
        "--columns",
        "compiler",
        "--batch-sizes",
        "1",
    )
    csv = cli(*arguments, "--format", "csv")[1].splitlines()
    assert csv[0] == "label,identity,onnxruntime,openvino"
    markdown = cli(*arguments, "--format", "markdown")[1].splitlines()
    assert markdown[0] == "| label | identity | onnxruntime | openvino |"
    assert len(csv) == 3
    assert len(markdown) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--experiment", "yours"], "unknown experiment 'yours'"),
        (["--metric", "throughputs"], "unknown metric 'throughputs': did you mean 'throughput'"),
        (["--rows", "lable"], "unknown column 'lable': did you mean 'label'"),
        (["--compilers", "openvinos"], "unknown compiler 'openvinos': did you mean 'openvino'"),
        (["--batch-sizes", "x"], "batch-sizes: expected a whole number, found 'x'"),
    ],
)
def test_a_wrong_comparison_is_one_line(arguments: list[str], message: str, recorded: str, cli) -> None:
    code, out, err = cli("compare", "--tracking-uri", recorded, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_nothing_to_compare_yet(sqlite_uri: str, cli) -> None:
    code, _, err = cli("compare", "--tracking-uri", sqlite_uri)
    assert code == 2
    assert "nothing is recorded there yet" in err


def test_sync_of_a_directory_without_a_study(cli, tmp_path: Path, sqlite_uri: str) -> None:
    code, _, err = cli("study", "sync", str(tmp_path), "--tracking-uri", sqlite_uri)
    assert code == 1
    assert err == f"error: {tmp_path}: no journal.jsonl here; name the directory of a study\n"


@pytest.mark.usefixtures("processes")
def test_doctor_looks_at_everything(cli, cli_json, monkeypatch: pytest.MonkeyPatch, clean_environment) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 1.0)
    found = cli_json("doctor")
    seen = {finding["check"] for finding in found["findings"]}
    assert {"python", "C++ compiler", "processors", "load by others", "memory", "home", "tracking server"} <= seen
    assert {f"compiler {name}" for name in COMPILERS.names()} <= seen
    assert "compiler openvino" in cli("doctor")[1]


def finding(check: Callable[[], Iterator[CheckResult]]) -> CheckResult:
    (found,) = check()
    return found


def test_a_busy_machine_is_named_with_its_busiest_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(
        [
            {(7, 1.5): ("kworker/0:1", 1.0), (8, 1.5): ("sshd", 3.0)},
            {(7, 1.5): ("cc1plus", 2.0), (8, 1.5): ("sshd", 3.1), (9, 2.5): ("ls", 0.2)},
        ]
    )
    monkeypatch.setattr(checks, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 55.0)
    found = finding(checks._load)
    assert (found.status, found.found) == ("warning", "55 % of the machine, most by cc1plus (process 7)")
    assert found.remedy


def test_the_cpu_time_of_real_processes() -> None:
    assert len(checks._cpu_seconds()) > 0


def test_a_missing_home_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "a/b"))
    assert finding(checks._home).status in ("ok", "warning")
    assert not (tmp_path / "a").exists()


def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert finding(checks._home).status == "problem"


@pytest.mark.parametrize(("governor", "status"), [("performance", "ok"), ("powersave", "warning"), ("", "ok")])
def test_the_governor(governor: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "governor", lambda: governor)
    assert next(checks._frequency()).status == status


def test_no_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert finding(checks._cxx).status == "warning"


@pytest.mark.parametrize(("answer", "status"), [(200, "ok"), (401, "ok"), (500, "problem")])
def test_a_tracking_server(answer: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    monkeypatch.setattr(urllib.request, "getproxies", dict)
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{server.server_port}")
        found = finding(checks._tracking)
        assert found.status == status
        assert "secret" not in found.found


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    found = finding(checks._tracking)
    assert found.status == "problem"
    assert "Connection refused" in found.found
    assert "--offline" in found.remedy


def documented(verb: str) -> set[str]:
    """The JSON keys that the reference names for a verb."""
    text = (ROOT / "docs/reference/command-line.md").read_text()
    section = text.partition(f"\n### `{verb}`\n")[2].partition("\n### ")[0]
    return set(re.findall(r"`(\w+)`", section))


def keys_of(document: Any, *paths: str) -> set[str]:
    """The keys of a document and, at each path, of what stands first there."""
    found = set(document)
    for path in paths:
        inner = document
        for key in path.split("."):
            inner = inner[key][0] if isinstance(inner[key], list) else inner[key]
        found |= set(inner)
    return found


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("verb", "arguments", "paths"),
    [
        ("info compilers", ["info", "compilers", "openvino"], ["compilers", "compilers.flags"]),
        ("info workloads", ["info", "workloads"], ["workloads", "workloads.inputs"]),
        ("info devices", ["info", "devices"], ["devices", "machine"]),
        ("study list", ["study", "list"], ["studies"]),
        ("doctor", ["doctor"], ["findings"]),
        ("benchmark --dry-run", ["benchmark", "quick", "--dry-run"], ["lanes"]),
    ],
)
def test_the_keys_of_json_are_those_of_the_reference(
    verb: str, arguments: list[str], paths: list[str], cli_json
) -> None:
    assert keys_of(cli_json(*arguments), *paths) == documented(verb) - {"ok", "warning", "problem"}


def test_the_keys_of_a_result_are_those_of_the_reference(tmp_path: Path, capfd) -> None:
    show_outcome(outcome(tmp_path), as_json=True)
    assert keys_of(json.loads(capfd.readouterr().out), "rows") == documented("benchmark")


def test_the_keys_of_a_comparison_are_those_of_the_reference(recorded: str, cli_json) -> None:
    found = cli_json("compare", "--tracking-uri", recorded)
    names = {"label", "batch", "device", "compiler_label"}
    assert names <= set(found["values"][0])
    assert keys_of(found, "values") - names == documented("compare")
