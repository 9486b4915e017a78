"""The checks with other Pythons and other versions of MLflow than those of the environment that make makes.

    nox --list                     what there is
    nox -s check-3.12              make check with Python 3.12
    nox -s 'mlflow(oldest)'        make check with the oldest MLflow that is supported
    nox -s check-3.12 -- lint      another target of the Makefile
    nox -s mutants                 do the tests notice small changes of the formulas?

Pythons, versions of MLflow and what is installed come from pyproject.toml. Interpreters that are missing are skipped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.2.9"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
PACKAGE = PROJECT["project"]["name"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
TORCH_EXTRA, TORCH = "torch-release", "torch"
WITHOUT_TORCH = "onnx-types"
"""What torch's tools bring otherwise."""


@nox.session(python=PYTHONS)
def check(session: nox.Session) -> None:
    """``make check`` with another Python, or the targets of the Makefile that are named behind ``--``."""
    install(session)
    run(session)


@nox.session
@nox.parametrize("mlflow", ["oldest", "newest"], ids=["oldest", "newest"])
def mlflow(session: nox.Session, mlflow: str) -> None:
    """The same with the oldest and with the newest MLflow that is supported, and the Python that runs nox."""
    wanted = f"mlflow=={oldest('mlflow')}.*" if mlflow == "oldest" else "mlflow"
    install(session, "--upgrade", "--upgrade-strategy=only-if-needed", wanted)
    session.run("python", "-c", "import mlflow; print('== MLflow', mlflow.__version__)")
    run(session)


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Change the statistics and the derivation of figures in small ways, and list the changes that no quick test notices.

    Which modules, by which tests, is in pyproject.toml. Behind ``--``: names of mutants to try (again).
    """
    install(session, "mutmut>=3.8,<4")
    session.run("mutmut", "run", *session.posargs)
    session.run("mutmut", "results")


def install(session: nox.Session, *more: str) -> None:
    """The package with its plugins and the compilers of device xeon, as make does; without torch where only builds with CUDA are found.

    Parameters
    ----------
    more: further arguments of pip.
    """
    (xeon,) = (Requirement(text) for text in EXTRAS["xeon"])
    extras = {*xeon.extras, "dev"}
    release = next(text for text in EXTRAS[TORCH_EXTRA] if Requirement(text).name == TORCH and "==" in text)
    if has_cpu_build(session, release):
        session.install(release)  # first, by itself: pip then keeps this build instead of choosing again
    else:
        extras = extras - {TORCH_EXTRA} | {WITHOUT_TORCH}
        session.warn(
            f"Python {python_of(session)} has no build of torch without CUDA here: what needs torch is left out "
            "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS names a place that has one)"
        )
    plugins = [
        word for file in sorted(Path("plugins").glob("*/pyproject.toml")) for word in ("--editable", f"./{file.parent}")
    ]
    session.install("--editable", f".[{','.join(sorted(extras))}]", *plugins, *more)


def run(session: nox.Session) -> None:
    """Targets of the Makefile, which takes the session's environment for its own and installs nothing into it."""
    environment = Path(session.virtualenv.location)
    (environment / ".installed").touch()
    targets = session.posargs or ["check"]
    settings = [f"VENV={os.path.relpath(environment)}"]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python_of(session) != here:
        # Each Python gets other versions of NumPy and pandas, whose types differ where their behaviour does not.
        session.log(f"types are checked with Python {here}, which runs nox, and left out here")
        settings.append("MYPY=true")
    session.run("make", *settings, *targets, external=True, env={"PYTHON": None, "PYTHONPATH": None})


def has_cpu_build(session: nox.Session, release: str) -> bool:
    """Whether pip would install a build of torch that brings no CUDA; downloads nothing but its description.

    Parameters
    ----------
    release: the requirement, with its version.
    """
    asked = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", release)
    said = session.run("python", "-m", "pip", *asked, silent=True, success_codes=[0, 1], stderr=None)
    try:
        (found,) = json.loads(said)["install"]
    except (TypeError, ValueError):  # pip found none at all
        return False
    needs = [Requirement(text) for text in found["metadata"].get("requires_dist", ())]
    needed = [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    return not any(name.startswith(("nvidia-", "cuda-")) for name in needed)


def oldest(name: str) -> str:
    """The lower bound of a dependency.

    Parameters
    ----------
    name: of the distribution.
    """
    required = (Requirement(text) for text in PROJECT["project"]["dependencies"])
    return next(
        bound.version for one in required if one.name == name for bound in one.specifier if bound.operator == ">="
    )


def python_of(session: nox.Session) -> str:
    """The version of a session's Python."""
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    return session.run("python", "-c", code, silent=True).strip()
