"""Installed distributions that loading an engine needs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from mlflow_ngraph.compilers.base import Compiler, Target

_OF_SCHEME = {"timm": ("timm", "torchvision"), "onnx": ("onnx",)}
"""Distributions without which a live module of a workload cannot be built again, by the workload's scheme."""


def needed(compiler: Compiler[Any], target: Target, scheme: str) -> dict[str, str]:
    """Versions of the distributions that loading an engine of ``compiler`` needs, besides this package.

    They bring the adapter and its runtime, are named in the adapter's requirements, or build the workload's module
    where the adapter runs it live.
    """
    brought_by = _brought_by()
    modules = [*compiler.runtime_modules, type(compiler).__module__]
    roots = [module.partition(".")[0] for module in modules]
    names = {brought_by[root][0] for root in roots if root in brought_by and root != __name__.partition(".")[0]}
    names.update(compiler.requires(target))
    if compiler.needs_module:
        names.update(_OF_SCHEME.get(scheme, ()))
    versions = {}
    for name in sorted(names):
        try:
            # What follows a plus tells builds apart that an index serves under one version.
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # a requirement that is no distribution, such as the instruction set
    return versions


@cache
def _brought_by() -> dict[str, list[str]]:
    """Distributions by module. Scans every installed file, so it runs once a process."""
    return dict(packages_distributions())
