"""``make`` makes an environment with an interpreter that can have it, and says so where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a blank in its name; pip finds nothing to install there."""
    found = tmp_path / "with space"
    found.mkdir()
    shutil.copy(ROOT / "Makefile", found)
    (found / "pyproject.toml").write_text('torch-release = ["mlflow-ngraph[torch]", "torch==2.13.0"]\n')
    return found


def make(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PIP_NO_INDEX": "1"}
    env.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.run(["make", *arguments], cwd=place, env=env, capture_output=True, text=True, check=False)


def old_python(path: Path) -> Path:
    """An interpreter that says it is too old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.18;; *) exit 1;; esac\n')
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("processes")
def test_an_interpreter_that_is_too_old_is_named(place: Path) -> None:
    done = make(place, "environment", f"PYTHON={old_python(place / 'old python')}")
    assert done.returncode != 0
    assert f"{place / 'old python'} is Python 3.9.18: Python 3.10 to 3.13 is needed" in done.stderr
    assert not (place / ".venv").exists()


@pytest.mark.usefixtures("processes")
def test_an_environment_of_another_interpreter_is_made_anew(place: Path) -> None:
    old_python(place / ".venv/bin/python")
    (place / ".venv/pyvenv.cfg").touch()
    (place / ".venv/.installed").touch()
    done = make(place, "environment", f"PYTHON={sys.executable}")
    assert ".venv has another Python: making it anew" in done.stdout
    assert "== installing torch (1 of 2): usually " in done.stdout
    told = subprocess.run([place / ".venv/bin/python", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.split()[1] == sys.version.split()[0]
    (place / ".venv/.installed").touch()
    assert "Nothing to be done" in make(place, "environment", f"PYTHON={sys.executable}").stdout
    assert "Nothing to be done" in make(place, "environment").stdout


@pytest.mark.usefixtures("processes")
def test_how_long_the_study_takes_is_said_of_the_one_of_which_it_is_known(place: Path) -> None:
    assert "its last lines are the answer" in make(place, "-n", "benchmark").stdout
    assert "its last lines are the answer" not in make(place, "-n", "benchmark", "STUDY=smoke").stdout


@pytest.mark.usefixtures("processes")
def test_commands_quote_what_has_blanks(place: Path) -> None:
    assert '--backend-store-uri "$MLFLOW_TRACKING_URI"' in make(place, "-n", "ui").stdout


@pytest.mark.usefixtures("processes")
def test_the_release_of_torch_is_the_one_that_the_package_names() -> None:
    said = make(ROOT, "-n", "environment", "VENV=.no-environment").stdout
    (command,) = re.findall(r"\$\((sed .* pyproject\.toml)\)", said)
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"torch==[\d.]+\n", found)
