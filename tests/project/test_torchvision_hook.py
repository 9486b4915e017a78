"""Code of users imports torchvision in this environment, where its wheel does not fit the build of torch."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from mlflow_ngraph import torchvision_hook

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WHERE = "import sys; print(sorted({'torch', 'torchvision', 'mlflow_ngraph'} & set(sys.modules)))"


def python(executable: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(executable), *arguments], capture_output=True, text=True, cwd=executable.parent, env={}, check=False
    )


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of an environment with these packages and a directory of its own for what is put into it."""
    venv.create(tmp_path / "environment", symlinks=True)
    found = tmp_path / "environment/bin/python"
    (own,) = (tmp_path / "environment/lib").glob("python*/site-packages")
    (own / "_packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    return found


@pytest.mark.usefixtures("processes")
def test_a_hook_that_is_not_needed_imports_nothing() -> None:
    code = f"from mlflow_ngraph import torchvision_hook as hook; hook.install(); hook.install(); {WHERE}; print(len([one for one in sys.meta_path if isinstance(one, hook._Hook)]))"  # fmt: skip
    assert python(Path(sys.executable), "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}").stdout.split("\n")[:2] == [
        "['mlflow_ngraph']", "1",
    ]  # fmt: skip


@pytest.mark.usefixtures("compilers")
def test_a_process_with_the_hook_imports_what_users_import() -> None:
    code = "from mlflow_ngraph import torchvision_hook; torchvision_hook.install(); import torchvision.transforms; import torchvision.models"
    done = python(Path(sys.executable), "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}")
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("compilers")
def test_the_remedy_is_put_into_an_environment_that_needs_it(environment: Path) -> None:
    before = python(environment, "-c", "import torchvision")
    done = python(environment, "-m", "mlflow_ngraph.torchvision_hook")
    assert done.returncode == 0, done.stderr
    if before.returncode == 0:
        assert done.stdout == "torchvision can be imported\n"
        return
    assert "torchvision does not fit this build of torch (RuntimeError: " in done.stdout
    assert python(environment, "-c", WHERE).stdout == "[]\n"
    asked = python(environment, "-c", f"import importlib.util; importlib.util.find_spec('torchvision'); {WHERE}")
    assert asked.stdout == "[]\n", "who asks whether it is there imports nothing"
    after = python(environment, "-c", "import torchvision; import timm; print(torchvision.__version__)")
    assert after.returncode == 0, after.stderr
    assert python(environment, "-m", "mlflow_ngraph.torchvision_hook").stdout == "torchvision can be imported\n"


@pytest.mark.usefixtures("processes")
def test_the_hook_of_an_environment_does_no_harm_without_torch_or_this_package(tmp_path: Path) -> None:
    for told in ("import json", "import sys; sys.path[:] = [one for one in sys.path if 'site-packages' not in one]"):
        code = f"exec({torchvision_hook._AT_START!r}, {{}}); {told}\ntry:\n    import torchvision\nexcept ImportError as error:\n    print(error.name)"  # fmt: skip
        done = python(Path(sys.base_prefix, "bin/python3"), "-c", code)
        assert (done.returncode, done.stdout) == (0, "torchvision\n"), done.stderr
