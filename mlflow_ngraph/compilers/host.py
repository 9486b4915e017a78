"""Instruction sets, C++ compiler and installed packages of this machine, for requirements of engines."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Collection
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from importlib.util import find_spec

from mlflow_ngraph.compilers.base import Availability
from mlflow_ngraph.devices import probes

SATURATED = "products of 8-bit integers may have saturated, because this processor has no VNNI"
SEVEN_BITS = "quantise the weights to 7 bits (reduce_range)"


@cache
def isa() -> str:
    """Architecture and instruction sets that compilers generate code for, such as ``x86_64 avx2 avx512f``."""
    return " ".join([platform.machine(), *probes.cpu().isa])


def saturates_8_bit() -> bool:
    """True on x86 processors without VNNI: fast kernels add pairs of products of 8-bit integers in 16 bits, which saturate."""
    machine, *sets = isa().split()
    return machine in ("x86_64", "AMD64") and not any("vnni" in name for name in sets)


def cpp_compiler() -> str | None:
    """C++ compiler on the path: ``$CXX``, else the usual names."""
    names = [os.environ.get("CXX", ""), "g++", "clang++"] if sys.platform != "darwin" else ["clang++"]
    return next((compiler for name in names if name and (compiler := shutil.which(name))), None)


def package(module: str, distribution: str, install: str) -> Availability:
    """Check that a Python package is installed, without importing it."""
    try:
        if find_spec(module) is None:
            return Availability(False, None, f"the package {distribution} is not installed", install)
        return Availability(True, version(distribution))
    except (PackageNotFoundError, ValueError, ImportError):
        # Present under another distribution's name, such as onnxruntime-gpu; or half removed.
        return _under_another_name(module, distribution, install)


def _under_another_name(module: str, distribution: str, install: str) -> Availability:
    for name in bringing(module):
        return Availability(True, version(name))
    return Availability(False, None, f"the package {distribution} is not installed", install)


def bringing(module: str) -> list[str]:
    """Installed distributions that contain a top-level module.

    `importlib.metadata.packages_distributions` lists all modules, and takes a quarter of a second.
    """
    return [found.metadata["Name"] for found in distributions() if module in _top_level(found)]


def _top_level(found: Distribution) -> Collection[str]:
    """Top-level modules, as declared, else from the list of files."""
    declared = (found.read_text("top_level.txt") or "").split()
    if declared:
        return declared
    paths = (line.partition(",")[0] for line in (found.read_text("RECORD") or "").splitlines())
    return {path.partition("/")[0].removesuffix(".py") for path in paths if path.endswith(".py")}


def with_cpp_compiler(availability: Availability, need: str) -> Availability:
    """Return ``availability``, unless there is no C++ compiler; ``need`` says why it is needed."""
    if not availability.available or cpp_compiler():
        return availability
    hint = "install g++ (Debian, Ubuntu: apt-get install g++) or point $CXX at a C++ compiler"
    return Availability(False, availability.version, f"no C++ compiler on the path; {need}", hint)
