"""What is drawn for inputs could be one, and a user's own samples come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, TensorSpec, Workload, WorkloadRef
from mlflow_ngraph.workloads.describe import describe
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph.workloads.trials import GIVEN, KINDS, draw
from tests.workloads.drawn_for import LENGTH, PLACES, WORDS, Encoder

SEQUENCE = {"shape": ["batch", LENGTH], "dtype": "int64"}
ENCODER = {"input_ids": SEQUENCE, "attention_mask": SEQUENCE, "position_ids": SEQUENCE}


def workload(scheme: str, target: object, **options: Any) -> Workload:
    return create(WorkloadRef(scheme, str(target), options), Init())


def factory(name: str, **options: Any) -> Workload:
    return workload("torch", f"tests.workloads.drawn_for:{name}", **options)


def exported(path: Path) -> Path:
    batch = torch.export.Dim("batch", min=1)
    example = tuple(torch.zeros(2, LENGTH, dtype=torch.int64) for _ in ENCODER)
    torch.export.save(torch.export.export(Encoder(), example, dynamic_shapes=({0: batch},) * len(example)), path)
    return path


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("scheme", ["torch", "pt2"])
def test_integers_are_below_the_length_of_the_table_that_they_pick_rows_of(scheme: str, tmp_path: Path) -> None:
    found = factory("Encoder", inputs=ENCODER) if scheme == "torch" else workload("pt2", exported(tmp_path / "net.pt2"))
    info = describe(found)
    assert {spec.name: spec.high for spec in info.inputs} == {
        "input_ids": WORDS,
        "attention_mask": 2,
        "position_ids": PLACES,
    }
    assert [spec.drawn for spec in info.inputs] == [
        f"integers from 0 to {WORDS - 1}",
        "ones, as many as each sample is long, at least one, then zeros",
        f"positions in order, from 0 to {PLACES - 1} at most",
    ]


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("name", "said", "high"),
    [
        ("Hashed", {}, 2**63 - 1),
        ("Hashed", {"dtype": "int32"}, 2**31 - 1),
        ("Table", {}, WORDS),
        ("Table", {"high": 5}, 5),
    ],
)
def test_a_range_is_what_the_user_says_or_the_model_shows(name: str, said: dict[str, Any], high: int) -> None:
    found = describe(factory(name, inputs=[{**SEQUENCE, **said}]))
    assert found.inputs[0].high == high


@pytest.mark.parametrize(
    ("name", "shape", "high"),
    [("image", ["batch", 3, 8, 8], 256), ("mask", ["batch", 1, 8, 8], 2), ("kinds", ["batch", 8], 2)],
)
def test_an_image_in_bytes_has_all_of_their_values(name: str, shape: list[Any], high: int) -> None:
    said = {name: {"shape": shape, "dtype": "uint8"}}
    assert factory("Table", inputs=said).inputs()[0].high == high
    assert factory("Table", inputs={name: {**said[name], "high": 7}}).inputs()[0].high == 7


def test_hashed_ids_of_a_file_may_be_any(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", 3])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.INT32, ["batch", 3])]
    divisor = helper.make_tensor("divisor", TensorProto.INT32, [], [97])
    graph = helper.make_graph([helper.make_node("Mod", ["ids", "divisor"], ["out"])], "g", inputs, outputs, [divisor])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "a.onnx")
    assert workload("onnx", tmp_path / "a.onnx").inputs()[0].high == 2**31 - 1


@pytest.mark.parametrize("dtype", ["int64", "bool"])
@pytest.mark.parametrize("shape", [("batch", LENGTH), (LENGTH, "batch"), ("batch", 1, LENGTH, LENGTH)])
def test_masks_are_lengths_of_at_least_one(dtype: str, shape: tuple[Any, ...]) -> None:
    for name in ("attention_mask", "key_padding_mask"):
        spec = TensorSpec(name, dtype, shape)
        array = spec.random(50, np.random.default_rng(0))
        assert (array.shape, array.dtype) == (spec.resolve(50), np.dtype(dtype))
        rows = np.moveaxis(array, spec.axis or 0, 0).astype(int)
        counting = 1 - rows if "padding" in name else rows
        assert counting[..., 0].all()
        assert (np.diff(counting, axis=-1) <= 0).all(), "nothing counts behind the end"
        assert (counting.sum(-1).min(), counting.sum(-1).max()) == (1, LENGTH)


def test_positions_are_in_order_in_the_example_and_in_every_trial() -> None:
    spec = TensorSpec("position_ids", "int64", ("batch", LENGTH), 0, PLACES)
    example = spec.random(3, np.random.default_rng(0))
    assert example.tolist() == [list(range(LENGTH))] * 3
    begins = set()
    for number in range(len(KINDS)):
        drawn = draw([spec], 3, 0, number, [example])[1][0]
        assert (np.diff(drawn, axis=1) == 1).all()
        assert drawn.max() < PLACES
        begins.add(int(drawn[0, 0]))
    assert len(begins) > 1
    short = TensorSpec("positions", "int32", (LENGTH,), 0, 3)
    assert short.random(1, np.random.default_rng(0)).tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.usefixtures("compilers")
def test_the_users_samples_are_tried_first_and_then_what_is_drawn_from_them(tmp_path: Path) -> None:
    found = factory(
        "Hashed", inputs=[{**SEQUENCE, "name": "input"}], samples="tests.workloads.drawn_for:hashed_samples"
    )
    prepare(found, tmp_path, batch_sizes=[3], formats=[], seed=0)
    source, samples = Source(tmp_path), found.samples()
    assert samples is not None
    known = source.trials(3)
    assert [trial.kind for trial in known.trials][:4] == [GIVEN, GIVEN, GIVEN, KINDS[0]]
    for trial, expected in zip(known.trials, (samples[0][3:6], samples[0][6:9], samples[0][[9, 0, 1]]), strict=False):
        drawn = draw(source.inputs, 3, known.seed, trial.number, source.example(3), given=known.given)[1]
        np.testing.assert_array_equal(drawn[0], expected)


def test_a_function_gives_the_same_samples_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import torch\ndef rows():\n    return {{'input': torch.randint(0, 1000, (10, {LENGTH}))}}\n"
    )
    inputs = [SEQUENCE]
    for source in ("tests.workloads.drawn_for:hashed_samples", f"{tmp_path / 'mine.py'}:rows"):
        first, again = (factory("Hashed", inputs=inputs, samples=source).samples() for _ in range(2))
        assert first is not None
        assert again is not None
        np.testing.assert_array_equal(first[0], again[0])
        assert first[0].max() > 100


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tests.workloads.drawn_for:exits", "it ended the process: no data here"),
        ("tests.workloads.drawn_for:nothing", "it returned NoneType: return a mapping from input name to array"),
        ("tests.workloads.drawn_for:missing", "has no attribute 'missing'"),
        ("no_such_module:rows", "No module named 'no_such_module'"),
        ("nowhere.py:rows", "no such file: paths are relative to the directory where the study is started"),
        ("nowhere.npz", "no such file: paths are relative to the directory where the study is started"),
    ],
)
def test_samples_that_cannot_be_had_are_one_line(source: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        factory("Hashed", inputs=[SEQUENCE], samples=source).check()
    assert f"samples {source}: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
