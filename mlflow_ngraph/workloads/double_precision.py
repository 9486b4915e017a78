"""Context manager in which PyTorch computes every operation in double precision. For child processes only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from mlflow_ngraph.workloads.arithmetic import Intercepting

_FINFO = torch.finfo
_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


@contextmanager
def double_precision(native: torch.dtype = torch.float32) -> Iterator[None]:
    """Compute in double precision within the block.

    ``torch.finfo`` of double tells of ``native`` there, so that a model adds and fills in the numbers that it has without.
    """

    def about(kind: torch.dtype | None = None) -> torch.finfo:
        return _FINFO(native if kind is torch.float64 else kind or torch.get_default_dtype())

    wide = _Wide()
    with patch.object(torch, "finfo", about), wide, _WideCalls(wide):
        yield


class _Wide(Intercepting):
    """Tensors of a narrower type are never written to: an in-place operation changes a wide copy, which replaces its
    tensor until the block ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map(self.widened, (args, kwargs))
        return function(*args, **kwargs)

    def widened(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _WIDE.get(value, value)
        if not isinstance(value, torch.Tensor) or value.dtype not in _WIDE:
            return value
        # The narrow one is kept too, so that no other can come to have its identity.
        known = self._copies.get(id(value))
        if known is None:
            known = self._copies[id(value)] = value, torch.Tensor.to(value.detach(), _WIDE[value.dtype])
        return known[1]


class _WideCalls(TorchFunctionMode):  # type: ignore[misc]
    """Widens arguments of functions: some check first that all have one type."""

    def __init__(self, wide: _Wide) -> None:
        super().__init__()
        self._wide = wide

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _ABOUT:
            return function(*args, **(kwargs or {}))
        args, kwargs = tree_map(self._wide.widened, (args, kwargs or {}))
        return function(*args, **kwargs)


_ABOUT = frozenset((torch.Tensor.__repr__, torch.Tensor.data_ptr, torch.Tensor.untyped_storage))
"""Functions that query a tensor's metadata."""
