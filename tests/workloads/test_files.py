"""Workloads from files: ONNX, exported programs, MLflow models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph.errors import UnsupportedError, WorkloadError
from mlflow_ngraph.workloads.base import Init, TensorSpec, Workload, WorkloadRef
from mlflow_ngraph.workloads.describe import describe
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph_onnx.values import OPERATORS
from tests.workloads.models import Encoder, image_classifier
from tests.workloads.test_prepare import ALL, assert_all_formats_agree

DYNAMIC = torch.export.Dim("batch"), torch.export.Dim("sequence", max=32)


def workload(scheme: str, target: object, **options: Any) -> Workload:
    return create(WorkloadRef(scheme, str(target), options), Init())


def export_encoder(path: Path, *, dynamo: bool, **options: Any) -> Path:
    model = Encoder().eval()
    ids, mask = torch.randint(0, 50, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    batch, sequence = DYNAMIC
    shapes: dict[str, Any] = (
        {"dynamic_shapes": ({0: batch, 1: sequence}, {0: batch, 1: sequence}), "verbose": False}
        if dynamo
        else {"dynamic_axes": {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}}
    )
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(model, (ids, mask), str(path), dynamo=dynamo, input_names=names, **shapes, **options)
    return path


def export_classifier(path: Path, *, batch: int | None = None, **options: Any) -> Path:
    shapes = ({0: DYNAMIC[0]},) if batch is None else None
    example = torch.randn(batch or 2, 3, 8, 8)
    model = image_classifier().eval()
    torch.onnx.export(model, (example,), path, dynamo=True, dynamic_shapes=shapes, verbose=False, **options)
    return path


def graph(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] = []) -> Path:  # noqa: B006
    content = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    onnx.save(helper.make_model(content, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def value(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.mark.usefixtures("compilers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dynamo", "opset"), [(False, 17), (True, 18), (True, 20)])
def test_a_transformer_from_onnx(tmp_path: Path, dynamo: bool, opset: int) -> None:
    path = export_encoder(tmp_path / "encoder.onnx", dynamo=dynamo, opset_version=opset)
    found = workload("onnx", path, dims={"sequence": 6}, family="BERTs")
    assert (found.label, found.family) == ("encoder", "BERTs")
    assert found.inputs() == (
        TensorSpec("input_ids", "int64", ("batch", 6), 0, 50),
        TensorSpec("attention_mask", "int64", ("batch", 6), 0, 2),
    )
    prepare(found, tmp_path / "m", batch_sizes=[1, 3], formats=ALL, seed=0)
    source = Source(tmp_path / "m")
    assert_all_formats_agree(source, (1, 3))
    assert source.info.paper_macs is None
    assert (source.info.true_macs or 0) > 0
    assert source.info.ref == str(found.ref)
    shapes = [node.shape for node in onnxruntime.InferenceSession(source.onnx()).get_inputs()]
    assert [shape[1] for shape in shapes] == [6, 6]


@pytest.mark.usefixtures("compilers")
def test_a_fixed_batch_size_with_external_data(tmp_path: Path) -> None:
    path = export_classifier(tmp_path / "net.onnx", batch=2, external_data=True)
    assert (tmp_path / "net.onnx.data").is_file()
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[1, 2], formats=ALL, seed=0)
    (tmp_path / "net.onnx.data").unlink()
    source = Source(tmp_path / "m")
    assert source.info.fixed_batch == 2
    assert_all_formats_agree(source, (2,))
    with pytest.raises(UnsupportedError, match="no dynamic batch size: the file has a fixed batch size of 2"):
        source.onnx()


@pytest.mark.usefixtures("compilers")
def test_a_copy_of_a_copy_needs_the_original_no_more(tmp_path: Path) -> None:
    path = export_encoder(tmp_path / "encoder.onnx", dynamo=True)
    original = workload("onnx", path, dims={"sequence": 6})
    first = original.localise(tmp_path / "first")
    path.unlink()
    second = first.localise(tmp_path / "second")
    assert second.inputs() == first.inputs()
    assert second.ref == original.ref


def test_initializers_among_the_inputs_and_odd_types(tmp_path: Path) -> None:
    weight = helper.make_tensor("weight", TensorProto.FLOAT16, [3], np.array([1, 2, 3], np.float16).tobytes(), raw=True)
    path = graph(
        tmp_path / "odd.onnx",
        [
            helper.make_node("Cast", ["flags"], ["flags16"], to=TensorProto.FLOAT16),
            helper.make_node("Cast", ["counts"], ["counts16"], to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["values", "weight"], ["scaled"]),
            helper.make_node("Sum", ["scaled", "flags16", "counts16"], ["result"]),
        ],
        [
            value("values", ["N", 3], TensorProto.FLOAT16),
            value("weight", [3], TensorProto.FLOAT16),
            value("flags", ["N", 3], TensorProto.BOOL),
            value("counts", ["N", 3], TensorProto.UINT8),
        ],
        [value("result", ["N", 3], TensorProto.FLOAT16)],
        [weight],
    )
    found = workload("onnx", path, ranges={"counts": [5, 9]})
    assert [(spec.name, spec.dtype) for spec in found.inputs()] == [
        ("values", "float16"),
        ("flags", "bool"),
        ("counts", "uint8"),
    ]
    prepare(found, tmp_path / "m", batch_sizes=[4], formats=["module", "onnx"], seed=0)
    source = Source(tmp_path / "m")
    counts = source.example(4)[2]
    assert counts.min() >= 5
    assert counts.max() < 9
    assert source.reference(4)[0].dtype == np.float16
    assert source.info.parameters == 3


def test_an_operator_that_torch_lacks_is_named_and_onnxruntime_is_the_reference(tmp_path: Path) -> None:
    path = graph(
        tmp_path / "cropped.onnx",
        [helper.make_node("CenterCropPad", ["values", "size"], ["result"], axes=[1])],
        [value("values", ["batch", 3])],
        [value("result", ["batch", 1])],
        [numpy_helper.from_array(np.array([1]), "size")],
    )
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[2], formats=ALL, seed=0)
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[3], formats=ALL, seed=0)
    source = Source(tmp_path / "m")
    assert source.materials.reference_by.startswith("onnxruntime")
    np.testing.assert_array_equal(source.reference(3)[0], source.example(3)[0][:, 1:2])
    assert source.onnx().is_file()
    for missing in (source.module, source.exported):
        with pytest.raises(UnsupportedError, match=r"no ONNX operator CenterCropPad \(opset 18\)"):
            missing()
    assert describe(workload("onnx", path)).parameters is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda node, values: torch.relu(values) + 1e-3,
        lambda node, values: torch.clamp(values, 0, 1e3),  # right for all but inputs that are far out
        lambda node, values: torch.relu(values).double(),
        lambda node, values: torch.relu(values)[..., :2],
    ],
)
def test_a_converted_form_that_computes_another_function_judges_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Any, Any], Any]
) -> None:
    monkeypatch.setitem(OPERATORS, "Relu", replace(OPERATORS["Relu"], function=wrong))
    shape = ["batch", 3]
    path = graph(
        tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x", shape)], [value("y", shape)]
    )
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[2], formats=ALL, seed=0)
    source = Source(tmp_path / "m")
    assert source.materials.reference_by.startswith("onnxruntime")
    np.testing.assert_array_equal(source.reference(2)[0], np.maximum(source.example(2)[0], 0))
    with pytest.raises(UnsupportedError, match="its PyTorch form computes another function than ONNX defines"):
        source.module()


def test_a_form_is_believed_where_each_output_agrees_with_one_evaluator(tmp_path: Path) -> None:
    """ONNX Runtime leaves out the 1e-9 beside a deviation; the reference evaluator normalises by the batch before opset 14."""
    four = ["scale", "shift", "mean", "variance"]
    nodes = [
        helper.make_node("MeanVarianceNormalization", ["x"], ["normal"], axes=[1, 2]),
        helper.make_node("BatchNormalization", ["x", *four], ["scaled"]),
    ]
    shape = ["batch", 2, 4]
    outputs = [value("normal", shape), value("scaled", shape)]
    constants = [numpy_helper.from_array(np.array([0.5, 2.0], np.float32), name) for name in four]
    path = graph(tmp_path / "two.onnx", nodes, [value("x", shape)], outputs, constants)
    model = onnx.load(path)
    model.opset_import[0].version = 13
    onnx.save(model, path)
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[2], formats=["module"], seed=0)
    assert Source(tmp_path / "m").materials.reference_by.startswith("torch")


def test_complex_outputs_have_no_onnx_form(tmp_path: Path) -> None:
    module = workload("torch", "tests.workloads.handed:Frequencies", inputs=[{"shape": ["batch", 8]}])
    prepare(module, tmp_path / "m", batch_sizes=[2], formats=ALL, seed=0)
    with pytest.raises(UnsupportedError, match="output 'output' is complex"):
        Source(tmp_path / "m").onnx()


def _text(path: Path) -> Path:
    path.write_text("this is no model")
    return path


def _truncated(path: Path) -> Path:
    export_classifier(path)
    path.write_bytes(path.read_bytes()[:300])
    return path


def _empty(path: Path) -> Path:
    path.touch()
    return path


def _pointer(path: Path) -> Path:
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 5206\n")
    return path


def _page(path: Path) -> Path:
    path.write_text("\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n")
    return path


def _without_data(path: Path) -> Path:
    export_classifier(path, external_data=True)
    Path(f"{path}.data").unlink()
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "no ONNX file"),
        (_text, "is no valid ONNX file: it is cut short, damaged or something else: fetch or export it again"),
        (_truncated, "is no valid ONNX file: it is cut short, damaged or something else: fetch or export it again"),
        (_empty, "net.onnx is no ONNX file: it is empty: fetch or export it again"),
        (_pointer, "net.onnx is no ONNX file but a Git LFS pointer to one: fetch it with `git lfs pull`"),
        (_page, r"net.onnx is no ONNX file but a page of the web \(HTML or XML\): download the file itself"),
        (_without_data, "net.onnx.data"),
    ],
)
def test_broken_onnx_files(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        workload("onnx", make(tmp_path / "net.onnx")).check()
    assert "\n" not in str(caught.value)


def test_an_output_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["values", "values"], ["several"])]
    several = helper.make_tensor_sequence_value_info("several", TensorProto.FLOAT, None)
    path = graph(tmp_path / "s.onnx", nodes, [value("values", ["batch", 3])], [several])
    with pytest.raises(WorkloadError, match="output 'several' is no tensor: export the model with tensors only"):
        workload("onnx", path).check()


def test_outputs_need_no_shape_and_inputs_do(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["values"], ["result"])]
    rows, open_rank = value("values", ["batch", 3]), value("values", None)
    path = graph(tmp_path / "r.onnx", nodes, [rows], [value("result", None)])
    workload("onnx", path).check()
    graph(path, nodes, [open_rank], [value("result", ["batch", 3])])
    with pytest.raises(WorkloadError, match="input 'values' is no tensor with a shape: export the model with one"):
        workload("onnx", path).check()


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"leaves sizes open: sequence: give them, such as dims: \{sequence: 16\}"),
        ({"dims": {"sequenz": 4}}, "unknown 'sequenz': known: attention_mask"),
        ({"dims": {"sequence": 4}, "ranges": {"ids": [0, 3]}}, "unknown 'ids': known: attention_mask, input_ids"),
    ],
)
def test_open_sizes_and_unknown_names(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = export_encoder(tmp_path / "encoder.onnx", dynamo=True)
    with pytest.raises(WorkloadError, match=message):
        workload("onnx", path, **options).check()


def test_axes_without_a_symbol_go_by_place(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["values"], ["result"])]
    path = graph(tmp_path / "r.onnx", nodes, [value("values", [None, None])], [value("result", [None, None])])
    with pytest.raises(WorkloadError, match=r"values\[1\]"):
        workload("onnx", path).check()
    assert workload("onnx", path, dims={"values[1]": 4}).inputs()[0].shape == ("batch", 4)


def test_a_file_without_inputs_is_refused(tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.ones((2, 2), np.float32), "constant")
    nodes = [helper.make_node("Relu", ["constant"], ["result"])]
    path = graph(tmp_path / "n.onnx", nodes, [], [value("result", [2, 2])], [constant])
    with pytest.raises(WorkloadError, match="has no inputs: its outputs are constant"):
        workload("onnx", path).check()


def test_a_range_that_the_type_does_not_hold_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["codes"], ["result"], to=onnx.TensorProto.FLOAT)]
    codes = value("codes", ["batch", 4], onnx.TensorProto.INT8)
    path = graph(tmp_path / "c.onnx", nodes, [codes], [value("result", ["batch", 4])])
    with pytest.raises(WorkloadError, match="input codes: int8 holds -128 to 127, found low 0 and high 1000"):
        workload("onnx", path, high=1000).check()
    with pytest.raises(WorkloadError, match="input codes: int8 holds"):
        workload("onnx", path, ranges={"codes": [0, 129]}).check()
    assert workload("onnx", path, ranges={"codes": [-128, 128]}).inputs()[0].low == -128


def save_program(path: Path) -> Path:
    ids, mask = torch.randint(0, 50, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    batch = DYNAMIC[0]
    keywords = {"input_ids": ids, "attention_mask": mask}
    program = torch.export.export(
        Encoder().eval(), (), keywords, dynamic_shapes={name: {0: batch} for name in keywords}
    )
    torch.export.save(program, path)
    return path


@pytest.mark.usefixtures("compilers")
def test_an_exported_program_with_keywords(tmp_path: Path) -> None:
    found = workload("pt2", save_program(tmp_path / "encoder.pt2"), ranges={"input_ids": [0, 50]})
    assert found.label == "encoder"
    assert found.inputs() == (
        TensorSpec("input_ids", "int64", ("batch", 6), 0, 50),
        TensorSpec("attention_mask", "int64", ("batch", 6)),
    )
    prepare(found, tmp_path / "m", batch_sizes=[1, 3], formats=ALL, seed=0)
    assert_all_formats_agree(Source(tmp_path / "m"), (1, 3))


@pytest.mark.usefixtures("compilers")
def test_an_exported_program_for_one_batch_size(tmp_path: Path) -> None:
    program = torch.export.export(image_classifier().eval(), (torch.randn(2, 3, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    prepare(workload("pt2", tmp_path / "net.pt2"), tmp_path / "m", batch_sizes=[2, 4], formats=ALL, seed=0)
    assert Source(tmp_path / "m").info.fixed_batch == 2
    assert_all_formats_agree(Source(tmp_path / "m"), (2,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "no exported program"),
        (_text, "is no torch.export"),
        (_pointer, "net.pt2 is no exported program but a Git LFS pointer to one: fetch it with `git lfs pull`"),
    ],
)
def test_broken_programs(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        workload("pt2", make(tmp_path / "net.pt2")).check()
    assert "\n" not in str(caught.value)


@pytest.fixture
def tracking(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    return tmp_path


@pytest.mark.usefixtures("compilers")
@pytest.mark.filterwarnings("ignore")
def test_models_logged_to_mlflow(tracking: Path) -> None:
    import mlflow
    from mlflow.models import infer_signature

    images = np.zeros((2, 3, 8, 8), np.float32)
    signature = infer_signature(images, np.zeros((2, 5), np.float32))
    with mlflow.start_run():
        mlflow.pytorch.log_model(
            image_classifier().eval(),
            name="net",
            signature=signature,
            input_example=images,
            registered_model_name="net",
            pip_requirements=[],
        )
        plain = mlflow.pytorch.log_model(
            image_classifier(), name="plain", serialization_format="pickle", pip_requirements=[]
        )
        content = onnx.load(str(export_encoder(tracking / "encoder.onnx", dynamo=True)))
        encoder = mlflow.onnx.log_model(content, name="encoder", pip_requirements=[])
    mlflow.MlflowClient().set_registered_model_alias("net", "champion", "1")

    named = workload("mlflow", "models:/net@champion")
    assert (named.label, named.family) == ("net@champion", "mlflow")
    assert named.inputs()[0].shape == ("batch", 3, 8, 8)
    with pytest.raises(WorkloadError, match="no signature of tensors"):
        workload("mlflow", plain.model_uri).check()
    with pytest.raises(WorkloadError, match="cannot fetch the model"):
        workload("mlflow", "models:/nothing@champion").check()

    cases = {
        "named": named,
        "plain": workload("mlflow", plain.model_uri, inputs=[{"shape": ["batch", 3, 8, 8]}]),
        "onnx": workload("mlflow", encoder.model_uri, dims={"sequence": 6}, label="my-encoder"),
    }
    for name, found in cases.items():
        directory = tracking / name
        prepare(found, directory, batch_sizes=[1, 3], formats=ALL, seed=0)
        assert_all_formats_agree(Source(directory), (1, 3))
        assert Source(directory).info.label == found.label
        assert Source(directory).info.ref == str(found.ref)
        copied = found.localise(directory).localise(tracking / f"{name}-copy")
        assert copied.inputs() == Source(directory).inputs


@pytest.mark.filterwarnings("ignore")
def test_mlflow_decides_whether_pickles_are_read(tracking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    mlflow.pytorch.save_model(
        image_classifier(), tracking / "saved", serialization_format="pickle", pip_requirements=[]
    )
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    found = workload("mlflow", tracking / "saved", inputs=[{"shape": ["batch", 3, 8, 8]}])
    with pytest.raises(WorkloadError, match="pickle is disallowed"):
        found.module()


def test_a_graph_that_torch_runs_only_in_part_is_described_too(tmp_path: Path) -> None:
    path = graph(
        tmp_path / "arg.onnx",
        [helper.make_node("MaxPool", ["values"], ["result", "indices"], kernel_shape=[2, 2])],
        [value("values", ["batch", 1, 3, 3])],
        [value("result", ["batch", 1, 2, 2]), value("indices", ["batch", 1, 2, 2], TensorProto.INT64)],
    )
    assert describe(workload("onnx", path)).parameters is None
    prepare(workload("onnx", path), tmp_path / "m", batch_sizes=[2], formats=["onnx"], seed=0)
    assert Source(tmp_path / "m").materials.reference_by.startswith("onnxruntime")
