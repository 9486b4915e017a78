"""What compilers said about cells, found on this machine and on a tracking server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph_engines.explanation_tables import document, largest, longest, side_by_side
from mlflow_ngraph_engines.explanations import Explained, explain_local, explain_recorded
from tests.support.explanations import IDENTITY, OPENVINO, write_explanations, write_study
from tests.support.records import study_record


def rows(explained: list[Explained]) -> dict[str, list[str]]:
    return dict(side_by_side(explained))


def test_an_explanation_of_this_machine(tmp_path: Path) -> None:
    write_study(tmp_path)
    (found,) = explain_local(["resnet18/openvino/b8"], tmp_path)
    assert found.explanation == OPENVINO
    assert (found.cell.id, found.problem) == ("openvino-b8", "")


def test_the_newest_study_is_read_unless_another_is_named(tmp_path: Path) -> None:
    for name, at in (("mine-2", 2.0), ("mine-1", 1.0)):
        write_study(tmp_path, name, at)
    assert explain_local(["resnet18/openvino/b8"], tmp_path)[0].cell.study_id == "mine-2"
    assert explain_local(["resnet18/openvino/b8"], tmp_path, "mine-1")[0].cell.study_id == "mine-1"
    with pytest.raises(UsageError, match="unknown study 'mine-3': did you mean 'mine'"):
        explain_local(["resnet18/openvino/b8"], tmp_path, "mine-3")


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [
        ("vm-tvm", "there is no engine: unsupported: no Col2Im"),
        ("compile-torch", "compile-torch could not explain its engine: timed out"),
    ],
)
def test_why_there_is_no_explanation(compiler: str, problem: str, tmp_path: Path) -> None:
    write_study(tmp_path)
    (found,) = explain_local([f"resnet18/{compiler}/b8"], tmp_path)
    assert (found.explanation, found.problem) == (None, problem)


def test_an_engine_that_is_gone_or_damaged_says_so(tmp_path: Path) -> None:
    directory = write_study(tmp_path)
    file = directory / "engines/openvino/explanation-b8.json"
    for content, problem in ((None, "has no explanation-b8.json: measure it again"), ("{", "no readable explanation")):
        file.unlink()
        if content is not None:
            file.write_text(content)
        else:
            assert problem in explain_local(["resnet18/openvino/b8"], tmp_path)[0].problem
            file.touch()
            continue
        assert problem in explain_local(["resnet18/openvino/b8"], tmp_path)[0].problem
    for leftover in file.parent.iterdir():
        leftover.unlink()
    file.parent.rmdir()
    assert "its engine is gone from" in explain_local(["resnet18/openvino/b8"], tmp_path)[0].problem


def test_an_explanation_of_another_version(tmp_path: Path) -> None:
    file = write_study(tmp_path) / "engines/openvino/explanation-b8.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 0}))
    assert "another version" in explain_local(["resnet18/openvino/b8"], tmp_path)[0].problem


def test_a_home_without_studies(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study in "):
        explain_local(["resnet18/openvino/b8"], tmp_path)


@pytest.fixture
def server(sqlite_uri: str, tmp_path: Path) -> tuple[str, str]:
    """A store with a study whose OpenVINO engines are explained, and its run."""
    directory = tmp_path / "study"
    record = study_record(directory)
    write_explanations(record, directory, {("openvino", 4): OPENVINO, ("identity", 4): IDENTITY, ("openvino", 2): "{"})
    recorder = Recorder(sqlite_uri, "edge")
    run = recorder.open(record, directory)
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return sqlite_uri, run


def test_an_explanation_of_a_tracking_server(server: tuple[str, str]) -> None:
    uri, run = server
    for where in ({}, {"experiments": ["edge"]}, {"run": run}, {"study": "quick"}):
        (one, two) = explain_recorded(["resnet18/identity/b4", "resnet18/openvino/b4"], uri, **where)
        assert (one.explanation, two.explanation) == (IDENTITY, OPENVINO)


def test_a_study_is_looked_for_in_all_experiments(server: tuple[str, str], tmp_path: Path) -> None:
    record = study_record(tmp_path / "later", study_id="later")
    record.started_at += 9e5
    recorder = Recorder(server[0], "other")
    recorder.open(record, tmp_path / "later")
    recorder.close(record, "FINISHED")
    (found,) = explain_recorded(["resnet18/openvino/b4"], server[0], study="quick-0123abcd-20251009-090000")
    assert found.explanation == OPENVINO


def test_an_explanation_is_the_one_that_was_logged_by_somebody_who_is_trusted(
    server: tuple[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "trust.yaml").write_text("sources: [{uri: '*', trust: refused}]\n")
    with pytest.raises(EngineError, match="are not trusted"):
        explain_recorded(["resnet18/openvino/b4"], server[0], home=home)
    (found,) = explain_recorded(["resnet18/openvino/b4"], server[0])
    model = MlflowClient(server[0]).get_logged_model(found.cell.model_id)
    file = Path(model.artifact_location.removeprefix("file://")) / "engine/explanation-b4.json"
    file.write_text(file.read_text().replace("1", "2", 1))
    with pytest.raises(EngineError, match=r"explanation-b4\.json of engine .* is not what was logged"):
        explain_recorded(["resnet18/openvino/b4"], server[0])


def test_why_a_tracking_server_has_no_explanation(server: tuple[str, str]) -> None:
    problems = {
        "resnet18/openvino/b1": "has no engine/explanation-b1.json",
        "resnet18/openvino/b2": "no readable explanation",
        "deit-t/openvino/b1": "there is no engine: unsupported: no conversion for operator",
    }
    for found, problem in zip(explain_recorded(list(problems), server[0]), problems.values(), strict=True):
        assert found.explanation is None
        assert problem in found.problem


def test_a_tracking_server_without_the_study(server: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="nothing is recorded there"):
        explain_recorded(["resnet18/openvino/b4"], server[0], study="slow")
    with pytest.raises(UsageError, match="did you mean resnet18/openvino/b4"):
        explain_recorded(["resnet18/openvin/b4"], server[0])


def test_cells_side_by_side(tmp_path: Path) -> None:
    write_study(tmp_path)
    found = rows(explain_local(["resnet18/identity/b8", "resnet18/openvino/b8", "resnet18/vm-tvm/b8"], tmp_path))
    assert found["verdict"] == ["ok", "ok", "unsupported"]
    assert found["nodes before"] == ["5", "120", "–"]
    assert found["nodes after"] == ["5", "41", "–"]
    assert found["fused groups"] == ["–", "1", "–"]
    assert found["layout changes"] == ["–", "2", "–"]
    assert found["generated code"] == ["–", "12.3 kB", "–"]
    assert found["implementations"][1] == "ref_any 1, brgconv_avx512_amx 1, brgemm_avx512 1"
    assert found["layouts"][1] == "nhwc 2, nc 1"
    assert found["profiled"] == ["–", "0.1 ms in kernels", "–"]
    assert [found[name][1] for name in ("streams", "pinned", "threshold")] == ["1", "yes", "0.1235"]
    assert found["not explained"] == ["", "", "there is no engine: unsupported: no Col2Im"]


def test_what_no_compiler_tells_takes_no_row(tmp_path: Path) -> None:
    write_study(tmp_path)
    found = rows(explain_local(["resnet18/identity/b8"], tmp_path))
    assert not {"implementations", "providers", "profiled", "not explained"} & set(found)


def test_many_kinds_are_summed_up(tmp_path: Path) -> None:
    write_study(tmp_path)
    (found,) = explain_local(["resnet18/openvino/b8"], tmp_path)
    kernels = [OPENVINO.kernels[0].__class__(f"k{index}", f"Kind{index}") for index in range(9)]
    many = Explained(found.cell, Explanation(kernels=tuple(kernels)))
    assert rows([many])["operations"][0].endswith("Kind5 1, 3 more kinds")
    assert len(document([many])[0]["operations"]) == 9


def test_the_longest_and_the_largest_kernels() -> None:
    assert [(kernel.name, share) for kernel, share in longest(OPENVINO, 2)] == [("conv1", 0.7), ("input reorder", 0.25)]
    assert [kernel.name for kernel in largest(OPENVINO, 2)] == ["conv1"]
    assert longest(IDENTITY, 5) == []
    assert largest(IDENTITY, 5) == []
    assert longest(OPENVINO, 0) == []


def test_everything_for_programs(tmp_path: Path) -> None:
    write_study(tmp_path)
    one, other = document(explain_local(["resnet18/openvino/b8", "resnet18/vm-tvm/b8"], tmp_path))
    assert set(one) == set(other)
    assert (one["address"], one["nodes_after"], one["fused_groups"], one["profiled_us"]) == (
        "ResNet-18/openvino/b8",
        41,
        1,
        100.0,
    )
    assert [kernel["name"] for kernel in one["kernels"]] == ["input reorder", "conv1", "fc"]
    assert (other["nodes_after"], other["kernels"], other["fused_groups"]) == (None, [], None)
    assert json.dumps(one)
