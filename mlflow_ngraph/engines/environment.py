"""What a process that runs an engine has around it: environment variables, and how memory is kept."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow_ngraph import process_memory, torchvision_hook
from mlflow_ngraph.engines.manifest import Manifest

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TVM_NUM_THREADS",
)
"""Each says how many threads one of the runtimes has."""
STRAY_PREFIXES = (
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "GLIBC_TUNABLES", "LD_"),
    *("OMP_", "KMP_", "GOMP_", "LIBOMP_", "TBB_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_"),
    *("ATEN_", "TORCH", "PYTORCH_", "THP_MEM_ALLOC_", "LRU_CACHE_CAPACITY", "ONEDNN_", "DNNL_"),
    *("ORT_", "OV_", "OPENVINO_", "TVM_", "CUDA_LAUNCH_BLOCKING"),
    # It changes what tf32 means, behind the back of the precision that was asked for.
    "NVIDIA_TF32_OVERRIDE",
    # The lane that runs most Python, eager execution, would be slowed most.
    *("PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHON_PERF_", "PYTHONVERBOSE"),
)
"""How variables begin that make one runtime faster or slower and leave others as they are."""
TOLD = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")
"""Of these what programs may need to start at all: kept, and named beside what is measured."""
_KEPT = (*TOLD, "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST")
"""The last ones say where files are, and what to compile for."""


def told() -> dict[str, str]:
    """The variables that may make one runtime faster or slower, and are kept all the same."""
    return {name: os.environ[name] for name in TOLD if os.environ.get(name)}


def of_threads(threads: int | None, scratch: Path, *, patient: bool = False) -> dict[str, str]:
    """The environment of a child: that of the parent without its thread and runtime settings, plus ours.

    Parameters
    ----------
    threads : int | None
        Threads of every runtime; None leaves each its own default.
    scratch : Path
        Compiler caches live here, so that no compilation is faster for an earlier one elsewhere, and temporary files, which
        a process that is ended does not remove.
    patient : bool
        Threads of OpenMP that wait for others go to sleep instead of looking again and again: slower by a little where
        they have the machine to themselves, faster by much where others need the processors. For what is not timed.
    """
    env = {key: value for key, value in os.environ.items() if key in _KEPT or not key.startswith(STRAY_PREFIXES)}
    if threads is not None:
        env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if patient:
        env["OMP_WAIT_POLICY"] = "passive"
    env["TMPDIR"] = str(scratch)
    env["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "inductor")
    # One compile process: a pool of them would outlive its use and idle beside what is measured.
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONHASHSEED"] = "0"
    return env


def of_manifest(manifest: Manifest, scratch: Path) -> dict[str, str]:
    """Those that a study measures with: no thread or runtime settings but the engine's own.

    Parameters
    ----------
    scratch : Path
        For what runtimes keep beside.
    """
    return of_threads(manifest.spec.target.threads, scratch)


def enter() -> None:
    """Keep freed memory from now on, as studies do unless they say otherwise; elsewhere than on glibc nothing changes.

    What the engine imports finds a torchvision that can be imported, as in a study.
    """
    process_memory.keep_freed()
    torchvision_hook.install()
