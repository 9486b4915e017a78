"""Make ``import torchvision`` work where its compiled operators do not fit the installed torch.

The torchvision wheel of PyPI is built for CUDA. With a CPU build of torch its operators do not load. Importing it,
which timm, transformers and other code does unconditionally, then fails on their missing schemas. Hardly a model needs
them.

A hook waits for the first import of torchvision and declares the missing operators just before it; until then it
imports nothing. `install` puts it into this process. ``python -m mlflow_ngraph.torchvision_hook`` puts it into every
interpreter of an environment in which torchvision cannot be imported.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from mlflow_ngraph import credentials

FITTING = (
    "install the one that fits, for a CPU build: pip install --force-reinstall --no-deps torchvision --index-url "
    "https://download.pytorch.org/whl/cpu"
)
"""Advice where its operators are needed."""
FILE = "ngraph_torchvision.pth"
"""File that installs the hook in every interpreter; `site` runs its line."""
_AT_START = """\
import sys
class TorchvisionHook:
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        from importlib.machinery import PathFinder
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            def exec_module(module):
                try:
                    from mlflow_ngraph import torchvision_hook
                except ImportError:
                    pass
                else:
                    torchvision_hook.declare()
                execute(module)
            spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, TorchvisionHook())
"""
"""The hook without an import of this package, which would cost every interpreter some milliseconds."""
_TIMEOUT_S = 300
_KEPT: list[Any] = []  # a torch library lives as long as its handle


class _Hook:
    """Import hook that declares missing operators when torchvision is imported.

    Not when it is found: a check that it is installed must import nothing.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                declare()
                execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Install the hook into this process."""
    if "torchvision" not in sys.modules and not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())


def declare() -> None:
    """Declare the operators that torchvision registers fake kernels for, unless its own can be loaded."""
    spec = PathFinder.find_spec("torchvision")
    if _KEPT or spec is None or spec.submodule_search_locations is None:
        return
    try:
        import torch
    except ImportError:  # torchvision itself says so
        return
    compiled = PathFinder.find_spec("_C", list(spec.submodule_search_locations))
    if compiled is not None and compiled.origin is not None:
        try:
            torch.ops.load_library(compiled.origin)
        except OSError:
            pass
        else:
            return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


def problem() -> str:
    """Reason why a fresh interpreter of this environment cannot import torchvision; empty if it can."""
    command = [sys.executable, "-c", "import torchvision"]
    try:
        # Not in the current directory, whose files would be imported in place of installed modules.
        place = sysconfig.get_path("purelib")
        env = credentials.clean_environment()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=place, env=env
        )
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_TIMEOUT_S} s"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return "" if done.returncode == 0 else last[0]


def main() -> int:
    """Install the hook into the environment if it needs it; 1 if torchvision stays broken."""
    before = problem()
    if not before:
        sys.stdout.write("torchvision can be imported\n")
        return 0
    path = Path(sysconfig.get_path("purelib"), FILE)
    path.write_text(f"import sys; exec({_AT_START!r}, {{}})\n", encoding="utf-8")
    after = problem()
    if after:
        path.unlink()
        sys.stderr.write(f"torchvision cannot be imported: {after}\n")
        return 1
    sys.stdout.write(f"torchvision does not fit this build of torch ({before}): {path} declares what it lacks\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
