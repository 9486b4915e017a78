from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from mlflow_ngraph.errors import NGraphError, UnsupportedError, WorkloadError
from mlflow_ngraph.workloads.base import Format, Init, Workload, WorkloadRef
from mlflow_ngraph.workloads.materials import Materials, Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

pytestmark = pytest.mark.long

ALL: tuple[Format, ...] = ("module", "exported", "onnx")
CONV = "block:conv?width=4&depth=2&image_size=8"
MODELS = "torch:tests.workloads.models:"


def block(text: str = CONV) -> Workload:
    return create(WorkloadRef.parse(text), Init())


def factory(name: str, **options: Any) -> Workload:
    return (
        create(WorkloadRef.parse(MODELS + name), Init())
        if not options
        else create(WorkloadRef("torch", f"tests.workloads.models:{name}", options), Init())
    )


def encoder(**extra: Any) -> Workload:
    ids = {"shape": ["batch", 6], "dtype": "int64", "high": 50}
    mask = {"shape": ["batch", 6], "dtype": "int64"}
    return factory("Encoder", inputs={"input_ids": ids, "attention_mask": mask}, **extra)


def run_onnx(source: Source, path: Path, batch: int) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = dict(zip([spec.name for spec in source.inputs], source.example(batch), strict=True))
    return [np.asarray(output) for output in session.run(None, feeds)]


def run_torch(module: torch.nn.Module, source: Source, batch: int) -> list[np.ndarray[Any, Any]]:
    with torch.inference_mode():
        outputs = module(*(torch.tensor(array) for array in source.example(batch)))
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_all_formats_agree(source: Source, batches: tuple[int, ...]) -> None:
    module = source.module()
    for batch in batches:
        reference = source.reference(batch)
        key = None if source.dynamic("exported") else batch
        program = torch.export.load(source.exported(key)).module()
        found = [
            run_torch(module, source, batch),
            run_torch(program, source, batch),
            run_onnx(source, source.onnx(key), batch),
        ]
        for outputs in found:
            for output, expected, spec in zip(outputs, reference, source.outputs, strict=True):
                np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
                assert spec.resolve(batch) == expected.shape


@pytest.mark.usefixtures("compilers")
def test_every_format_computes_the_reference(tmp_path: Path) -> None:
    stages: list[str] = []
    prepare(block(), tmp_path, batch_sizes=[1, 3], formats=ALL, seed=5, progress=stages.append)
    source = Source(tmp_path)
    assert_all_formats_agree(source, (1, 3))
    assert stages == ["build", "reference b1", "reference b3", "export exported", "export onnx"]
    assert source.materials.reference_by == f"torch {torch.__version__} eager"
    assert source.dynamic("onnx")
    assert source.export_seconds("onnx", 3) > source.export_seconds("exported") > 0
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name or path.suffix == ".tmp"]
    example = source.example(3)[0]
    assert not np.array_equal(example[0], example[1])


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "test_convnext"])
def test_small_timm_models(tmp_path: Path, name: str) -> None:
    prepare(block(f"timm:{name}?image_size=64"), tmp_path, batch_sizes=[1, 3], formats=ALL, seed=0)
    assert_all_formats_agree(Source(tmp_path), (1, 3))


@pytest.mark.usefixtures("compilers")
def test_extremes_over_all_axes_are_exported(tmp_path: Path) -> None:
    numbers = {"shape": ["batch", 4], "dtype": "float32"}
    prepare(factory("Extremes", inputs={"values": numbers}), tmp_path, batch_sizes=[1, 3], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert source.dynamic("onnx")
    assert_all_formats_agree(source, (1, 3))


@pytest.mark.usefixtures("compilers")
def test_nested_outputs_and_keyword_inputs_are_flattened(tmp_path: Path) -> None:
    prepare(encoder(), tmp_path, batch_sizes=[1, 3], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert [spec.name for spec in source.inputs] == ["input_ids", "attention_mask"]
    assert [spec.shape for spec in source.outputs] == [("batch", 6, 16), ("batch", 3)]
    assert_all_formats_agree(source, (1, 3))
    assert source.example(3)[0].max() > 10


@pytest.mark.usefixtures("compilers")
def test_what_is_missing_is_added_and_the_rest_stays(tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    first = prepare(block(), apart, batch_sizes=[2], formats=["module"], seed=1)
    with pytest.raises(NGraphError, match="'onnx' is not prepared"):
        Source(apart).onnx()
    kept = (apart / "weights.safetensors").stat().st_mtime_ns
    second = prepare(block(), apart, batch_sizes=[1, 2], formats=["onnx"], seed=1)
    whole = prepare(block(), together, batch_sizes=[1, 2], formats=["module", "onnx"], seed=1)
    assert (apart / "weights.safetensors").stat().st_mtime_ns == kept
    assert first.digest == second.digest == whole.digest
    assert second.batch_sizes == [1, 2]
    for batch in (1, 2):
        for one, other in zip(Source(apart).reference(batch), Source(together).reference(batch), strict=True):
            np.testing.assert_array_equal(one, other)
    stages: list[str] = []
    third = prepare(block(), apart, batch_sizes=[1, 2], formats=["module", "onnx"], seed=1, progress=stages.append)
    assert third.formats["onnx"] == second.formats["onnx"]


def test_materials_of_another_workload_are_not_mixed(tmp_path: Path) -> None:
    prepare(block(), tmp_path, batch_sizes=[1], formats=[], seed=1)
    with pytest.raises(NGraphError, match="holds materials of block:conv"):
        prepare(block("block:mha?width=8"), tmp_path, batch_sizes=[1], formats=[], seed=1)
    with pytest.raises(NGraphError, match="holds materials"):
        prepare(block(), tmp_path, batch_sizes=[1], formats=[], seed=2)


def test_the_digest_follows_the_weights(tmp_path: Path) -> None:
    digests = {
        prepare(
            create(WorkloadRef.parse(CONV), Init(seed=seed)), tmp_path / str(seed), batch_sizes=[], formats=[], seed=0
        ).digest
        for seed in (0, 1)
    }
    assert len(digests) == 2


@pytest.mark.usefixtures("compilers")
def test_a_model_without_a_dynamic_batch_size_is_exported_for_each(tmp_path: Path) -> None:
    workload = factory("OnlyBatchTwo", inputs=[{"shape": ["batch", 4]}])
    prepare(workload, tmp_path, batch_sizes=[1, 2], formats=ALL, seed=0)
    prepare(workload, tmp_path, batch_sizes=[3], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert not source.dynamic("exported")
    assert source.onnx(2).name == "model-b2.onnx"
    with pytest.raises(UnsupportedError, match="no dynamic batch size"):
        source.onnx()
    with pytest.raises(NGraphError, match="batch size 5 is not prepared"):
        source.exported(5)
    assert_all_formats_agree(source, (1, 2, 3))


@pytest.mark.usefixtures("compilers")
def test_one_sample_with_other_axes_has_an_export_of_its_own(tmp_path: Path) -> None:
    workload = factory("Squeezed", inputs=[{"shape": ["batch", 4]}], kwargs={"in_features": 4, "out_features": 1})
    prepare(workload, tmp_path, batch_sizes=[1, 3], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert (
        source.materials.formats["exported"].static_because == "output 'output' has 0 axes at batch 1, and 1 at others"
    )
    for batch, shape in ((1, ()), (3, (3,))):
        (found,) = run_torch(torch.export.load(source.exported(batch)).module(), source, batch)
        assert found.shape == source.reference(batch)[0].shape == shape
        assert run_onnx(source, source.onnx(batch), batch)[0].shape == shape


def test_a_failing_export_leaves_the_others(tmp_path: Path) -> None:
    workload = factory("DependsOnData", inputs=[{"shape": ["batch", 4]}])
    prepare(workload, tmp_path, batch_sizes=[1], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert source.module() is not None
    for missing in (source.exported, source.onnx):
        with pytest.raises(UnsupportedError) as caught:
            missing(1)
        told = str(caught.value)
        assert "Could not guard on data-dependent expression" in told
        assert re.search(r" in forward at models\.py:\d+: if values\.sum\(\) > 0$", told), told
    assert source.reference(1)[0].shape == (1, 4)


def test_a_fixed_batch_size_gets_that_one_only(tmp_path: Path) -> None:
    workload = factory("image_classifier", inputs=[{"shape": [2, 3, 8, 8]}])
    materials = prepare(workload, tmp_path, batch_sizes=[1, 2, 4], formats=ALL, seed=0)
    assert materials.batch_sizes == [2]
    assert materials.info.fixed_batch == 2
    source = Source(tmp_path)
    assert source.exported(2).name == "model-b2.pt2"
    with pytest.raises(UnsupportedError, match="accepts batch size 2 only, not 4"):
        source.example(4)
    assert_all_formats_agree(source, (2,))


@pytest.mark.usefixtures("compilers")
def test_what_a_state_dict_leaves_out_is_restored(tmp_path: Path) -> None:
    prepare(factory("Scratch", inputs=[{"shape": ["batch", 4]}]), tmp_path, batch_sizes=[2], formats=ALL, seed=0)
    assert_all_formats_agree(Source(tmp_path), (2,))


def test_boolean_and_half_inputs(tmp_path: Path) -> None:
    inputs = [{"shape": ["batch", 4]}, {"shape": ["batch", 4], "dtype": "bool"}]
    workload = factory("Masked", inputs=inputs)
    prepare(workload, tmp_path, batch_sizes=[1, 3], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert source.example(3)[1].dtype == np.bool_
    assert_all_formats_agree(source, (1, 3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Missing", {}, "has no 'Missing'"),
        ("NOT_CALLABLE", {}, "is int, not callable"),
        ("no_module", {}, "returned int, not a torch.nn.Module"),
        ("failing", {}, "raised ValueError: no such weights"),
        ("image_classifier", {"kwargs": {"chanels": 3}}, "raised TypeError"),
        ("Halved", {}, "is float16: give the model in float32"),
        ("Encoder", {}, "does not run on input float32"),
    ],
)
def test_factories_that_cannot_serve(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    workload = factory(name, inputs=[{"shape": ["batch", 3, 8, 8]}], **options)
    with pytest.raises(WorkloadError) as caught:
        prepare(workload, tmp_path, batch_sizes=[1], formats=[], seed=0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Materials.exist(tmp_path)


def test_a_module_of_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_net.py").write_text("import torch\ndef make(width=2):\n    return torch.nn.Linear(3, width)\n")
    (tmp_path / "broken_net.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = {"inputs": [{"shape": ["batch", 3]}], "kwargs": {"width": 7}}
    workload = create(WorkloadRef("torch", "my_net:make", options), Init())
    assert prepare(workload, tmp_path / "m", batch_sizes=[2], formats=[], seed=0).outputs[0].shape == ("batch", 7)
    for target, message in (("other_net:make", "no module 'other_net'"), ("broken_net:make", "ZeroDivisionError")):
        with pytest.raises(WorkloadError, match=message):
            create(WorkloadRef("torch", target, options), Init()).check()


def test_a_keyword_may_be_a_variable_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = factory("named", inputs=[{"shape": ["batch", 3]}], kwargs={"key": {"env": "A_KEY"}})
    with pytest.raises(WorkloadError, match=r"models:named: kwargs.key: this process has no variable A_KEY"):
        prepare(workload, tmp_path, batch_sizes=[1], formats=[], seed=0)
    digests = set()
    for place in ("zqS-one", "zqS-two"):
        monkeypatch.setenv("A_KEY", place)
        digests.add(prepare(workload, tmp_path / place, batch_sizes=[1], formats=["onnx"], seed=0).digest)
        for file in (tmp_path / place).iterdir():
            assert b"zqS" not in file.read_bytes()
    assert len(digests) == 1


@pytest.mark.usefixtures("processes")
def test_reading_materials_imports_no_torch(tmp_path: Path) -> None:
    prepare(block(), tmp_path, batch_sizes=[1], formats=["onnx"], seed=0)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mlflow_ngraph.workloads.materials import Source\n"
        "source = Source(Path(sys.argv[1]))\n"
        "source.example(1), source.reference(1), source.onnx(), source.info, source.outputs, source.digest\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_damaged_or_missing_materials_are_said(tmp_path: Path) -> None:
    with pytest.raises(NGraphError, match="prepare the workload first"):
        Source(tmp_path)
    file = tmp_path / "materials.json"
    file.write_text("{")
    with pytest.raises(NGraphError, match="no readable materials"):
        Source(tmp_path)
    file.write_text(json.dumps({"schema": 0}))
    with pytest.raises(NGraphError, match="another version"):
        Source(tmp_path)


def test_every_tensor_is_an_output_however_it_is_kept(tmp_path: Path) -> None:
    workload = factory("Keeps", inputs=[{"shape": ["batch", 4]}])
    prepare(workload, tmp_path, batch_sizes=[1, 2], formats=ALL, seed=0)
    source = Source(tmp_path)
    assert [spec.shape for spec in source.outputs] == [("batch", 4), ("batch", 4), ("batch", 2), ("batch", 4)]
    assert_all_formats_agree(source, (1, 2))
