"""Names are valid in MLflow, documented, and the pure content follows the record."""

from __future__ import annotations

import colorsys
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tables.results import from_record as table_of
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.content import flags_in_force, lane_content, study_content
from mlflow_ngraph.tracking.schema import HEADLINES, STUDY_METRICS, Artifact, Kind, Param, Tag
from tests.support.records import lane_id, study_record

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
    engines[1] = replace(engines[1], reused={"study_id": "theirs"})
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


def test_the_hue_tells_devices_apart_and_the_lightness_compilers() -> None:
    shades = [schema.colour("xeon", compiler) for compiler in ("identity", "openvino", "tvm")]
    hues, lights = [], []
    for shade in shades:
        hue, light, _ = colorsys.rgb_to_hls(*(int(shade[start : start + 2], 16) / 255 for start in (1, 3, 5)))
        hues.append(hue)
        lights.append(light)
    assert max(hues) - min(hues) < 0.02
    assert lights == sorted(set(lights))
    assert len({schema.colour(device, "openvino") for device in ("xeon", "gpu", "orin", "host")}) == 4
    assert schema.colour("xeon") == "#0072B2"
