"""Bounds of integer inputs, from the tables that they index. Imports torch: for child processes only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mlflow_ngraph.workloads.base import TensorSpec, fixed_batch
from mlflow_ngraph.workloads.calling import tensors
from mlflow_ngraph.workloads.data_reads import memory

_BATCH = 2
_SAME = ("_to_copy", "clone", "contiguous", "copy", "expand", "slice", "view", "reshape", "repeat", "cat", "stack")
"""Operators after which an index is still the same index."""
_ROWS_ALONG = ("gather", "index_select", "scatter", "scatter_")
"""Operators that take an axis, and indices into it."""
_ANY = ("remainder", "fmod", "bitwise_and")
"""Operators that make an index of whatever integer: of a hash."""


def bounded(module: nn.Module, inputs: Sequence[TensorSpec], unbounded: set[str]) -> tuple[TensorSpec, ...]:
    """Set the ranges of ``unbounded`` inputs from one run of the model."""
    asked = [spec for spec in inputs if spec.name in unbounded and np.dtype(spec.dtype).kind in "iu"]
    if not asked:
        return tuple(inputs)
    batch, rng = fixed_batch(tuple(inputs)) or _BATCH, np.random.default_rng(0)
    example = tensors([spec.random(batch, rng) for spec in inputs])
    watch = _Watch({spec.name: tensor for spec, tensor in zip(inputs, example, strict=True) if spec in asked})
    try:
        with torch.no_grad(), watch:
            module(*example)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a model raises anything; who runs it says what
        return tuple(inputs)
    return tuple(
        replace(spec, high=min(bound, int(np.iinfo(spec.dtype).max)))
        if (bound := watch.bounds.get(spec.name, 0)) > spec.low
        else spec
        for spec in inputs
    )


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Follows inputs to the operators that use them as indices."""

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.bounds: dict[str, int] = {}
        self._origins = {memory(tensor): name for name, tensor in inputs.items()}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001 - no public name for it
        if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
            self._bound(args[1], args[0].shape[0])
        elif name in _ROWS_ALONG and args[0].ndim:
            self._bound(args[2], args[0].shape[args[1]])
        elif name == "index":
            for place, index in enumerate(args[1]):
                self._bound(index, args[0].shape[place])
        elif name in _ANY:
            self._bound(args[0], int(np.iinfo(np.int64).max))
        elif name in _SAME:
            self._pass_on(args, result)
        return result

    def _bound(self, index: Any, size: int) -> None:
        origin = self._origins.get(memory(index)) if isinstance(index, torch.Tensor) else None
        if origin is not None:
            self.bounds[origin] = min(size, self.bounds.get(origin, size))

    def _pass_on(self, given: Any, result: torch.Tensor) -> None:
        known = {self._origins.get(memory(leaf)) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}
        if len(known) == 1 and (origin := known.pop()) is not None:
            self._origins[memory(result)] = origin
