"""What an engine's machine code may need from the machine that loads it, and what compiling needs here."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mlflow_ngraph.compilers.base import Availability

_VECTOR_FEATURES = (
    ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16")
    + ("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16")
    + ("asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm")
)
"""The instruction sets that compilers choose code by, under the kernel's names."""


@cache
def isa() -> str:
    """The architecture and its vector instruction sets, such as ``x86_64 avx2 fma avx512f``."""
    found = _cpu_flags()
    return " ".join([platform.machine(), *(name for name in _VECTOR_FEATURES if name in found)])


def _cpu_flags() -> set[str]:
    """The flags of the first processor, as far as the kernel lists them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def cpp_compiler() -> str | None:
    """The C++ compiler on the path: ``$CXX``, else the usual names."""
    names = [os.environ.get("CXX", ""), "g++", "clang++"] if sys.platform != "darwin" else ["clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def package(module: str, distribution: str, install: str) -> Availability:
    """Whether a Python package is installed, without importing it."""
    try:
        if find_spec(module) is None:
            return Availability(False, None, f"the package {distribution} is not installed", install)
        return Availability(True, version(distribution))
    except (PackageNotFoundError, ValueError, ImportError):
        # Present under another distribution's name, such as onnxruntime-gpu; or half removed.
        return _under_another_name(module, distribution, install)


def _under_another_name(module: str, distribution: str, install: str) -> Availability:
    from importlib.metadata import packages_distributions

    for name in packages_distributions().get(module, []):
        return Availability(True, version(name))
    return Availability(False, None, f"the package {distribution} is not installed", install)


def with_cpp_compiler(availability: Availability, need: str) -> Availability:
    """``availability``, unless there is no C++ compiler and ``need`` says what it is for."""
    if not availability.available or cpp_compiler():
        return availability
    hint = "install g++ (Debian, Ubuntu: apt-get install g++) or point $CXX at a C++ compiler"
    return Availability(False, availability.version, f"no C++ compiler on the path; {need}", hint)
