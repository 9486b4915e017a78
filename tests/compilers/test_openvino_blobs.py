"""Compiled blobs: imported as they were compiled, or not at all, and never silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Build, Engine, Precision, Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.spec import FILE
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.materials import Source
from tests.support.closeness import assert_close
from tests.support.installed import needs

pytestmark = needs("openvino")


ONE = Target(threads=1)


def compiled(source: Source, directory: Path, batches: list[int], target: Target = ONE, **flags: object) -> Build:
    return create("openvino", flags).compile(source, batches, target, directory, Workbench(directory / "work"))


def assert_right(engine: Engine, source: Source, batch: int) -> None:
    invocation = engine.bind(source.example(batch))
    invocation.call()
    assert_close(invocation.outputs()[0], source.reference(batch)[0], rtol=1e-3, atol=1e-5)


def pretend(directory: Path, maker: str) -> None:
    """Let the engine say that something else made its blobs."""
    content = json.loads((directory / FILE).read_text())
    content["facts"]["blob_made_by"] = maker
    (directory / FILE).write_text(json.dumps(content))


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("save", "names"),
    [
        ("ir", ["model.bin", "model.xml"]),
        ("blob", ["model-b1.blob", "model-b3.blob"]),
        ("both", ["model-b1.blob", "model-b3.blob", "model.bin", "model.xml"]),
    ],
)
def test_an_engine_consists_of_what_was_asked_for(cnn: Source, tmp_path: Path, save: str, names: list[str]) -> None:
    build = compiled(cnn, tmp_path, [1, 3], save=save)
    assert files(tmp_path) == sorted([FILE, *names])
    assert ("isa" in build.requires) == (save != "ir")
    for batch in (1, 3):
        engine = create("openvino", {"save": save}).load(tmp_path, batch, ONE)
        assert engine.flags["loaded_from"] == ("ir" if save == "ir" else "blob")
        assert engine.flags["blob_refused"] is None
        assert_right(engine, cnn, batch)


def test_a_free_batch_size_needs_one_blob(cnn: Source, tmp_path: Path) -> None:
    compiled(cnn, tmp_path, [1, 3], save="blob", dynamic_batch=True)
    assert files(tmp_path) == ["model.blob", FILE]
    for batch in (1, 3):
        assert_right(create("openvino", {"save": "blob", "dynamic_batch": True}).load(tmp_path, batch, ONE), cnn, batch)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_blob_is_imported_in_its_precision(cnn: Source, tmp_path: Path, precision: Precision) -> None:
    target = Target(threads=2, precision=precision)
    try:
        compiled(cnn, tmp_path, [1], target, save="blob")
    except UnsupportedError as error:
        pytest.skip(str(error))
    engine = create("openvino", {"save": "blob"}).load(tmp_path, 1, target)
    assert engine.precision == precision
    assert engine.flags["inference_precision"] == {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[precision]
    assert engine.flags["threads"] == 2


@pytest.mark.parametrize("what", ["maker", "content", "file"])
def test_a_blob_that_cannot_be_used_here_is_replaced_visibly_or_refused(cnn: Source, tmp_path: Path, what: str) -> None:
    compiled(cnn, tmp_path, [1], save="both")
    blob = tmp_path / "model-b1.blob"
    if what == "maker":
        pretend(tmp_path, "2020.1 on another processor")
    elif what == "content":
        blob.write_bytes(b"nonsense" * 100)
    else:
        blob.unlink()
    engine = create("openvino", {"save": "both"}).load(tmp_path, 1, ONE)
    assert engine.flags["loaded_from"] == "ir"
    assert engine.flags["blob_refused"]
    assert "\n" not in str(engine.flags["blob_refused"])
    assert_right(engine, cnn, 1)
    with pytest.raises(CompileError, match="cannot be used here"):
        create("openvino", {"save": "blob"}).load(tmp_path, 1, ONE)


def test_who_made_a_blob_and_who_refuses_it_are_named(cnn: Source, tmp_path: Path) -> None:
    import openvino

    compiled(cnn, tmp_path, [1], save="blob")
    pretend(tmp_path, "2020.1 on another processor")
    with pytest.raises(CompileError, match=r"2020\.1 on another processor") as caught:
        create("openvino", {"save": "blob"}).load(tmp_path, 1, ONE)
    assert openvino.get_version() in str(caught.value)
