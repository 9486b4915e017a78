"""Names are valid in MLflow, documented, and the pure content follows the record."""

from __future__ import annotations

import colorsys
import json
import re
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tables.results import from_record as table_of
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.content import flags_in_force, lane_content, study_content
from mlflow_ngraph.tracking.schema import HEADLINES, STUDY_METRICS, Artifact, Kind, Param, Tag
from tests.support.records import lane_id, study_record
from tests.support.specs import maker

DOCS = Path(__file__).parents[2] / "docs/reference"


def constants(kind: type) -> list[str]:
    return [value for name, value in vars(kind).items() if not name.startswith("_") and isinstance(value, str)]


def documented(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", [Tag, Param, Artifact, Kind])
def test_every_name_is_documented(kind: type) -> None:
    page = documented("mlflow.md")
    for name in constants(kind):
        assert name in page or f"{name}<name>" in page or f"{name}<key>" in page or f"{name}<device>" in page, name


def test_every_metric_is_documented_with_its_unit() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    for metric in CELL_METRICS.values():
        if "_ci_" not in metric.name:
            (row,) = re.findall(rf"^\| `{metric.name}` \|.*$", text, re.MULTILINE)
            assert f"| {metric.unit} |" in row, row
            has_interval = f"{metric.name}_ci_low" in CELL_METRICS
            assert ("| yes |" in row) == has_interval, row
    page = documented("mlflow.md")
    for name in (*HEADLINES, *STUDY_METRICS):
        assert name in page, name


def test_names_are_what_mlflow_accepts() -> None:
    from mlflow.utils.validation import _validate_logged_model_name, _validate_metric_name

    for name in (*CELL_METRICS, *HEADLINES, *STUDY_METRICS, *(schema.CURVE + name for name in CELL_METRICS)):
        _validate_metric_name(name)
    for wild in ("a(b)%", "/x//y/", "provider[0]=cpu", "größe", "n" * 400):
        _validate_metric_name(schema.metric_name(f"flag.{wild}"))
        _validate_logged_model_name(schema.model_name(wild))


def test_long_values_are_cut_and_say_so() -> None:
    assert schema.cut("short", 10) == "short"
    long = schema.cut("x" * 7000, schema.MAX_PARAM)
    assert len(long) == schema.MAX_PARAM
    assert long.endswith("[cut from 7000 characters]")


def test_content_depends_on_the_record_alone(tmp_path: Path) -> None:
    one, two = study_record(tmp_path / "a"), study_record(tmp_path / "b")
    key = lane_id(one, "deit-t", "onnxruntime")
    assert lane_content(one, key).digest() == lane_content(two, key).digest()
    two.lanes[key].cells[1].metrics["throughput"] += 1
    assert lane_content(one, key).digest() != lane_content(two, key).digest()
    assert study_content(one) == study_content(two)


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    key = lane_id(record, "resnet18", "identity")
    record.lanes[key].cells[1].metrics.update(rtr=float("nan"), ase=float("inf"))
    names = {(point.name, point.step) for point in lane_content(record, key).points}
    assert ("batch/rtr", 1) not in names
    assert ("batch/ase", 1) not in names
    assert ("batch/ase", 2) in names


def test_flags_fall_back_to_what_was_asked_for(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    failed = record.lanes[lane_id(record, "deit-t", "openvino")]
    assert flags_in_force(failed)["threads"] == dict.fromkeys((1, 2, 4), None)
    partly = record.lanes[lane_id(record, "deit-t", "onnxruntime")]
    assert flags_in_force(partly)["threads"] == {1: 2, 2: 2, 4: None}


def test_a_lane_names_the_studies_that_compiled_what_it_reused(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    key = lane_id(record, "resnet18", "openvino")
    assert Tag.ENGINE_REUSED not in lane_content(record, key).tags
    engines = record.lanes[key].engines
    engines[1] = engines[1].model_copy(update={"reused": maker(study_id="theirs")})
    assert json.loads(lane_content(record, key).tags[Tag.ENGINE_REUSED]) == {engines[1].id: "theirs"}
    points = {point.name: point.value for point in study_content(record).points}
    assert (points["engines"], points["engines_reused"]) == (11, 1)
    rows = table_of(record).set_index("cell")["engine_reused"].dropna()
    assert dict(rows) == {record.lanes[key].lane.cell(2): "theirs"}


def test_an_empty_study_has_content(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes, record.finished_at = {}, None
    content = study_content(record)
    assert content.start_ms == content.end_ms
    assert content.tags[Tag.VERDICT] == "ok"


def test_the_hue_tells_compilers_apart_and_the_lightness_devices_and_flags() -> None:
    names = COMPILERS.names()
    assert len({schema.colour("host", name, name) for name in names}) == len(names)
    shades = [
        schema.colour("host", "openvino", "openvino"),
        schema.colour("gpu", "openvino", "openvino"),
        schema.colour("orin", "openvino", "openvino"),
        schema.colour("host", "openvino", "openvino[streams=2]"),
    ]
    hues, lights = [], []
    for shade in shades:
        hue, light, _ = colorsys.rgb_to_hls(*(int(shade[start : start + 2], 16) / 255 for start in (1, 3, 5)))
        hues.append(hue)
        lights.append(light)
    assert max(hues) - min(hues) < 0.02
    assert len(set(lights)) == len(lights)
    assert schema.colour() == "#7F7F7F"


def test_headlines_that_are_the_best_of_different_batch_sizes_are_each_of_their_own_cell(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    key = lane_id(record, "resnet18", "openvino")
    cells = record.lanes[key].cells
    cells[1].metrics.update(throughput=10.0, speedup=9.0, speedup_ci_low=8.0, latency_p50_ms=0.001)
    cells[4].metrics.update(throughput=900.0, speedup=1.5, speedup_ci_low=1.4, latency_p50_ms=4.0)
    content = lane_content(record, key)
    found = {point.name: point.value for point in content.points if not point.step}
    assert (found["throughput"], found["best_batch"]) == (900.0, 4)
    assert (found["speedup"], found["speedup_ci_low"], found["speedup_at_best"]) == (9.0, 8.0, 1.5)
    assert (found["latency_p50_ms"], found["latency_p50_ms_at_best"]) == (0.001, 4.0)
    engines = {point.name: point.engine for point in content.points if not point.step}
    assert (engines["speedup"], engines["throughput"]) == (cells[1].engine, cells[4].engine)
    assert [point.name for point in content.points][:2] == ["throughput", "speedup"], "what MLflow compares by first"


def test_a_label_of_a_compiler_that_says_nothing_more_is_left_out(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    plainly = lane_content(record, lane_id(record, "resnet18", "openvino"))
    assert Param.COMPILER_LABEL not in plainly.params
    assert Tag.COMPILER_LABEL not in plainly.tags
    flagged = lane_content(record, lane_id(record, "resnet18", "onnxruntime"))
    assert flagged.params[Param.COMPILER_LABEL] == flagged.tags[Tag.COMPILER_LABEL] == "onnxruntime[opt_level=2]"


def test_versions_that_somebody_else_wrote_are_none() -> None:
    assert schema.versions_of({}) == schema.versions_of({Tag.VERSIONS: "{"}) == schema.versions_of({Tag.VERSIONS: "[]"})
