"""Builder settings of TensorRT: search, timing cache and compatibility."""

from __future__ import annotations

from typing import Any

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.tensorrt.building import switch
from mlflow_ngraph.compilers.tensorrt.flags import TensorRTFlags
from mlflow_ngraph.compilers.tensorrt.timing import TimingCache
from mlflow_ngraph.errors import UnsupportedError

LEVELS = {
    "none": "NONE",
    "ampere_plus": "AMPERE_PLUS",
    "same_compute_capability": "SAME_COMPUTE_CAPABILITY",
}


class ClassicConfiguration:
    """Search, timings and compatibility of one build."""

    def __init__(self, flags: TensorRTFlags) -> None:
        self.workspace_mib = flags.workspace_mib
        self._flags = flags
        self._cache: TimingCache | None = None
        self._reused = False

    def apply(self, trt: Any, config: Any) -> None:
        flags = self._flags
        config.builder_optimization_level = flags.builder_optimization_level
        switch(config, trt.BuilderFlag.VERSION_COMPATIBLE, on=flags.version_compatible)
        switch(config, trt.BuilderFlag.SPARSE_WEIGHTS, on=flags.sparsity)
        level = LEVELS[flags.hardware_compatibility]
        if not hasattr(trt.HardwareCompatibilityLevel, level):
            raise UnsupportedError(
                f"TensorRT {trt.__version__} has no hardware_compatibility {flags.hardware_compatibility}"
            )
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
        if flags.timing_cache:
            self._cache = TimingCache.place(trt)
            self._reused = self._cache.give(config)

    def built(self, config: Any) -> None:
        if self._cache is not None:
            self._cache.keep(config)

    def in_force(self, trt: Any, config: Any) -> dict[str, FlagValue]:
        levels = {name: flag for flag, name in LEVELS.items()}
        return {
            "builder_optimization_level": int(config.builder_optimization_level),
            "version_compatible": bool(config.get_flag(trt.BuilderFlag.VERSION_COMPATIBLE)),
            "hardware_compatibility": levels[config.hardware_compatibility_level.name],
            "sparsity": bool(config.get_flag(trt.BuilderFlag.SPARSE_WEIGHTS)),
            "timing_cache_reused": self._reused,
        }
