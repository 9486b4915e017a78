"""Which cell a person means."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.analysis import cells
from mlflow_ngraph.analysis.cells import Cell, choose
from mlflow_ngraph.errors import JournalError, UnknownNameError, UsageError
from mlflow_ngraph.tables.results import from_record as table_of
from tests.support.records import study_record
from tests.support.script import Script


def cell(label: str = "ResNet-18", compiler: str = "openvino", flags: str = "", batch: int = 8, **what: Any) -> Cell:
    compiler_label = f"{compiler}[{flags}]" if flags else compiler
    about = {"precision": "fp32", "study": "quick", "study_id": "quick-1", "device": "host", "verdict": "ok"} | what
    name = hashlib.sha256(f"{label}{compiler_label}{about['precision']}".encode()).hexdigest()[:12]
    return Cell(f"{name}-b{batch}", label, f"timm:{label}", compiler, compiler_label, batch=batch, **about)


STUDY = [
    cell(),
    cell(batch=1),
    cell(compiler="identity"),
    cell(compiler="onnxruntime", flags="spinning=False"),
    cell("conv-w64-d1"),
]


def names(queries: list[str], *studies: list[Cell]) -> list[str]:
    return [found.address for found in choose(queries, studies or [STUDY])]


@pytest.mark.parametrize(
    "query",
    [
        STUDY[0].id,
        "ResNet-18/openvino/b8",
        "resnet18/openvino/b8",
        "resnet_18/openvino/fp32/b8",
        "resnet18/openvino/*/b8",
        "resnet18/open*/b8",
    ],
)
def test_a_cell_has_an_id_and_an_address(query: str) -> None:
    assert names([query]) == ["ResNet-18/openvino/b8"]


def test_a_study_that_has_measured_the_cell_comes_before_a_newer_one_that_has_not() -> None:
    running = [replace(one, study_id="quick-2", verdict="") for one in STUDY]
    (found,) = choose(["resnet18/openvino/b8"], [running, STUDY])
    assert found.study_id == "quick-1"
    (found,) = choose(["resnet18/openvino/b8"], [running])
    assert found.study_id == "quick-2"


def test_flags_may_be_left_out_where_there_is_one_choice() -> None:
    assert names(["resnet18/onnxruntime/b8"]) == ["ResNet-18/onnxruntime[spinning=False]/b8"]
    plain = [*STUDY, cell(compiler="onnxruntime")]
    assert names(["resnet18/onnxruntime/b8"], plain) == ["ResNet-18/onnxruntime/b8"]
    assert names(["resnet18/onnxruntime[spinning=False]/b8"], plain) == ["ResNet-18/onnxruntime[spinning=False]/b8"]


def test_a_star_stands_for_any_text() -> None:
    assert names(["resnet18/*/b8"]) == [
        "ResNet-18/openvino/b8",
        "ResNet-18/identity/b8",
        "ResNet-18/onnxruntime[spinning=False]/b8",
    ]
    assert names(["*/openvino/b8"]) == ["ResNet-18/openvino/b8", "conv-w64-d1/openvino/b8"]
    assert names(["resnet18/openvino/b*"]) == ["ResNet-18/openvino/b8", "ResNet-18/openvino/b1"]


def test_several_names_keep_their_order_and_no_cell_comes_twice() -> None:
    assert names(["resnet18/identity", "resnet18/*/b8"])[:2] == ["ResNet-18/identity/b8", "ResNet-18/openvino/b8"]
    assert len(names(["resnet18/identity", "resnet18/*/b8"])) == 3


@pytest.mark.parametrize(
    ("query", "candidates"),
    [
        ("resnet18/openvino", "ResNet-18/openvino/b8, ResNet-18/openvino/b1 of study quick-1"),
        ("resnet18/tvm/b1", "'ResNet-18/tvm[tune=True]/b1', 'ResNet-18/tvm[opt_level=0]/b1'"),
        ("deit/openvino/b1", "deit/openvino/fp32/b1, deit/openvino/bf16/b1"),
    ],
)
def test_what_fits_several_is_refused_with_the_candidates(query: str, candidates: str) -> None:
    flags = [cell(compiler="tvm", flags=text, batch=1) for text in ("tune=True", "opt_level=0")]
    precisions = [cell("deit", batch=1, precision=name) for name in ("fp32", "bf16")]
    with pytest.raises(UsageError) as caught:
        names([query], [*STUDY, *flags, *precisions])
    assert candidates in str(caught.value)


def test_the_newest_study_that_has_it_wins() -> None:
    old, new = ([replace(one, study_id=name) for one in STUDY] for name in ("old", "new"))
    assert [one.study_id for one in choose(["resnet18/openvino/b8", "resnet18/identity/b8"], [new[:2], old])] == [
        "new",
        "old",
    ]
    assert {one.study_id for one in choose(["resnet18/*/b8"], [new, old])} == {"new"}


def test_no_more_studies_are_read_than_needed() -> None:
    def studies():
        yield STUDY
        raise AssertionError("read too far")

    assert choose(["resnet18/openvino/b8"], studies())


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("resnet18/openvin/b8", "no cell 'resnet18/openvin/b8': did you mean ResNet-18/openvino/b8 or"),
        ("resnet18/openvino/b7", "did you mean ResNet-18/openvino/b8"),
        ("zzzz", "no cell 'zzzz': known: ResNet-18/openvino/b8, "),
    ],
)
def test_an_unknown_cell_names_the_nearest(query: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        names([query])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_known() -> None:
    with pytest.raises(UsageError, match="known: none"):
        choose(["resnet18/openvino/b8"], [])


def script(study_id: str = "mine-1", at: float = 1.0) -> Script:
    """A study of one lane with batch sizes 1 and 2."""
    return Script([1, 2], ["openvino"], study_id, "mine", at)


def test_a_cell_exists_once_it_has_an_engine_or_a_verdict(tmp_path: Path) -> None:
    assert cells.of_directory(script().write(tmp_path / "a")) == []
    written = script().built("openvino", [1], "engines/e")
    (built,) = cells.of_directory(written.write(tmp_path / "b"))
    assert (built.address, built.verdict, built.engine) == ("M/openvino/b1", "", tmp_path / "b/engines/e")
    written.finished("openvino", 2, "unsupported", "no operator X")
    _, failed = cells.of_directory(written.write(tmp_path / "c"))
    assert (failed.address, failed.verdict, failed.reason, failed.engine) == (
        "M/openvino/b2",
        "unsupported",
        "no operator X",
        None,
    )


def test_the_last_engine_and_the_last_verdict_of_a_cell_count(tmp_path: Path) -> None:
    written = (
        script().built("openvino", [1, 2], "engines/old").ready("openvino", 1).finished("openvino", 1, "crashed", "x")
    )
    written.session().built("openvino", [1], "engines/new").events[-1]["id"] = "another"
    written.measured("openvino", 1, 5)
    one, two = cells.of_directory(written.write(tmp_path))
    assert (one.verdict, one.reason, one.precision_in_force) == ("ok", "", "fp32")
    assert (one.engine, two.engine) == (tmp_path / "engines/new", tmp_path / "engines/old")


def test_studies_of_a_home_come_newest_first_and_can_be_chosen(tmp_path: Path) -> None:
    for at, name in enumerate(["mine-1", "mine-2"]):
        script(name, float(at)).built("openvino", [1]).write(tmp_path / "studies" / name)
    (tmp_path / "studies/no-study").mkdir()
    assert [study[0].study_id for study in cells.of_home(tmp_path)] == ["mine-2", "mine-1"]
    assert [study[0].study_id for study in cells.of_home(tmp_path, "mine-1")] == ["mine-1"]
    assert len(list(cells.of_home(tmp_path, "mine"))) == 2
    with pytest.raises(UnknownNameError, match="yours"):
        list(cells.of_home(tmp_path, "yours"))


def test_a_directory_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(JournalError):
        cells.of_directory(tmp_path)


def test_cells_of_a_table(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    models = {engine.id: f"m-{engine.id}" for lane in record.lanes.values() for engine in lane.engines}
    (study,) = cells.of_results(table_of(record, models=models))
    assert len(study) == 18
    by_address = {one.address: one for one in study}
    good, lost = by_address["resnet18/openvino/b4"], by_address["deit-t/openvino/b1"]
    assert (good.precision_in_force, good.verdict) == ("fp32", "ok")
    assert good.model_id.endswith("-e4")
    assert (lost.model_id, lost.precision_in_force, lost.verdict) == ("", "", "unsupported")
