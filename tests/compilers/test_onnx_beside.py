"""ONNX files with weights in other files, and with functions of their own: every compiler runs them, from links as well."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.engines.files import digest_files, link_files
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads import onnx_file
from mlflow_ngraph.workloads.materials import Source
from tests.compilers.test_onnx_files import assert_runs, constant, prepared, value
from tests.support.apart import apart
from tests.support.closeness import assert_close

QUICK = ["identity", "torchscript", "onnxruntime", "openvino"]
FILES = ("weights of it.bin", "sub folder/näme, 1.data", "sub folder/权重")
RNG = np.random.default_rng(0)
SHIFT, SCALE = RNG.standard_normal((2, 8)).astype(np.float32)
MATRICES = RNG.standard_normal((3, 8, 8)).astype(np.float32)


def put_outside(tensor: TensorProto, directory: Path, location: str) -> None:
    """Append a tensor's content to a file, after some bytes that are nobody's."""
    path = directory / location
    path.parent.mkdir(exist_ok=True)
    begin = path.stat().st_size + 16 if path.exists() else 0
    with path.open("ab") as stream:
        stream.write(bytes(begin - stream.tell()) + tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location, begin, len(tensor.raw_data))
    tensor.ClearField("raw_data")


def with_constant(name: str, content: Any, output: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [output], value=constant(name, content))


def written(directory: Path, *, branch: bool) -> Path:
    """A model with all its weights in three files: initializers, a constant's attribute, and one within a branch."""
    directory.mkdir()
    nodes = [with_constant("shift", SHIFT, "shift"), helper.make_node("Add", ["x", "shift"], ["h"])]
    before = ["h", "h0", "h1"]
    nodes.extend(helper.make_node("MatMul", [name, f"w{index}"], [f"h{index}"]) for index, name in enumerate(before))
    if branch:
        inner = [with_constant("scale", SCALE, "scale"), helper.make_node("Mul", ["h2", "scale"], ["scaled"])]
        then = helper.make_graph(inner, "then", [], [value("scaled", [])])
        other = helper.make_graph([helper.make_node("Neg", ["h2"], ["negative"])], "else", [], [value("negative", [])])
        for way in (then, other):
            way.output[0].type.tensor_type.ClearField("shape")
        nodes.append(helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other))
    else:
        nodes.append(helper.make_node("Mul", ["h2", "factor"], ["y"]))
    last = constant("yes", True) if branch else constant("factor", SCALE)
    weights = [constant(f"w{index}", matrix) for index, matrix in enumerate(MATRICES)]
    graph = helper.make_graph(nodes, "graph", [value("x", ["N", 8])], [value("y", ["N", 8])], [*weights, last])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    floats = [tensor for tensor in onnx_file.tensors(model) if tensor.data_type == TensorProto.FLOAT]
    assert len(floats) == 5
    for index, tensor in enumerate(floats):
        put_outside(tensor, directory, FILES[index % len(FILES)])
    onnx.save(model, directory / "net.onnx")
    return directory / "net.onnx"


def expected(x: Any) -> Any:
    return (x + SHIFT) @ MATRICES[0] @ MATRICES[1] @ MATRICES[2] * SCALE


def linked(model: Path, target: Path, link: Callable[[Path, Path], object]) -> Path:
    """The same model in a folder of links."""
    for path in sorted(path for path in model.parent.rglob("*") if path.is_file()):
        name = target / path.relative_to(model.parent)
        name.parent.mkdir(parents=True, exist_ok=True)
        link(path, name)
    return target / model.name


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("branch", [False, True], ids=["plain", "with a branch"])
def test_weights_in_several_files_by_their_offsets(branch: bool, tmp_path: Path) -> None:
    source = prepared(written(tmp_path / "model", branch=branch), tmp_path / "materials", [3])
    shutil.rmtree(tmp_path / "model")
    np.testing.assert_allclose(source.reference(3)[0], expected(source.example(3)[0]), rtol=1e-4, atol=1e-5)
    assert source.materials.reference_by.startswith("onnxruntime" if branch else "torch")
    for compiler in ["onnxruntime", "openvino"] if branch else QUICK:
        assert_runs(source, compiler, tmp_path, [3])


@pytest.mark.parametrize("link", [os.link, lambda path, name: name.symlink_to(path)], ids=["hard links", "symlinks"])
def test_a_model_made_of_links(link: Callable[[Path, Path], object], tmp_path: Path) -> None:
    """As the caches of hubs have it, and this package's own."""
    path = linked(written(tmp_path / "model", branch=False), tmp_path / "links", link)
    source = prepared(path, tmp_path / "materials", [3])
    np.testing.assert_allclose(source.reference(3)[0], expected(source.example(3)[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("compiler", QUICK)
def test_an_engine_whose_files_have_a_second_name(compiler: str, tmp_path: Path) -> None:
    """As those have that are in a cache."""
    source = prepared(written(tmp_path / "model", branch=False), tmp_path / "materials", [3])
    output = apart(compiler, output_after_linking, compiler, source.directory, tmp_path)
    assert_close(output, source.reference(3)[0], rtol=1e-4, atol=1e-5)


def output_after_linking(compiler: str, materials: Path, directory: Path) -> Any:
    kind = COMPILERS.get(compiler)
    adapter, target, source = kind(kind.flags_type()), Target(threads=1), Source(materials)
    made, kept = directory / "engine", directory / "kept"
    made.mkdir()
    adapter.compile(source, [3], target, made, Workbench(directory / "work"))
    link_files(made, kept, digest_files(made))
    engine = adapter.load(kept, 3, target)
    bound = engine.bind(source.example(3))
    bound.call()
    (output,) = bound.outputs()
    engine.close()
    return output


def _missing(directory: Path) -> None:
    (directory / FILES[1]).unlink()


def _cut_short(directory: Path) -> None:
    os.truncate(directory / FILES[0], 20)


def _pointer(directory: Path) -> None:
    (directory / FILES[0]).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 320\n")


def _outside(directory: Path) -> None:
    _with_entry(directory, "location", "../net.onnx")


def _no_number(directory: Path) -> None:
    _with_entry(directory, "offset", "-8")


def _with_entry(directory: Path, key: str, content: str) -> None:
    model = onnx.load(directory / "net.onnx", load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = content
    (directory / "net.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_missing, r"keeps weights in sub folder/näme, 1.data, which is not beside it: put that file there, too$"),
        (
            _cut_short,
            r"weights of it.bin is cut short: it has 20 bytes, and net.onnx wants \d+: fetch or export it again$",
        ),
        (
            _pointer,
            r"weights of it.bin is no file of weights but a Git LFS pointer to one: fetch it with `git lfs pull`",
        ),
        (_outside, r"keeps weights outside its own directory, in '../net.onnx'"),
        (_no_number, r"it does not say which part of .* is 'w0'$"),
    ],
)
def test_weights_that_are_not_there(harm: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model", branch=False)
    harm(path.parent)
    with pytest.raises(WorkloadError, match=message) as caught:
        onnx_file.read(path)
    assert "\n" not in str(caught.value)


def by_reference(name: str, attribute: str) -> AttributeProto:
    return AttributeProto(name=name, ref_attr_name=attribute, type=AttributeProto.FLOAT)


@pytest.fixture(scope="module")
def with_functions(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A function that calls another, with attributes handed down by reference, and a default."""
    directory = tmp_path_factory.mktemp("functions")
    add = helper.make_node("Constant", [], ["c"])
    add.attribute.append(by_reference("value_float", "by"))
    opset, own = helper.make_opsetid("", 18), helper.make_opsetid("own.functions", 1)
    nodes = [add, helper.make_node("Add", ["x", "c"], ["y"])]
    shift = helper.make_function(own.domain, "Shift", ["x"], ["y"], nodes, [opset], ["by"])
    first = helper.make_node("Shift", ["x"], ["m"], domain=own.domain)
    first.attribute.append(by_reference("by", "amount"))
    nodes = [
        first,
        helper.make_node("Shift", ["m"], ["n"], domain=own.domain, by=0.25),
        helper.make_node("Mul", ["n", "n"], ["y"]),
    ]
    twice = helper.make_function(
        own.domain, "Twice", ["x"], ["y"], nodes, [opset, own], [], [helper.make_attribute("amount", -2.0)]
    )
    calls = [
        helper.make_node("Twice", ["x"], ["t"], domain=own.domain, amount=1.5),
        helper.make_node("Twice", ["t"], ["y"], domain=own.domain),
    ]
    graph = helper.make_graph(calls, "graph", [value("x", ["N", 5])], [value("y", ["N", 5])])
    model = helper.make_model(graph, opset_imports=[opset, own], functions=[shift, twice], ir_version=9)
    onnx.save(model, directory / "functions.onnx")
    return prepared(directory / "functions.onnx", directory / "materials", [3])


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("compiler", QUICK)
def test_functions_of_the_model_s_own(compiler: str, with_functions: Source, tmp_path: Path) -> None:
    x = with_functions.example(3)[0].astype(np.float64)
    np.testing.assert_allclose(with_functions.reference(3)[0], ((x + 1.75) ** 2 - 1.75) ** 2, rtol=1e-5)
    assert with_functions.materials.reference_by.startswith("torch")
    assert_runs(with_functions, compiler, tmp_path, [3])
