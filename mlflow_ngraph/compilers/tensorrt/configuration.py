"""Builder settings of TensorRT: search, timing cache and compatibility."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from mlflow_ngraph import user_cache
from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.tensorrt.building import switch
from mlflow_ngraph.compilers.tensorrt.flags import TensorRTFlags
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import UnsupportedError

LEVELS = {
    "none": "NONE",
    "ampere_plus": "AMPERE_PLUS",
    "same_compute_capability": "SAME_COMPUTE_CAPABILITY",
}


@dataclass(frozen=True)
class TimingCache:
    """Cache file of one TensorRT version and GPU type: other timings do not apply."""

    path: Path

    @classmethod
    def place(cls, trt: Any) -> TimingCache:
        """Path of the cache for the installed version and this GPU."""
        gpu = probes.gpu()
        kind = f"{gpu.name}-{gpu.compute_capability}" if gpu else "unknown"
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{trt.__version__}-{kind}")
        return cls(user_cache.directory("tensorrt") / f"{name}.timing")

    def give(self, config: Any) -> bool:
        """Pass the cached timings to a build; returns whether it accepts any."""
        earlier = self._load(config)
        if earlier is not None and config.set_timing_cache(earlier, False):
            return True
        config.set_timing_cache(config.create_timing_cache(b""), False)
        return False

    def keep(self, config: Any) -> None:
        """Merge a build's timings into the file, which another build may have changed meanwhile."""
        timings = config.get_timing_cache()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            earlier = self._load(config)
            if earlier is not None:
                # Timings that do not fit are left out, and the file is written anew without them.
                timings.combine(earlier, False)
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(timings.serialize())
            temporary.replace(self.path)

    def _load(self, config: Any) -> Any | None:
        """Content of the file, if it is a cache."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        return config.create_timing_cache(content)


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
