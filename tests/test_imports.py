"""Who may import whom, and what must not be imported at all before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "timm", "onnx", "onnxruntime", "openvino", "tvm", "mlflow", "pandas", "scipy")
RUNTIMES = {"torch", "timm", "onnx", "onnxruntime", "openvino", "tvm"}


@pytest.mark.usefixtures("processes")
def test_the_import_contracts_hold() -> None:
    found = subprocess.run(["lint-imports", "--no-cache"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "statement", ["import mlflow_ngraph", "import mlflow_ngraph.cli.app", "import mlflow_ngraph.errors"]
)
def test_starting_imports_nothing_heavy(statement: str) -> None:
    assert _imported(statement) == []


@pytest.mark.usefixtures("processes")
def test_planning_imports_no_runtime() -> None:
    modules = ("study", "compilers.registry", "workloads.registry", "devices.registry", "execute.plan", "cli.benchmark")
    assert not set(_imported("\n".join(f"import mlflow_ngraph.{module}" for module in modules))) & RUNTIMES


@pytest.mark.usefixtures("processes")
def test_no_verb_imports_a_runtime() -> None:
    verbs = ("studies", "compilers", "workloads", "devices", "doctor", "benchmark smoke --dry-run")
    program = "\n".join(["from mlflow_ngraph.cli.app import run", *(f"run({verb.split()!r})" for verb in verbs)])
    assert not set(_imported(program)) & RUNTIMES


@pytest.mark.usefixtures("processes")
def test_help_waits_for_nothing_that_takes_long_to_import() -> None:
    imported = set(_imported("from mlflow_ngraph.cli.app import run; run(['--help'])"))
    assert not imported & {
        "mlflow",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "requests",
        "rich",
        "scipy",
        "sqlalchemy",
        "yaml",
    }


def test_every_public_name_is_there() -> None:
    import mlflow_ngraph

    for name in mlflow_ngraph.__all__:
        assert getattr(mlflow_ngraph, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'run_studies'"):
        _ = mlflow_ngraph.run_studies


def _imported(statement: str) -> list[str]:
    """The heavy packages that a statement brings into a fresh interpreter."""
    program = f"import sys\n{statement}\nprint('|', *[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.rpartition("|")[2].split()
