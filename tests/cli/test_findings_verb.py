"""``findings``: what is said, in each format, and commands that work as printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import lane_id, study_record

pytestmark = pytest.mark.long


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path) -> str:
    """Two studies; on one device ONNX Runtime is slower than eager execution."""
    for device, number in (("xeon", 0), ("orin", 1)):
        directory = tmp_path / device
        record = study_record(directory, device=device, study_id=f"quick-0123abcd-20251009-09000{number}")
        if device == "orin":
            for cell in record.lanes[lane_id(record, "resnet18", "onnxruntime")].cells.values():
                cell.metrics.update(rounds=10.0, speedup=0.5, speedup_ci_low=0.49, speedup_ci_high=0.51)
        recorder = Recorder(sqlite_uri)
        recorder.open(record, directory)
        for lane in record.lanes:
            recorder.record_lane(record, lane)
        recorder.close(record, "FINISHED")
    return sqlite_uri


def test_findings_in_words_and_their_commands_work(recorded: str, cli) -> None:
    code, out, err = cli("results", "findings", "--tracking-uri", recorded)
    assert (code, err) == (0, "")
    assert "onnxruntime[opt_level=2] is slower than eager execution on orin" in out
    assert "openvino on xeon: 3 of 6 cells unsupported" in out
    assert "hypotheses about 36 cells tested" in " ".join(out.split())
    lines = map(str.strip, out.replace(" \\\n", " ").splitlines())
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert len(commands) >= 5
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "mlflow-ngraph"
        if arguments[0] == "benchmark":  # it would measure, on the device in question
            assert arguments[-2:] == ["--threads", "2"], "it is whole, without options of what reads results"
            continue
        code, shown, err = cli(*arguments)
        assert (code, err) == (0, ""), command
        assert shown.strip()


def test_kinds_filters_and_json(recorded: str, cli_json) -> None:
    whole = cli_json("results", "findings", "--tracking-uri", recorded)
    assert {"cells", "hypotheses", "margin", "count", "findings"} == set(whole)
    (loss,) = cli_json("results", "findings", "--tracking-uri", recorded, "--kinds", "loss")["findings"]
    assert {"kind", "title", "text", "evidence", "command", "weight"} == set(loss)
    assert [one["batch"] for one in loss["evidence"]] == [1, 2, 4]
    assert (
        cli_json("results", "findings", "--tracking-uri", recorded, "--kinds", "loss", "--devices", "xeon")["findings"]
        == []
    )
    assert len(cli_json("results", "findings", "--tracking-uri", recorded, "--limit", "1")["findings"]) == 1


def test_the_ending_of_a_file_tells_the_format(recorded: str, cli, tmp_path: Path) -> None:
    for name in ["found.md", "found.json", "found.txt"]:
        code, out, _ = cli("results", "findings", "--tracking-uri", recorded, "--output", str(tmp_path / name))
        assert (code, out) == (0, "")
        text = (tmp_path / name).read_text()
        if name.endswith("json"):
            assert json.loads(text)["findings"]
        else:
            assert ("- **" in text) == name.endswith("md")
            assert "is slower than eager execution" in text


WRONG = [
    (["--kinds", "losses"], "unknown kind of finding 'losses': did you mean 'loss'?"),
    (["--format", "html"], "format: expected text, markdown, json, found 'html'"),
    (["--devices", "xenon"], "unknown device 'xenon': did you mean 'xeon'?"),
    (["--output", "/proc/none/found.md"], "cannot write /proc/none/found.md: No such file"),
]


def test_what_does_not_fit_is_one_line(recorded: str, cli) -> None:
    for arguments, message in WRONG:
        code, out, err = cli("results", "findings", "--tracking-uri", recorded, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err
