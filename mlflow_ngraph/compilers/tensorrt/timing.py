"""Timing cache of TensorRT's kernels, shared by builds, also concurrent ones."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from mlflow_ngraph import user_cache
from mlflow_ngraph.devices import probes


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
