"""``gate``, ``history`` and ``diff`` against a server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.home import IMPORTED_FROM
from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record
from tests.support.script import Script


@dataclass(frozen=True)
class Recorded:
    """A server with two studies of the same cells; in the second one OpenVINO is slower."""

    uri: str
    old: str
    new: str


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    runs = []
    for number in (0, 1):
        directory = tmp_path / str(number)
        record = study_record(directory, study_id=f"quick-0123abcd-20251009-09000{number}")
        record.started_at += 86400 * number
        for lane in record.lanes.values():
            slower = 0.9 if number and lane.lane.compiler == "openvino" else 1.0
            for cell in lane.cells.values():
                if "throughput" in cell.metrics:
                    for name in ("throughput", "speedup"):
                        value = cell.metrics[name] * slower
                        exact = name == "speedup" and lane.lane.compiler == "identity"
                        cell.metrics.update({name: value, f"{name}_ci_low": value * 0.998, f"{name}_ci_high": value * 1.002,
                                             f"{name}_log_se": 0.0 if exact else 0.001, f"{name}_df": 9.0, "rounds": 10.0})  # fmt: skip
                if number and lane.lane.compiler == "openvino":
                    cell.flags = {**cell.flags, "streams": 7}
        if number:
            record.versions = {**record.versions, "openvino": "2026.1.0"}
            record.fingerprint = {**record.fingerprint, "system": {"kernel": "6.9"}}
        runs.append(record_whole(Recorder(sqlite_uri), record, directory))
    return Recorded(sqlite_uri, *runs)


def record_whole(recorder: Recorder, record: StudyRecord, directory: Path) -> str:
    """Record a study from its beginning to its end, and return its run."""
    run = recorder.open(record, directory)
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return run


def test_a_run_against_a_run(recorded: Recorded, cli, tmp_path: Path) -> None:
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    arguments = ("results", "gate", "--candidate", recorded.new, "--baseline", recorded.old)
    code, out, err = cli(*arguments, "--summary", str(summary), "--junit", str(junit))
    assert (code, err) == (1, "")
    assert "gate failed" in out
    assert "3 of 7 comparisons (3 failed)" in out.replace("\n", " ")
    assert summary.read_text().startswith("### ❌ gate failed")
    assert summary.read_text().count("| failed |") == 3
    suite = ET.fromstring(junit.read_text()).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("7", "3")
    failures = suite.findall("testcase/failure")
    assert len(failures) == 3
    assert all("more than chance" in str(one.get("message")) for one in failures)


def test_it_passes_where_it_may(recorded: Recorded, cli, cli_json) -> None:
    arguments = ("results", "gate", "--candidate", recorded.new, "--baseline", recorded.old)
    code, out, _ = cli(*arguments, "--threshold", "throughput=-15%")
    assert code == 0
    assert "gate passed" in out
    assert "does not show what slows its baseline" not in out
    assert "does not show what slows its baseline" in " ".join(
        cli(*arguments, "--compilers", "identity,onnxruntime")[1].split()
    )
    found = cli_json(*arguments, "--compilers", "onnxruntime,identity")
    assert found["outcome"] == "passed"
    assert {cell["compiler_label"] for cell in found["cells"]} == {"onnxruntime[opt_level=2]"}
    assert all(cell["notices"] < 0.03 for cell in found["cells"])
    assert cli("results", "gate", "--candidate", recorded.old, "--baseline", recorded.new)[0] == 0


def test_what_could_not_be_told_is_neither_green_nor_red(recorded: Recorded, cli, tmp_path: Path) -> None:
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    arguments = (
        "results",
        "gate",
        "--candidate",
        recorded.old,
        "--baseline",
        recorded.new,
        "--threshold",
        "speedup=-0.1%",
    )
    code, out, err = cli(*arguments, "--summary", str(summary), "--junit", str(junit))
    assert (code, err) == (3, "")
    assert "gate could not tell" in out
    assert "7 of 7 comparisons (7 could not tell)" in out.replace("\n", " ")
    assert summary.read_text().startswith("### ❔ gate could not tell")
    assert "only a change of" in summary.read_text()
    suite = ET.fromstring(junit.read_text()).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "7")
    assert all("it notices a fall of" in str(one.get("message")) for one in suite.findall("testcase/skipped"))


def test_sides_without_a_cell_in_common_are_told_first(recorded: Recorded, cli, tmp_path: Path) -> None:
    path = tmp_path / "others.parquet"
    frame = results.load(recorded.uri)
    frame = frame[frame["run_id"] == recorded.old]
    frame.assign(workload="timm:others", label="others").to_parquet(path, index=False)
    for form in ("table", "markdown"):
        code, out, _ = cli("results", "gate", "--candidate", recorded.new, "--baseline", str(path), "--format", form)
        assert code == 1
        told = out.splitlines()[0 if form == "table" else 2]
        assert told == "no cell in common: the candidate has deit-t, resnet18; the baseline has others"
        assert form != "table" or len(out.splitlines()) < 5


def test_models_and_lanes_and_files(recorded: Recorded, cli, tmp_path: Path) -> None:
    frame = results.load(recorded.uri)
    fast = frame[(frame["run_id"] == recorded.old) & (frame["compiler"] == "openvino") & (frame["batch"] == 1)].iloc[0]
    slow = frame[(frame["run_id"] == recorded.new) & (frame["compiler"] == "openvino") & (frame["batch"] == 1)].iloc[0]
    client = MlflowClient(recorded.uri)
    client.create_registered_model("resnet")
    for alias, row in (("champion", fast), ("challenger", slow)):
        model = client.get_logged_model(row["model_id"])
        version = client.create_model_version("resnet", model.artifact_location, model_id=row["model_id"])
        client.set_registered_model_alias("resnet", alias, version.version)
    code, out, err = cli(
        "results", "gate", "--candidate", "models:/resnet@challenger", "--baseline", "models:/resnet@champion"
    )
    assert (code, err) == (1, "")
    assert "1 of 1 comparisons" in out
    assert cli("results", "gate", "--candidate", slow["lane_run_id"], "--baseline", fast["lane_run_id"])[0] == 1
    path = tmp_path / "baseline.parquet"
    frame[frame["run_id"] == recorded.old].to_parquet(path, index=False)
    assert cli("results", "gate", "--candidate", recorded.new, "--baseline", str(path))[0] == 1
    assert cli("results", "gate", "--candidate", recorded.old, "--baseline", str(path))[0] == 0


WRONG = [
    (["--candidate", "main", "--baseline", "commit:abc"], "'main' names no results"),
    (["--candidate", "0" * 32, "--baseline", "x.parquet"], "cannot read results: Run with id=000"),
    (
        ["--candidate", "x.parquet", "--baseline", "y.parquet"],
        "cannot read results from x.parquet: there is no such file",
    ),
    (["--baseline", "x.parquet"], "name what is judged: a STUDY, or --candidate WHAT"),
    (["--candidate", "x.json", "--baseline", "y.json", "--threshold", "fast"], "'fast' is no threshold"),
]


def test_a_wrong_request_is_told_from_a_failure(recorded: Recorded, cli) -> None:
    for arguments, message in WRONG:
        code, out, err = cli("results", "gate", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), arguments
        assert message in err


def test_the_history_of_a_cell(recorded: Recorded, cli, cli_json, tmp_path: Path) -> None:
    code, out, err = cli("results", "history", "resnet18/openvino/b1")
    assert (code, err) == (0, "")
    assert "resnet18 with openvino, fp32, batch 1 on xeon" in out
    assert "▼ −10.0 %" in out
    assert "█▁" in out
    found = cli_json("results", "history", "resnet18/openvino/b1")
    assert found["changes"] == 1
    assert [one["change"] for one in found["studies"]] == [None, pytest.approx(-0.1)]
    for name in ("history.md", "history.csv", "history.json"):
        assert cli("results", "history", "resnet18/openvino/b1", "--output", str(tmp_path / name))[:2] == (0, "")
        assert "quick-0123abcd" in (tmp_path / name).read_text()
    assert "no cell" in cli("results", "history", "resnet18/tvm/b1")[2]


def test_the_difference_between_two_runs(recorded: Recorded, cli, cli_json) -> None:
    code, out, err = cli("results", "diff", recorded.old, recorded.new)
    assert (code, err) == (0, "")
    for text in ("2026.1.0", "system.kernel", "openvino: streams (3 cells)", "resnet18/openvino/fp32/b1", "−10.0 %"):
        assert text in out.replace("\n", " "), text
    assert "results: 3 of 18 cells that both have differ" in out
    found = cli_json("results", "diff", recorded.old, recorded.new)
    assert found["cells"] == 18
    frame = results.load(recorded.uri, workloads=["resnet18"], compilers=["openvino"])
    lanes = [str(frame.loc[frame["run_id"] == run, "lane_run_id"].iloc[0]) for run in (recorded.old, recorded.new)]
    out = cli("results", "diff", *lanes)[1]
    assert "batch 1" in out
    assert "streams (1 cell)" in out or "streams (3 cells)" in out
    code, _, err = cli("results", "diff", recorded.old, lanes[0])
    assert code == 2
    assert "one run is of a study, the other of a lane" in err
    assert cli("results", "diff", recorded.old, "f" * 32)[0] == 2


def test_studies_by_their_names(recorded: Recorded, cli, cli_json) -> None:
    old, new = "quick-0123abcd-20251009-090000", "quick-0123abcd-20251009-090001"
    code, out, _ = cli("results", "gate", "--candidate", "quick", "--baseline", old)
    assert code == 1
    assert f"quick (the latest of 2 studies, {new}) against {old}, 3 of 7" in out.replace("\n", " ")
    out = cli("results", "diff", old, "quick")[1]
    assert f"left: {old} ({old}); right: quick (the latest of 2 studies, {new})" in out
    assert "results: 3 of 18 cells that both have differ" in out
    found = cli_json("results", "diff", recorded.old, "quick")
    assert (found["left"], found["right"]) == (recorded.old, recorded.new)
    for arguments in (
        ("results", "gate", "--candidate", "quick", "--baseline", "quick"),
        ("results", "diff", "quick", "quick"),
    ):
        code, _, err = cli(*arguments)
        assert code == 2
        assert "the same" in err
    assert "unknown study 'quik': did you mean 'quick'" in cli("results", "diff", old, "quik")[2]


def test_a_name_of_studies_of_several_devices_is_not_enough(recorded: Recorded, cli, tmp_path: Path) -> None:
    record = study_record(tmp_path / "orin", device="orin", study_id="quick-4567abcd-20251010-090000")
    record_whole(Recorder(recorded.uri), record, tmp_path / "orin")
    for arguments in (
        ("results", "gate", "--candidate", "quick", "--baseline", recorded.old),
        ("results", "diff", "quick", recorded.old),
    ):
        code, _, err = cli(*arguments)
        assert code == 2
        assert "are of several devices: name one by its id; the latest ones are" in err
        assert "orin: quick-4567abcd-20251010-090000" in err


def judged_by(cli, *request: str) -> Any:
    code, out, err = cli("results", "gate", *request, "--json")
    assert code in (0, 1, 3), err
    return json.loads(out)


def test_a_study_is_judged_by_the_one_before(recorded: Recorded, cli) -> None:
    explicit = judged_by(cli, "--candidate", recorded.new, "--baseline", recorded.old)
    for request in (["quick"], [recorded.new], ["--candidate", "quick", "--baseline", "quick~1"]):
        judged = judged_by(cli, *request)
        assert judged["cells"] == explicit["cells"], request
    assert "is no study that has one before it" not in cli("results", "gate", "quick")[2]
    code, _, err = cli("results", "gate", "quick~1")
    assert (code, "no study before quick~1" in err) == (2, True)
    code, _, err = cli("results", "gate", "quick~2")
    assert (code, "'quick~2' is not there: 2 studies have this name" in err) == (2, True)
    code, _, err = cli("results", "gate")
    assert (code, "name what is judged" in err) == (2, True)


def test_imported_studies_count_where_they_are_named(
    recorded: Recorded, cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recorded beside the own ones, and may have their names."""
    old, new = "quick-0123abcd-20251009-090000", "quick-0123abcd-20251009-090001"
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    cell = "resnet18/openvino/b1"
    assert {old, new} == {
        study["study_id"] for study in json.loads(cli("results", "history", cell, "--json")[1])["studies"]
    }
    mark = tmp_path / "home" / "studies" / old / IMPORTED_FROM
    mark.parent.mkdir(parents=True)
    mark.write_text("/media/stick/t.tar: not signed")
    note = "note: 1 imported study is left out: to take one in, name it by its id\n"
    code, _, err = cli("results", "gate", "quick")
    assert (code, "no study before quick" in err, note in err) == (2, True, True)
    assert note not in cli("results", "gate", new, "--baseline", old)[2]
    _, out, err = cli("results", "history", cell, "--json")
    assert [study["study_id"] for study in json.loads(out)["studies"]] == [new]
    assert note in err
    _, out, err = cli("results", "history", cell, "--studies", f"{old},{new}", "--json")
    assert len(json.loads(out)["studies"]) == 2
    assert note not in err


def recorded_to(experiment: str, uri: str, directory: Path, study_id: str) -> None:
    """Record a later study of the same cells to another experiment."""
    record = study_record(directory, study_id=study_id)
    record.started_at += 9e5
    record_whole(Recorder(uri, experiment), record, directory)


def test_a_run_is_judged_in_its_own_experiment(
    recorded: Recorded, cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_to("other", recorded.uri, tmp_path / "other", "quick-later")
    for _ in range(2):
        code, _, err = cli("results", "gate", recorded.new)
        assert (code, err) == (1, "note: looked at experiment 'ngraph', of the runs named\n")
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")


def test_a_study_of_this_machine_is_not_taken_for_the_copy_of_somebody_else(
    recorded: Recorded, cli, cli_json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "quick-0123abcd-20251009-090001"
    recorded_to("theirs", recorded.uri, tmp_path / "theirs", named)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    code, _, err = cli("results", "diff", recorded.old, named)
    assert (code, "of several experiments: name one by its id" in err, recorded.new in err) == (2, True, True)
    script = Script(study_id=named).say("study_finished", offline=False)
    script.say("study_recorded", run_id=recorded.new).write(tmp_path / "home" / "studies" / named)
    assert cli_json("results", "diff", recorded.old, named)["right"] == recorded.new


def test_devices_make_a_name_clear(recorded: Recorded, cli, tmp_path: Path) -> None:
    record = study_record(tmp_path / "orin", device="orin", study_id="quick-orin")
    record_whole(Recorder(recorded.uri), record, tmp_path / "orin")
    code, _, err = cli("results", "gate", "quick")
    assert (code, "of several devices" in err) == (2, True)
    judged = judged_by(cli, "quick", "--devices", "xeon")
    assert judged["candidate"].endswith("090001)")


def test_the_same_machine_under_another_profile_is_the_same_machine(recorded: Recorded, cli, tmp_path) -> None:
    record = study_record(tmp_path / "host", device="host", study_id="quick-host")
    record.started_at += 2 * 86400
    run = record_whole(Recorder(recorded.uri), record, tmp_path / "host")
    for request in (["quick"], ["--candidate", run, "--baseline", recorded.new]):
        judged = judged_by(cli, *request)
        assert judged["outcome"] == "could not tell", "few rounds do not notice 3 %"
        assert {row["outcome"] for row in judged["cells"]} <= {"passed", "could not tell"}, request
