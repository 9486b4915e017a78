"""``pull`` says what it chose and why, brings it, and says where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.analysis import results
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.cli import transfers
from mlflow_ngraph.compilers.base import Availability
from mlflow_ngraph.compilers.openvino.adapter import OpenVINO
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.metrics import METRICS
from tests.support.logged import WORKLOAD, Logged

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))


def test_an_engine_is_pulled_by_its_id_and_then_only_verified(
    logged: Logged, cli: Cli, cli_json: Callable[..., Any], tmp_path: Path
) -> None:
    source = f"models:/{logged.models['onnxruntime']}"
    code, out, err = cli("engine", "pull", source, "--tracking-uri", logged.uri, "--to", str(tmp_path / "r18"))
    assert (code, err) == (0, "")
    assert "by onnxruntime, fp32, batch 1, 4" in out
    assert f"pulled from engine {logged.models['onnxruntime']}" in out
    assert out.rstrip().endswith(str(tmp_path / "r18"))
    code, out, _ = cli("engine", "pull", source, "--tracking-uri", logged.uri, "--to", str(tmp_path / "r18"))
    assert code == 0
    assert "was there already" in out
    assert "nothing was brought" in out
    document = cli_json("engine", "pull", source, "--tracking-uri", logged.uri)
    assert (document["state"], document["answer"]) == ("pulled", None)
    assert Path(document["directory"]).parent == tmp_path / "home" / "pulled"
    assert document["manifest_sha256"] == open_package(Path(document["directory"])).digest
    assert {check["check"]: check["status"] for check in document["checks"]} == {
        "trust": "ok", "digests": "ok", "compatibility": "ok", "probe": "ok",
    }  # fmt: skip


def test_the_best_engine_is_found_by_question(logged: Logged, cli: Cli, cli_json: Callable[..., Any]) -> None:
    table = results.load(logged.uri, cache=False)
    table = table.sort_values("throughput", ascending=False).reset_index(drop=True)
    best = table.iloc[Comparison(table, METRICS["throughput"]).leader(np.arange(len(table)))]
    asked = (
        "engine",
        "pull",
        "--workloads",
        WORKLOAD.replace("?", "?depth=1&"),
        "--devices",
        "here",
        "--tracking-uri",
        logged.uri,
    )
    # How near to each other they are is a matter of chance.
    document = cli_json(*asked, "--accept-undecided", "--objective", "throughput", "--max-latency-ms", "1e9")
    answer = document["answer"]
    assert (answer["objective"], answer["considered"], answer["passed_over"]) == ("throughput", 6, [])
    assert (answer["chosen"]["model_id"], answer["chosen"]["batch"]) == (best["model_id"], best["batch"])
    ends = {end: best[f"throughput_{end}"] for end in ("ci_low", "ci_high")}
    known = {end: None if value != value else value for end, value in ends.items()}  # noqa: PLR0124 - NaN
    assert answer["chosen"]["figures"]["throughput"] == {"value": best["throughput"], **known}
    assert document["model_id"] == best["model_id"]
    code, out, _ = cli(*asked, "--accept-undecided")
    assert code == 0
    assert f": {best['label']} by {best['compiler_label']}, fp32, batch {best['batch']}" in out
    assert "it is the best by throughput of 6 cells with an engine" in out
    assert "the next by its figures is" in out
    assert "was there already" in out


def test_what_was_passed_over_is_said(
    logged: Logged, cli: Cli, cli_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = classmethod(lambda cls: Availability(False, None, "no module named openvino", "pip install openvino"))
    monkeypatch.setattr(OpenVINO, "availability", gone)
    asked = (
        "engine",
        "pull",
        "--tracking-uri",
        logged.uri,
        "--objective",
        "size",
        "--compilers",
        "onnxruntime,openvino",
    )
    table = results.load(logged.uri, cache=False).set_index("compiler")["engine_size_mb"]
    smaller = bool(table["openvino"].min() < table["onnxruntime"].min())
    code, out, _ = cli(*asked)
    assert code == 0
    assert "chosen: " in out
    assert "by onnxruntime" in out
    assert ("passed over: " in out and "openvino cannot run here: no module named openvino" in out) == smaller
    code, _, err = cli("engine", "pull", "--tracking-uri", logged.uri, "--compilers", "openvino")
    assert code == 1
    assert err.startswith("error: no engine of 2 that were measured fits this machine: 2 of openvino: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workloads", "timm:resnet18"), "unknown workload 'timm:resnet18': "),
        (("--objective", "fame"), "unknown objective 'fame'"),
        (("--devices", "orin"), "unknown device 'orin'"),
        (("0" * 32, "--objective", "latency"), "--objective, bounds, --dry-run and --accept-undecided are for"),
        (("0" * 32, "--families", "X"), "--families chooses among all engines: leave it out, or leave out 000"),
        (
            ("models:/x@y", "--compilers", "tvm"),
            "models:/x@y is one engine: --compilers tvm chooses among those of a run",
        ),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(
    logged: Logged, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = cli("engine", "pull", *arguments, "--tracking-uri", logged.uri)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "home" / "pulled").exists()


def test_bounds_that_nothing_keeps_are_no_wrong_request(logged: Logged, cli: Cli) -> None:
    code, out, err = cli("engine", "pull", "--max-latency-ms", "0.000001", "--tracking-uri", logged.uri)
    assert (code, out) == (3, "")
    assert "no engine keeps all bounds: --max-latency-ms 1e-06 alone is kept by 0 of 6" in " ".join(err.split())


def test_a_run_is_chosen_from(logged: Logged, cli: Cli, cli_json: Callable[..., Any]) -> None:
    table = results.load(logged.uri, cache=False)
    run_id = str(table["run_id"].iloc[0])
    code, _, err = cli("engine", "pull", run_id, "--tracking-uri", logged.uri)
    assert code == 2
    assert "has 3 engines" in err
    document = cli_json(
        "engine",
        "pull",
        run_id,
        "--tracking-uri",
        logged.uri,
        "--compilers",
        "openvino",
        "--batch-sizes",
        "4",
        "--devices",
        "here",
    )
    assert document["model_id"] == logged.models["openvino"]


def test_a_bar_is_for_terminals_only(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with transfers.arriving("pulling") as told:
        told(1, 2)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with transfers.arriving("pulling") as told:
        told(1_000_000, 4_000_000)
        told(4_000_000, 4_000_000)
    said = capfd.readouterr()
    assert said.out == ""
    assert "4.0/4.0 MB" in said.err


def test_json_is_all_that_is_printed(logged: Logged, cli: Cli) -> None:
    code, out, err = cli("engine", "pull", "--compilers", "onnxruntime", "--tracking-uri", logged.uri, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["compiler"] == "onnxruntime"


def test_a_dry_run_brings_nothing(logged: Logged, cli: Cli, cli_json: Callable[..., Any], tmp_path: Path) -> None:
    asked = (
        "engine",
        "pull",
        "--tracking-uri",
        logged.uri,
        "--objective",
        "latency",
        "--dry-run",
        "--accept-undecided",
    )
    code, out, _ = cli(*asked)
    assert code == 0
    assert "chosen: " in out or "looks best: " in out
    assert "it is the best by latency_p50_ms of 6 cells" in out
    document = cli_json(*asked)
    assert (document["directory"], document["answer"]["objective"]) == (None, "latency_p50_ms")
    assert not (tmp_path / "home" / "pulled").exists()


def test_what_is_not_trusted_is_not_brought(logged: Logged, cli: Cli, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("sources: [{uri: '*', trust: signed}]\n")
    source = f"models:/{logged.models['openvino']}"
    for arguments in ((source,), ("--compilers", "openvino")):
        code, _, err = cli("engine", "pull", *arguments, "--tracking-uri", logged.uri, "--trust", str(rules))
        assert code == 1
        assert "need a signature by a known signer (none): it is not signed" in err
    assert not (tmp_path / "home" / "pulled").exists()
