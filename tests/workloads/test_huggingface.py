"""Networks of Hugging Face's transformers, as a user gives them: built, exported, compiled and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apart import apart

pytestmark = pytest.mark.long

COMPILERS = ("identity", "torchscript", "onnxruntime", "openvino")
"""Those that compile in seconds; benchmarks/huggingface.py has all, and more networks."""


def problems(name: str, directory: Path) -> dict[str, str | None]:
    """What is wrong with each compiler's engine; and how many outputs the model has."""
    from mlflow_ngraph import parity, torchvision_hook
    from mlflow_ngraph.compilers.base import Target, Workbench
    from mlflow_ngraph.compilers.registry import create as compiler_named
    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.materials import Source
    from mlflow_ngraph.workloads.preparing import prepare
    from mlflow_ngraph.workloads.registry import create
    from tests.workloads.huggingface import INPUTS

    torchvision_hook.install()  # transformers imports torchvision wherever it is installed
    options = {"inputs": {key: dict(entry) for key, entry in INPUTS[name].items()}}
    workload = create(WorkloadRef("torch", f"tests.workloads.huggingface:{name}", options), Init())
    materials = directory / "materials"
    prepare(workload, materials, batch_sizes=[2], formats=("module", "onnx"), seed=0)
    source, target = Source(materials), Target(threads=1)
    found: dict[str, str | None] = {"outputs": str(len(source.outputs))}
    for compiler in COMPILERS:
        built = directory / compiler
        built.mkdir()
        compiler_named(compiler).compile(source, [2], target, built, Workbench(directory / f"{compiler}-work"))
        engine = compiler_named(compiler).load(built, 2, target)
        invocation = engine.bind(source.example(2))
        invocation.call()
        found[compiler] = parity.problem(parity.compare(invocation.outputs(), source.reference(2)), "fp32")
        engine.close()
    return found


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(
    ("name", "outputs"),
    [
        ("bert", 2),
        ("clip", 4 + 2 * 2),
        ("llama_cached", 1 + 2 * 2),
        ("t5", 2 + 2 * 2 * 2),
    ],
)
def test_every_tensor_that_a_network_returns_comes_out_of_every_engine(name: str, outputs: int, tmp_path: Path) -> None:
    assert apart("huggingface", problems, name, tmp_path) == {"outputs": str(outputs), **dict.fromkeys(COMPILERS)}
