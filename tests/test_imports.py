"""Who may import whom, and what must not be imported at all before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import mlflow_ngraph
from tests.support.sources import PACKAGES

pytestmark = pytest.mark.long

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
    verbs = ("study list", "info compilers", "info workloads", "info devices", "doctor", "benchmark smoke --dry-run")
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
    for name in mlflow_ngraph.__all__:
        assert getattr(mlflow_ngraph, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'run_studies'"):
        _ = mlflow_ngraph.run_studies


def _imported(statement: str) -> list[str]:
    """The heavy packages that a statement brings into a fresh interpreter."""
    program = f"import sys\n{statement}\nprint('|', *[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.rpartition("|")[2].split()


def _written(file: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """What a file imports, and pairs of what it imports as a name and the attributes that it takes of that."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported, names = set[str](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.add(alias.name)
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                imported |= {node.module, f"{node.module}.{alias.name}"}
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    chains = {
        (names[root], ".".join(attributes))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        for root, *attributes in [_chain(node)]
        if root in names
    }
    return imported, chains


def _chain(node: ast.expr) -> list[str]:
    """A name and the attributes behind it; nothing that has a name where the chain begins with something else."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *attributes]


@cache
def _is_submodule(name: str) -> bool:
    """Whether a file or folder is where a module of this name would be; imports nothing."""
    package, *parts = name.split(".")
    with suppress(ImportError, ValueError):
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            path = Path(place, *parts)
            if path.is_dir() or any(path.parent.glob(f"{path.name}.*")):
                return True
    return False


@pytest.mark.usefixtures("processes")
def test_every_module_that_is_used_is_imported() -> None:
    """That of a package which some other file imports may be there when that file came first, and only then."""
    used: dict[str, dict[str, set[str]]] = {}
    places: dict[str, list[str]] = {}
    for file in sorted(file for package in PACKAGES for file in package.rglob("*.py")):
        imported, chains = _written(file)
        for module, attributes in sorted(chains):
            parts = attributes.split(".")
            for end in range(1, len(parts) + 1):
                name = f"{module}.{'.'.join(parts[:end])}"
                if _is_submodule(name) and not any(f"{other}.".startswith(f"{name}.") for other in imported):
                    used.setdefault(module.partition(".")[0], {}).setdefault(module, set()).add(name)
                    places.setdefault(name, []).append(str(file))
    assert used, "the rule finds nothing to look at"
    assert {name: places[name] for modules in used.values() for name in _absent(modules)} == {}


def _absent(modules: dict[str, set[str]]) -> list[str]:
    """Those submodules, given by what they belong to, that are not there when that alone has been imported."""
    program = _ATTRIBUTES.format(modules=sorted((module, sorted(names)) for module, names in modules.items()))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [line.removeprefix("missing ") for line in found.stdout.splitlines() if line.startswith("missing ")]


_ATTRIBUTES = """
from importlib import import_module
for module, names in {modules!r}:
    try:
        package = import_module(module)
    except ImportError:
        continue  # of a device that this is not
    for name in names:
        value = package
        for part in name.removeprefix(module + ".").split("."):
            value = getattr(value, part, None)
        if value is None:
            print("missing", name)
"""
