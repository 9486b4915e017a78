"""A compiler for benchmarks: PyTorch eager, made slower by a known share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mlflow_ngraph.compilers.base import Engine, Flags, Invocation, Target
from mlflow_ngraph.compilers.identity import Identity, IdentityFlags


class SlowerFlags(IdentityFlags):
    """Options of eager execution, and how much slower it is."""

    percent: float = Field(3.0, ge=0)
    """What every inference takes longer, as a percentage of itself."""


class Slower(Identity):
    """Identity whose every call is followed by busy waiting in proportion."""

    name: ClassVar[str] = "slower"
    summary: ClassVar[str] = "PyTorch eager, slower by a known share"
    flags_type: ClassVar[type[Flags]] = SlowerFlags

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        flags: Any = self.flags
        return _SlowerEngine(super().load(directory, batch, target), flags.percent)


class _SlowerEngine(Engine):
    def __init__(self, engine: Engine, percent: float) -> None:
        super().__init__(engine.precision, {**engine.flags, "percent": percent})
        self._engine = engine
        self._share = percent / 100

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        invocation = self._engine.bind(inputs)
        return replace(invocation, call=_slower(invocation.call, self._share))

    def close(self) -> None:
        self._engine.close()


def _slower(call: Callable[[], object], share: float) -> Callable[[], object]:
    clock = time.perf_counter_ns

    def slower() -> None:
        start = clock()
        call()
        end = clock()
        deadline = end + int((end - start) * share)
        while clock() < deadline:
            pass

    return slower
