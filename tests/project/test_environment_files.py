"""The files that describe the project to MLflow, conda, pip and setuptools agree with each other and with the code."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from mlflow.projects._project_spec import load_project
from mlflow.utils.environment import _PythonEnv
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from rattler import MatchSpec

from mlflow_ngraph import __version__
from mlflow_ngraph.cli.compare import compare
from mlflow_ngraph.cli.project import project

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = "mlflow-ngraph"
DEVICES = ("xeon", "gpu", "orin")
PLUGINS = sorted(path.name for path in (ROOT / "plugins").iterdir() if path.is_dir() and path.name != "__pycache__")
PARAMETERS = {
    "device", "study", "workloads", "compilers", "batch_sizes", "precision", "repetitions", "threads", "mode", "purpose", "objective", "within", "cache", "resume",
    "when_busy",
}  # fmt: skip


@cache
def pyproject(folder: str = ".") -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def extras() -> dict[str, list[Requirement]]:
    said = pyproject()["project"]["optional-dependencies"]
    return {name: [Requirement(text) for text in texts] for name, texts in said.items()}


def requirements() -> list[tuple[str, Requirement]]:
    """Those on other packages, with the extra that names them."""
    said = {"": [Requirement(text) for text in pyproject()["project"]["dependencies"]], **extras()}
    return [(name, one) for name, found in said.items() for one in found if one.name != PACKAGE]


def with_what_they_name(*names: str) -> set[str]:
    """Extras, and those that they are made of."""
    inner = [extra for name in names for one in extras()[name] if one.name == PACKAGE for extra in one.extras]
    return {*names, *(with_what_they_name(*inner) if inner else ())}


def entry_points(folder: Path) -> dict[str, Any]:
    return load_project(str(folder))._entry_points


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_the_root_project_has_its_entry_points() -> None:
    found = entry_points(ROOT)
    assert set(found) == {"benchmark", "compare", *DEVICES}
    assert set(found["benchmark"].parameters) == PARAMETERS
    for device in DEVICES:
        assert set(found[device].parameters) == PARAMETERS - {"device"}
        assert f"--device {device} " in found[device].command


@pytest.mark.parametrize("folder", [ROOT, *(ROOT / "entrypoints" / device for device in DEVICES)])
def test_commands_pass_every_parameter_to_an_option_that_exists(folder: Path) -> None:
    for name, entry in entry_points(folder).items():
        command = entry.compute_command({}, None)
        called = compare if name == "compare" else project
        assert set(re.findall(r"--[a-z-]+", command)) <= options(called)
        for parameter in entry.parameters:
            assert f"--{parameter.replace('_', '-')} " in command
        # The process that MLflow started must become the study: only then does it hear of MLflow's end.
        assert re.search(r"^(cd \.\./\.\. && )?exec python -m mlflow_ngraph (project|compare) ", command)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sub_project_runs_in_place_with_the_environment_of_its_device(device: str) -> None:
    found = load_project(str(ROOT / "entrypoints" / device))
    assert Path(found.env_config_path).resolve() == ROOT / "conda" / f"{device}.yaml"
    assert f"--in-place --device {device} " in found._entry_points["main"].command
    assert set(found._entry_points["main"].parameters) == PARAMETERS - {"device"}


def test_every_parameter_is_explained() -> None:
    text = (ROOT / "MLproject").read_text()
    for name, entry in entry_points(ROOT).items():
        for parameter in entry.parameters:
            assert re.search(rf"^ *#.*\b{parameter}\b", text, re.MULTILINE), (name, parameter)


def test_a_value_that_a_shell_would_read_stays_one_argument() -> None:
    command = entry_points(ROOT)["benchmark"].compute_command({"study": "a b; rm -rf $HOME"}, None)
    assert "--study 'a b; rm -rf $HOME'" in command


@pytest.mark.parametrize("device", DEVICES)
def test_the_environment_of_a_device_parses_and_installs_this_package(device: str) -> None:
    content = yaml.safe_load((ROOT / "conda" / f"{device}.yaml").read_text())
    assert content["channels"] == ["conda-forge"]
    conda = [line for line in content["dependencies"] if isinstance(line, str)]
    names = {MatchSpec(line).name.normalized for line in conda}
    assert {"python", "pip"} <= names
    (pip,) = [line["pip"] for line in content["dependencies"] if isinstance(line, dict)]
    assert pip == [f"./checkout[{device}]", *(f"./checkout/plugins/{name}" for name in PLUGINS)]
    assert device in extras()
    for folder in (ROOT / "conda", ROOT / "entrypoints" / device):
        assert (folder / "checkout").resolve() == ROOT


@pytest.mark.parametrize("device", ["xeon", "gpu"])
def test_uv_and_virtualenv_take_the_python_that_runs_mlflow(device: str) -> None:
    # A version in the file would have to be installed, to the last digit, wherever the project runs.
    from mlflow.utils import PYTHON_VERSION

    assert _PythonEnv.from_conda_yaml(str(ROOT / "conda" / f"{device}.yaml")).python == PYTHON_VERSION
    assert _PythonEnv.from_yaml(str(ROOT / "python_env.yaml")).python == PYTHON_VERSION


def test_the_light_environment_is_the_package_alone() -> None:
    assert _PythonEnv.from_yaml(str(ROOT / "python_env.yaml")).dependencies == ["."]


def test_requirements_have_a_lower_and_an_upper_bound_or_are_pinned() -> None:
    for extra, requirement in requirements():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators & {">=", "=="}, f"{requirement} of [{extra}]"


def test_mlflow_3_18_0_is_left_out() -> None:
    (mlflow,) = [requirement for _, requirement in requirements() if requirement.name == "mlflow"]
    assert not mlflow.specifier.contains("3.18.0")
    assert mlflow.specifier.contains("3.17.2")
    assert mlflow.specifier.contains("3.18.1")


def test_what_is_installed_here_is_what_the_extras_ask_for() -> None:
    from importlib.metadata import PackageNotFoundError, version

    wanted = {"", *with_what_they_name("xeon", "dev")}
    assert {"torch", "tvm"} <= wanted
    for extra, requirement in requirements():
        if extra not in wanted:
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            continue
        assert requirement.specifier.contains(found, prereleases=True), f"{requirement} of [{extra}], found {found}"


def test_supported_pythons_are_said_once() -> None:
    said = pyproject()["project"]
    supported = SpecifierSet(said["requires-python"])
    versions = [line.rpartition(" ")[2] for line in said["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert versions == [f"3.{minor}" for minor in range(20) if supported.contains(f"3.{minor}")]


@pytest.mark.parametrize("plugin", [None, *PLUGINS])
def test_what_a_package_imports_it_also_requires(plugin: str | None) -> None:
    required = {canonicalize_name(requirement.name) for _, requirement in requirements()}
    packages, folder = (
        {"mlflow_ngraph", "_typeshed"},
        ROOT / "mlflow_ngraph",
    )  # that one is there for type checkers alone
    if plugin is not None:
        said = pyproject(f"plugins/{plugin}")["project"]
        wanted = [
            *said["dependencies"],
            *(one for found in said.get("optional-dependencies", {}).values() for one in found),
        ]
        required |= {canonicalize_name(Requirement(text).name) for text in wanted}
        folder = ROOT / "plugins" / plugin / f"mlflow_ngraph_{plugin}"
        packages.add(folder.name)
    absent = {"cuda": ["cuda-bindings"], "pynvml": ["nvidia-ml-py"]}
    # Python 3.10 does not see them in packages that do not list what they bring.
    unseen = {"google": ["protobuf"], "tvm": ["apache-tvm"], "tvm_ffi": ["apache-tvm-ffi"]}
    homes = {**absent, **packages_distributions(), **unseen}
    for path in folder.rglob("*.py"):
        for module in imported_modules(path) - packages - sys.stdlib_module_names:
            brought_by = {canonicalize_name(name) for name in homes.get(module, [module])}
            assert brought_by & (required | {"mlflow-skinny"}), f"{path.relative_to(ROOT)} imports {module}"


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("folder", [".", *(f"plugins/{name}" for name in PLUGINS)])
def test_entry_points_are_where_a_package_says(folder: str) -> None:
    said = pyproject(folder)["project"]
    for points in (said.get("scripts", {}), *said["entry-points"].values()):
        for point in points.values():
            module, _, attribute = point.partition(":")
            found = importlib.import_module(module)
            assert not attribute or hasattr(found, attribute), point


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_is_of_the_version_of_the_core(plugin: str) -> None:
    said = pyproject(f"plugins/{plugin}")["project"]
    assert (said["name"], said["version"]) == (f"{PACKAGE}-{plugin}", __version__)
    assert said["requires-python"] == pyproject()["project"]["requires-python"]
    assert f"{PACKAGE}=={__version__}" in said["dependencies"]


def test_extras_name_only_extras_that_exist() -> None:
    for name, found in extras().items():
        for requirement in found:
            if requirement.name == PACKAGE:
                assert requirement.extras, name
                assert requirement.extras <= set(extras()), name


@pytest.mark.usefixtures("processes")
def test_the_metadata_that_is_built_has_every_extra_and_the_version(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = distributions(path=[str(tmp_path)])
    assert found.version == __version__
    assert set(found.metadata.get_all("Provides-Extra") or []) == set(extras())
    assert any(one.startswith("mlflow-ngraph[") and 'extra == "xeon"' in one for one in found.requires or [])


def test_data_files_travel_with_the_package() -> None:
    patterns = pyproject()["tool"]["setuptools"]["package-data"]["mlflow_ngraph"]
    package = ROOT / "mlflow_ngraph"
    travelling = {path for pattern in patterns for path in package.glob(pattern)}
    lying_there = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".pyi")}
    assert lying_there <= travelling
