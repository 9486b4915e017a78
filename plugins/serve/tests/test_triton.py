"""Engines as models of a Triton repository; the configuration is parsed, and the files are the engine's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # type: ignore[import-untyped]

from mlflow_ngraph.engines.package import Package, open_package
from mlflow_ngraph.errors import UnsupportedError, UsageError
from mlflow_ngraph_serve.planning import Wishes
from mlflow_ngraph_serve.triton import export
from tests.support.logged import Logged

KIND = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": KIND.TYPE_STRING, "int": KIND.TYPE_INT64, "bool": KIND.TYPE_BOOL}
MESSAGES: dict[str, dict[str, str]] = {
    # The fields of Triton's ModelConfig that an export may have: "*" for repeated ones, capitals for messages.
    "ModelConfig": {
        "name": "string", "platform": "string", "backend": "string", "max_batch_size": "int",
        "default_model_filename": "string", "input": "*Tensor", "output": "*Tensor", "instance_group": "*Group",
        "dynamic_batching": "Batching", "optimization": "Optimization", "parameters": "*Parameter",
    },
    "Tensor": {"name": "string", "data_type": "DataType", "dims": "*int", "reshape": "Reshape"},
    "Reshape": {"shape": "*int"},
    "Group": {"count": "int", "kind": "Kind"},
    "Batching": {"preferred_batch_size": "*int", "max_queue_delay_microseconds": "int"},
    "Parameter": {"key": "string", "value": "Text"},
    "Text": {"string_value": "string"},
    "Optimization": {"graph": "Graph", "cuda": "Cuda", "execution_accelerators": "Accelerators"},
    "Graph": {"level": "int"},
    "Cuda": {"graphs": "bool"},
    "Accelerators": {"gpu_execution_accelerator": "*Accelerator"},
    "Accelerator": {"name": "string", "parameters": "*Pair"},
    "Pair": {"key": "string", "value": "string"},
}  # fmt: skip
ENUMS = {
    "DataType": ("TYPE_INVALID", "TYPE_FP32", "TYPE_INT64", "TYPE_BOOL"),
    "Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU"),
}


def parse(text: str) -> Any:
    """The message that a configuration is, by a schema with the names of Triton's fields."""
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package="t", syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, described) in enumerate(fields.items(), 1):
            kind = described.removeprefix("*")
            label = KIND.LABEL_OPTIONAL if kind == described else KIND.LABEL_REPEATED
            added = message.field.add(name=field, number=number, label=label)
            if kind in SCALARS:
                added.type = SCALARS[kind]
            else:
                added.type = KIND.TYPE_ENUM if kind in ENUMS else KIND.TYPE_MESSAGE
                added.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    config = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))()
    text_format.Parse(text, config)
    return config


def enum(message: Any, field: str) -> str:
    return str(message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(message, field)].name)


def parameters(config: Any) -> dict[str, str]:
    return {entry.key: entry.value.string_value for entry in config.parameters}


def exported(package: Package, target: Path, **how: Any) -> tuple[Any, Any]:
    made = export(package, target, "block", **how)
    return made, parse((made.directory / "config.pbtxt").read_text())


def altered(package: Package, **changes: Any) -> Package:
    """A package of which something is said otherwise; changes are those of parts of its manifest, by their names."""
    manifest = package.manifest
    parts = {name: getattr(manifest, name).model_copy(update=update) for name, update in changes.items()}
    return Package(package.directory, manifest.model_copy(update=parts), package.digest)


def test_onnx_runtime(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.packages["onnxruntime"])
    made, config = exported(package, tmp_path / "models")
    assert (config.name, config.backend, config.max_batch_size) == ("block", "onnxruntime", made.max_batch_size)
    (given,), (wanted,) = config.input, config.output
    assert (given.name, enum(given, "data_type"), list(given.dims)) == ("input", "TYPE_FP32", [10, 16])
    assert (wanted.name, list(wanted.dims)) == ("output", [10, 16])
    assert (config.instance_group[0].count, enum(config.instance_group[0], "kind")) == (1, "KIND_CPU")
    assert parameters(config) == {"intra_op_thread_count": "2", "inter_op_thread_count": "1"}
    # What was optimised ahead of time is not optimised again.
    assert config.optimization.graph.level == 2
    assert any("ONNX Runtime" in note for note in made.notes)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(made.directory / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {"input": np.zeros((3, 10, 16), np.float32)})[0].shape == (3, 10, 16)


def test_openvino(logged: Logged, tmp_path: Path) -> None:
    made, config = exported(open_package(logged.packages["openvino"]), tmp_path)
    assert config.backend == "openvino"
    assert sorted(path.name for path in (made.directory / "1").iterdir()) == ["model.bin", "model.xml"]
    said = parameters(config)
    assert (said["ENABLE_BATCH_PADDING"], said["INFERENCE_NUM_THREADS"]) == ("YES", "2")
    assert any("bf16" in note for note in made.notes)
    ov = pytest.importorskip("openvino")
    assert ov.Core().read_model(str(made.directory / "1" / "model.xml")).input().get_any_name() == "input"


def with_figures(package: Package, throughputs: dict[int, float]) -> Package:
    """A package with these figures, measured on this machine."""
    figures = [
        one.model_copy(
            update={
                "verdict": "ok",
                "metrics": {
                    "throughput": throughputs[one.batch],
                    "latency_p50_ms": 1000 * one.batch / throughputs[one.batch],
                    "latency_p99_ms": 1100 * one.batch / throughputs[one.batch],
                },
            }
        )
        for one in package.manifest.figures
    ]
    manifest = package.manifest.model_copy(update={"figures": figures})
    return Package(package.directory, manifest, package.digest)


def test_batches_follow_from_the_figures(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.packages["onnxruntime"])
    made, config = exported(with_figures(package, {1: 100.0, 4: 200.0}), tmp_path / "steep")
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (4, [4])
    # Four samples take 40 ms one by one and 20 ms together; nobody waits longer than half of that.
    assert config.dynamic_batching.max_queue_delay_microseconds == 10_000
    assert made.preferred_batch_sizes == (4,)
    _, config = exported(with_figures(package, {1: 100.0, 4: 100.0}), tmp_path / "flat")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (1, False)
    steep = with_figures(package, {1: 100.0, 4: 200.0})
    _, config = exported(steep, tmp_path / "bound", wishes=Wishes(max_p99_ms=30))
    assert config.max_batch_size == 1


def test_a_batch_size_of_its_own_is_not_joined(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.packages["onnxruntime"])
    single = Package(logged.copy("onnxruntime", tmp_path / "copy"), package.manifest, package.digest)
    facts = {**package.manifest.spec.facts, "shared": False, "dynamic_batch": False}
    single = altered(single, spec={"facts": facts})
    model = single.engine / "model.onnx"
    model.rename(single.engine / "model-b4.onnx")
    files = {path.replace("model.onnx", "model-b4.onnx"): digest for path, digest in package.manifest.files.items()} | {
        "engine/model-b1.onnx": "0" * 64
    }
    single = Package(single.directory, single.manifest.model_copy(update={"files": files}), package.digest)
    made, config = exported(single, tmp_path / "models", batch=4)
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [4, 10, 16])
    assert config.default_model_filename == "model-b4.onnx"
    assert not (made.directory / "1" / "model-b1.onnx").exists()
    with pytest.raises(UsageError, match="batch sizes 1, 4, not 3"):
        export(single, tmp_path / "models", "other", batch=3)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("tvm", "no backend for TVM's libraries"),
        ("torch-compile", "AOTInductor is beta"),
        ("identity", "live PyTorch model"),
        ("somebody-elses", "none of its backends"),
    ],
)
def test_what_triton_cannot_serve_is_refused(logged: Logged, tmp_path: Path, compiler: str, said: str) -> None:
    package = altered(open_package(logged.packages["openvino"]), spec={"compiler": compiler})
    with pytest.raises(UnsupportedError, match=said):
        export(package, tmp_path, "block")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("compiler", "flags", "said"),
    [
        ("openvino", {"save": "blob"}, "compiled blob: use save=ir"),
        ("onnxruntime", {"save_format": "ort"}, "only, not ort"),
    ],
)
def test_formats_that_triton_does_not_know_are_refused(
    logged: Logged, tmp_path: Path, compiler: str, flags: dict[str, str], said: str
) -> None:
    package = open_package(logged.packages[compiler])
    changed = altered(package, spec={"asked": {**package.manifest.spec.asked, **flags}})
    with pytest.raises(UnsupportedError, match=said):
        export(changed, tmp_path, "block")


def built(logged: Logged, directory: Path, compiler: str, facts: dict[str, Any], files: list[str]) -> Package:
    """A package that says it is of a compiler that cannot compile here, with files that such engines have."""
    package = open_package(logged.packages["openvino"])
    manifest = package.manifest
    (directory / "engine").mkdir(parents=True)
    for name in files:
        (directory / "engine" / name).write_text(json.dumps({"outputs": ["plan_output"], "nodes": 3}))
    target = replace(manifest.spec.target, accelerator="cuda")
    said = {"compiler": compiler, "target": target, "asked": {"cuda_graph": True}, "facts": facts}
    return altered(Package(directory, manifest, package.digest), spec=said)


def test_tensorrt(logged: Logged, tmp_path: Path) -> None:
    facts = {"dynamic_batch": True, "version_compatible": True}
    package = built(logged, tmp_path / "package", "tensorrt", facts, ["model.plan", "model.json"])
    made, config = exported(package, tmp_path / "models")
    assert (config.platform, config.backend) == ("tensorrt_plan", "tensorrt")
    assert config.output[0].name == "plan_output"
    assert enum(config.instance_group[0], "kind") == "KIND_GPU"
    assert config.optimization.cuda.graphs
    assert any("version-compatible=true" in note for note in made.notes)
    assert [path.name for path in (made.directory / "1").iterdir()] == ["model.plan"]


def test_torchscript(logged: Logged, tmp_path: Path) -> None:
    package = built(logged, tmp_path / "package", "torchscript", {"accelerator": "cuda"}, ["model.pt"])
    _, config = exported(package, tmp_path / "models", batch=4)
    assert (config.platform, config.backend, config.max_batch_size) == ("pytorch_libtorch", "pytorch", 0)
    assert (config.input[0].name, list(config.input[0].dims)) == ("INPUT__0", [4, 10, 16])
    assert config.output[0].name == "OUTPUT__0"


def test_an_existing_model_is_left_alone(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.packages["openvino"])
    export(package, tmp_path, "block")
    with pytest.raises(UsageError, match="exists: remove it, or give another --name"):
        export(package, tmp_path, "block")
    assert [path.name for path in tmp_path.iterdir()] == ["block"]


def test_no_model_is_written_into_a_package(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.copy("openvino", tmp_path / "package"))
    (tmp_path / "link").symlink_to(package.directory)
    for repository in (package.directory, package.directory / "engine", package.directory / "new", tmp_path / "link"):
        with pytest.raises(UsageError, match="is inside of the engine package"):
            export(package, repository, "block")
    open_package(package.directory)


def test_the_verb_says_where_and_what_to_know(
    logged: Logged, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from mlflow_ngraph.cli.app import run

    call: Callable[..., int] = lambda *options: run(  # noqa: E731
        ["engine", "export-triton", str(logged.packages["openvino"]), str(tmp_path / "models"), *options]
    )
    assert call("--name", "a") == 0
    said = capfd.readouterr()
    assert said.out == f"{tmp_path / 'models' / 'a'}\n"
    assert said.err.startswith("note: ")
    assert call("--name", "b", "--json") == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["backend"], document["directory"]) == ("openvino", str(tmp_path / "models" / "b"))
