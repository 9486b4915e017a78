"""Read, load and inspect exported programs and AOTInductor packages.

Imports torch, so import it inside the methods of the adapter only.
"""

from __future__ import annotations

import atexit
import json
import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.reasons import operator
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads import programs

_CALL = re.compile(
    r"\baoti_torch_(?:cpu|cuda)_(?P<extern>\w+)\("
    r"|\baoti_torch_(?P<proxy>proxy_executor)_call_function\("
    r"|^\s+(?:call_)?(?P<generated>(?:cpp|triton)_\w+)\(",
    re.MULTILINE,
)
_BODY = "::run_impl("
"""Start of the inference in the generated wrapper, after declarations of the same names."""
_SOURCES = (".cpp", ".cubin", ".ptx")
_LIBRARIES = {"mkldnn": "mkldnn", "linear_pointwise": "mkldnn", "cudnn": "cudnn"}
"""Implementations by a part of an operator's name."""

_UNRESOLVED = re.compile(r"failed to resolve (torch\.ops\.\S+) to an operator")
_loaded: dict[tuple[Path, int, int], Any] = {}
"""Loaders of packages for the CPU by path, time of change and size."""
# The destructors remove the files that were unpacked; at the very end of a process they need not run.
atexit.register(_loaded.clear)


def read_program(file: Path) -> torch.export.ExportedProgram:
    """Read an exported program.

    Raises `UnsupportedError` for an operator that PyTorch does not know in this process.
    """
    try:
        return programs.read(file)
    except RuntimeError as error:
        missing = operator(error, _UNRESOLVED)
        if missing:
            raise UnsupportedError(f"torch-compile has no operator {missing}") from None
        raise


def open_package(path: Path, target: Target) -> Any:
    """Load a package without the import of the compiler and the parsing of `torch._inductor.aoti_load_package`.

    A package's library stays in memory once it has run, because of its thread-local variables. On the CPU it holds the
    weights too, so an open one is reused. On a GPU the weights are copied there, and freed with the loader.
    """
    if target.accelerator == "cuda":
        return _loader(path, torch.cuda.current_device())
    status = path.stat()
    key = (path.resolve(), status.st_mtime_ns, status.st_size)
    if key not in _loaded:
        _loaded[key] = _loader(path, -1)
    return _loaded[key]


def _loader(path: Path, device: int) -> Any:
    return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, device)  # noqa: SLF001


def describe(package: Path, operations: int) -> Explanation:
    """Kernels that a package calls, from its generated code; ``operations`` counts those of the exported program."""
    with zipfile.ZipFile(package) as content:
        names = content.namelist()
        wrapper = next(name for name in names if name.endswith(".wrapper.cpp"))
        source = content.read(wrapper).decode()
        metadata = json.loads(content.read(wrapper.replace(".cpp", "_metadata.json")))
        generated = sum(content.getinfo(name).file_size for name in names if name.endswith(_SOURCES))
    kernels = tuple(_kernel(match) for match in _CALL.finditer(source, max(source.rfind(_BODY), 0)))
    own = sum(kernel.provider == "Inductor" for kernel in kernels)
    return Explanation(
        nodes_before=operations,
        nodes_after=len(kernels),
        kernels=kernels,
        code_bytes=generated,
        facts={
            "generated_kernels": own,
            "extern_kernels": len(kernels) - own,
            "cpu_isa": str(metadata.get("AOTI_CPU_ISA", "")),
            "compute_capability": str(metadata.get("AOTI_COMPUTE_CAPABILITY", "")),
            "device": str(metadata.get("AOTI_DEVICE_KEY", "")),
        },
    )


def _kernel(match: re.Match[str]) -> Kernel:
    name = match["generated"]
    if name:
        language, _, rest = name.partition("_")
        members = _operators(rest)
        kind = "gemm template" if "Gemm" in name or "_tem_" in name or "_mm_" in rest else "fused"
        return Kernel(name, kind, members if len(members) > 1 else (), language, provider="Inductor")
    extern = match["extern"] or match["proxy"]
    library = next((library for part, library in _LIBRARIES.items() if part in extern), "aten")
    return Kernel(f"aoti_torch_{extern}", extern, implementation=library, provider="PyTorch")


def _operators(name: str) -> tuple[str, ...]:
    """Operators in a generated name, such as ``fused_add_native_layer_norm_3``: the longest names that fit."""
    rest = name.partition("fused_")[2]
    known, operators = _known_operators(), []
    while rest:
        ends = [index for index in range(len(rest), 0, -1) if rest[index : index + 1] in ("", "_")]
        fitting = next((rest[:end] for end in ends if rest[:end] in known), None)
        if fitting is not None:
            operators.append(fitting)
        rest = rest[len(fitting) + 1 :] if fitting is not None else rest.partition("_")[2]
    return tuple(operators)


@cache
def _known_operators() -> frozenset[str]:
    """Names of PyTorch's own operators, without namespaces and overloads."""
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001 - no public name for it
    return frozenset(
        name.partition("::")[2].partition(".")[0] for name in names if name.startswith(("aten::", "prims::"))
    )
