"""Identify the installed build of ONNX Runtime: one module, several packages."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_RECORD = Path("capi", "build_and_package_info.py")


@dataclass(frozen=True)
class Installed:
    """Version and providers of the installed build."""

    package: str
    """Such as ``onnxruntime-gpu``."""
    version: str


def installed() -> Installed | None:
    """Inspect the build that an import would find, without importing it; None where it does not tell.

    The packages install the same module in the same place, so with two of them installed, their metadata do not tell
    which one it is.
    """
    try:
        spec = find_spec("onnxruntime")
    except (ValueError, ImportError):
        return None
    for place in (spec and spec.submodule_search_locations) or ():
        build = _read(Path(place) / _RECORD)
        if build is not None:
            return build
    return None


def _read(path: Path) -> Installed | None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    said = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    package, version = said.get("package_name"), said.get("__version__")
    return Installed(package, version) if isinstance(package, str) and isinstance(version, str) else None
