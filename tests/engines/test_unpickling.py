"""Nothing that comes from elsewhere is unpickled: the modules that could are known by name, and none of them reads packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.engines import compatibility
from tests.support.sources import PACKAGES

PICKLING = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BETWEEN_PARENT_AND_CHILD = {"mlflow_ngraph_tvm/pool.py", "mlflow_ngraph_tvm/worker.py", "mlflow_ngraph_tvm/tuning.py"}
"""They pickle what they send through a pipe to a process that they have started."""


def modules() -> Iterator[tuple[str, str]]:
    paths = [(package, path) for package in PACKAGES for path in package.rglob("*.py")]
    assert len(paths) > 100
    for package, path in paths:
        yield path.relative_to(package.parent).as_posix(), path.read_text()


def test_pickles_travel_between_parent_and_child_only() -> None:
    found = set()
    for name, text in modules():
        if not any(word in text for word in PICKLING):
            continue
        for node in ast.walk(ast.parse(text)):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if PICKLING & {module.partition(".")[0] for module in imported}:
                found.add(name)
    assert found == BETWEEN_PARENT_AND_CHILD


OF_A_FACTORY = "mlflow_ngraph/workloads/writing_out.py", "torch.load(file, weights_only=False)"
"""A module of the user's own, for which a study names a factory: code, as every factory is."""


def test_arrays_and_weights_are_read_without_pickles() -> None:
    for name, text in modules():
        if ".load" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "load":
                continue
            called = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if called in ("np.load", "numpy.load"):
                assert options.get("allow_pickle", "False") == "False", f"{name}: {ast.unparse(node)}"
            if called == "torch.load" and (name, ast.unparse(node)) != OF_A_FACTORY:
                assert options.get("weights_only") == "True", f"{name}: {ast.unparse(node)}"


@pytest.mark.parametrize("name", sorted(COMPILERS.names()))
def test_an_engine_that_is_a_program_is_called_one(name: str) -> None:
    data = {"onnxruntime", "openvino"}
    known = {"tvm", "torchscript", "torch-compile", "identity", "tensorrt", *data}
    if name in known:
        assert bool(compatibility.program(name)) is (name not in data)


def test_an_unknown_compiler_makes_programs() -> None:
    assert compatibility.program("nobody") == "unknown to this machine"
