"""Build the environment of child processes: sets threads and scratch folders, removes stray runtime settings."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow_ngraph import credentials

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TVM_NUM_THREADS",
)
"""The number of threads, by runtime."""
STRAY_PREFIXES = (
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "GLIBC_TUNABLES", "LD_"),
    *("OMP_", "KMP_", "GOMP_", "LIBOMP_", "TBB_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_"),
    *("ATEN_", "TORCH", "PYTORCH_", "THP_MEM_ALLOC_", "LRU_CACHE_CAPACITY", "ONEDNN_", "DNNL_"),
    *("ORT_", "OV_", "OPENVINO_", "TVM_", "CUDA_LAUNCH_BLOCKING"),
    # It changes the meaning of tf32, whatever precision was requested.
    "NVIDIA_TF32_OVERRIDE",
    # It slows eager execution most, the lane with the most Python.
    *("PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHON_PERF_", "PYTHONVERBOSE"),
)
"""Prefixes of variables that make some runtimes faster or slower than others."""
RECORDED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")
"""Variables that programs may need to start: kept, and recorded with the results."""
_KEPT = (*RECORDED, "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST")
"""The last ones name locations and compilation targets."""


def recorded_variables() -> dict[str, str]:
    """Kept variables that may make one runtime faster or slower."""
    return {name: os.environ[name] for name in RECORDED if os.environ.get(name)}


def of_threads(
    threads: int | None,
    scratch: Path | None = None,
    *,
    patient: bool = False,
    logins: bool = False,
    plain: bool = False,
) -> dict[str, str]:
    """Environment of a child: the parent's without thread and runtime settings, plus ours.

    Parameters
    ----------
    threads : int | None
        Threads of every runtime; None for each runtime's default.
    scratch : Path | None
        Folder of temporary files and compiler caches, so that no compilation profits from an earlier one; a killed process leaves
        its files there. None uses the folder of the `Child`.
    patient : bool
        Waiting OpenMP threads sleep instead of spinning: slightly slower alone, much faster beside other processes. For untimed work.
    logins : bool
        Keep credentials and the address of the tracking server, to fetch models.
    plain : bool
        Keep what systems, interpreters and runtimes read, and nothing else: the child runs an engine, and no workload.
    """
    clean = credentials.plain_environment if plain else credentials.clean_environment
    given = os.environ if logins else clean()
    env = {key: value for key, value in given.items() if key in _KEPT or not key.startswith(STRAY_PREFIXES)}
    if threads is not None:
        env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if patient:
        env["OMP_WAIT_POLICY"] = "passive"
    if scratch is not None:
        env.update(of_scratch(scratch))
    # One compile process: idle ones of a pool would outlive their use beside the measurement.
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONHASHSEED"] = "0"
    return env


def of_scratch(scratch: Path) -> dict[str, str]:
    """Variables of temporary files and compiler caches."""
    return {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor")}
