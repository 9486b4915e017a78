"""Run a PyTorch model with long sums added term by term, as the least exact runtimes do. For child processes only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table

from mlflow_ngraph.workloads.arithmetic import Intercepting
from mlflow_ngraph.workloads.operations import PRODUCTS, SUMS, product_terms

_ATEN = torch.ops.aten
_SPREADS = (_ATEN.var.correction, _ATEN.var_mean.correction, _ATEN.var.dim, _ATEN.var_mean.dim)
_NORMS = tuple(
    getattr(_ATEN, name).default
    for name in ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit")
)
_LONG = 64
"""Terms from which on the order of a sum is worth a run of its own."""
_MOST_TERMS = 2**24
"""Terms that are added one by one, at most: more would take too long."""


class Naive(Intercepting):
    """Sum term by term within the block, in the precision of the terms."""

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        if function in PRODUCTS:
            return self._product(function, args, result)
        terms = args[0] if args else None
        if (
            not isinstance(terms, torch.Tensor)
            or terms.dtype is not torch.float32
            or not 0 < terms.numel() <= _MOST_TERMS
        ):
            return result
        if function in _NORMS:
            with self:
                return decomposition_table[function](*args, **kwargs)
        if function in _SPREADS:
            return self._spread(args, kwargs, result)
        if function is _ATEN.cumsum.default and terms.dim():
            return torch.from_numpy(np.add.accumulate(terms.detach().numpy(), axis=args[1], dtype=np.float32))
        return self._sum(function, args, kwargs, result) if function in SUMS else result

    def _sum(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor) -> torch.Tensor:
        rows = self._rows(args[0].detach(), args[1] if len(args) > 1 else None)
        if rows is None or kwargs.get("dtype") not in (None, torch.float32):
            return result
        summed = _in_turn(rows)
        if function in (_ATEN.mean.dim, _ATEN.mean.default):
            summed = summed / len(rows)
        return summed.reshape(result.shape)

    def _rows(self, tensor: torch.Tensor, named: Sequence[int] | None) -> torch.Tensor | None:
        """The terms along the first of two axes, in the order of memory; None if they are few."""
        axes = sorted(axis % tensor.dim() for axis in named or range(tensor.dim()))
        terms = math.prod(tensor.shape[axis] for axis in axes)
        if terms < _LONG:
            return None
        kept = [axis for axis in range(tensor.dim()) if axis not in axes]
        return tensor.permute(*axes, *kept).reshape(terms, -1)

    def _spread(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Variance, with the mean where the result has it, as runtimes without a kernel for it compose it."""
        given = {**dict(zip(("self", "dim", "unbiased"), args, strict=False)), **kwargs}
        rows = self._rows(args[0].detach(), given.get("dim"))
        if rows is None:
            return result
        correction = given.get("correction", given.get("unbiased", 1))
        mean = _in_turn(rows) / len(rows)
        variance = _in_turn((rows - mean) ** 2) / max(0.0, len(rows) - (1 if correction is None else correction))
        if isinstance(result, torch.Tensor):
            return variance.reshape(result.shape)
        return variance.reshape(result[0].shape), mean.reshape(result[1].shape)

    def _product(self, function: Any, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
        terms = product_terms(function, args)
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
