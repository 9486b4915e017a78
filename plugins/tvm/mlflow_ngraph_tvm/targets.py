"""Describe processors and GPUs as TVM targets, and register tensor intrinsics. Imports TVM.

Import it in the adapter's methods only.
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm.target import codegen

from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.processors import available

_X86 = {
    **{name: name for name in ("avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl")},
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "avx_vnni": "avxvnni",
    "avx_ifma": "avxifma",
    "avx_vnni_int8": "avxvnniint8",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}
_ARM = {
    **{name: name for name in ("sve", "sve2", "i8mm", "bf16")},
    "asimd": "neon",
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
}
_FEATURES = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""Instruction sets as the operating system and as LLVM calls them."""
_INTRINSICS = {"x86_64": "x86", "AMD64": "x86", "aarch64": "arm_cpu", "arm64": "arm_cpu"}
_PACKAGE = "tvm.s_tir.tensor_intrin"


def host(mcpu: str, threads: int | None) -> dict[str, Any]:
    """Target of this machine's processor, or of another one under LLVM's name.

    LLVM derives the name from family and a few features. The instruction sets that the operating system reports correct
    it, also where a hypervisor hides some.
    """
    processor: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads or available()}
    if mcpu == "native":
        processor["mcpu"] = str(codegen.llvm_get_system_cpu())
        differences = _differences(processor["mcpu"])
        if differences:
            processor["mattr"] = differences
    return processor


def _differences(mcpu: str) -> list[str]:
    """Instruction sets to add to (``+``) and remove from (``-``) those of a name."""
    here = set(probes.cpu().isa)
    if not here:
        return []
    implied = {str(name) for name in codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mcpu": mcpu}))}
    return [
        f"{'+' if name in here else '-'}{llvm}"
        for name, llvm in _FEATURES.get(platform.machine(), {}).items()
        if (name in here) != (llvm in implied)
    ]


def gpu(found: probes.Gpu, host_target: dict[str, Any]) -> dict[str, Any]:
    """Target of an NVIDIA GPU, with the thread limits of compute capability 5.0 and later."""
    return {
        "kind": "cuda",
        "arch": f"sm_{found.compute_capability.replace('.', '')}",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
        "host": host_target,
    }


def registers(target: Any) -> tuple[int, int]:
    """Floats in a vector register of a processor, and number of such registers."""
    lanes = max(1, int(codegen.llvm_get_vector_width(target)) // 32)
    wide = bool(codegen.llvm_cpu_has_features("avx512f", target)) or platform.machine() in ("aarch64", "arm64")
    return lanes, 32 if wide else 16


def register_intrinsics() -> None:
    """Register the tensor intrinsics of this processor, and prevent TVM from parsing all others.

    The package imports the intrinsics of every GPU and processor, which takes most of a minute. Those for GPUs compute
    in half precision or in integers, and engines here are not tuned with them.
    """
    if _PACKAGE in sys.modules:
        return
    from tvm import s_tir

    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(s_tir.__file__).with_name("tensor_intrin"))]
    sys.modules[_PACKAGE] = package
    s_tir.tensor_intrin = package
    mine = _INTRINSICS.get(platform.machine())
    if mine:
        importlib.import_module(f"{_PACKAGE}.{mine}")
