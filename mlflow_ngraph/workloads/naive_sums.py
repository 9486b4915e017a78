"""Run a PyTorch model with long sums added term by term, as the least exact runtimes do. For child processes only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mlflow_ngraph.workloads.arithmetic import PRODUCTS, product_terms

_ATEN = torch.ops.aten
_SUMS = (_ATEN.sum.dim_IntList, _ATEN.sum.default, _ATEN.mean.dim, _ATEN.mean.default)
_LONG = 64
"""Terms from which on the order of a sum is worth a run of its own."""
_MOST_TERMS = 2**24
"""Terms that are added one by one, at most: more would take too long."""


class Naive(TorchDispatchMode):  # type: ignore[misc]
    """Sum term by term within the block, in the precision of the terms."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        """Terms of the longest sum that was met, of any kind."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in PRODUCTS:
            return self._product(function, args, result)
        if function is _ATEN.cumsum.default and args[0].dtype is torch.float32 and args[0].dim():
            return torch.from_numpy(np.add.accumulate(args[0].detach().numpy(), axis=args[1], dtype=np.float32))
        if function not in _SUMS or args[0].dtype is not torch.float32 or not args[0].numel():
            return result
        named = args[1] if len(args) > 1 and args[1] else range(args[0].dim())
        # In the order of memory, as runtimes do, in whatever order they are named.
        axes = sorted(axis % args[0].dim() for axis in named)
        terms = math.prod(args[0].shape[axis] for axis in axes)
        self.longest = max(self.longest, terms)
        if terms < _LONG or args[0].numel() > _MOST_TERMS or kwargs.get("dtype") not in (None, torch.float32):
            return result
        kept = [axis for axis in range(args[0].dim()) if axis not in axes]
        summed = _in_turn(args[0].detach().permute(*axes, *kept).reshape(terms, -1))
        if function in (_ATEN.mean.dim, _ATEN.mean.default):
            summed = summed / terms
        return summed.reshape(result.shape)

    def _product(self, function: Any, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
        terms = product_terms(function, args)
        self.longest = max(self.longest, terms)
        first, second, added = PRODUCTS[function]
        left, right = args[first].detach(), args[second].detach()
        if (
            function is _ATEN.convolution.default
            or left.dtype is not torch.float32
            or terms < _LONG
            or result.numel() * terms > _MOST_TERMS
        ):
            return result
        # Products of vectors as of matrices of one row or column.
        left = left if left.dim() > 1 else left[None]
        right = right if right.dim() > 1 else right[:, None]
        products = left.movedim(-1, 0)[..., None] * right.movedim(-2, 0)[..., None, :]
        summed = _in_turn(products).reshape(result.shape)
        return summed if added is None else summed + args[added]


def _in_turn(terms: torch.Tensor) -> torch.Tensor:
    """Sum over the first axis, one term after the other."""
    return torch.from_numpy(np.add.accumulate(terms.numpy(), axis=0, dtype=np.float32)[-1].copy())
