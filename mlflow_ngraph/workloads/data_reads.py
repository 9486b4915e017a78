"""Run a model once, and list code lines where Python reads its data, as `if x.sum() > 0`, or draws random numbers.

A trace records what Python did for one input, and repeats it for every other. Shapes are no data, because an engine is
made for a batch size, except data-dependent ones: `len(x.nonzero())`. Imports torch: for child processes only.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor as Pool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mlflow_ngraph.entry_points import CONVERTER, module_of

_TENSOR = torch.Tensor
_TO_PYTHON = (
    *(_TENSOR.tolist, _TENSOR.numpy, _TENSOR.__array__, _TENSOR.__dlpack__, _TENSOR.__repr__, _TENSOR.apply_),
    *(_TENSOR.map_, _TENSOR.__reduce_ex__, _TENSOR.__deepcopy__, _TENSOR.untyped_storage, _TENSOR.data_ptr),
)
"""Methods that hand memory to Python without an operator."""
_SIZES = (
    *(_TENSOR.shape.__get__, _TENSOR.size, _TENSOR.numel, _TENSOR.nelement, _TENSOR.__len__, _TENSOR.__iter__),
    *(_TENSOR.unbind, torch.unbind),
)
"""Functions that give Python the size of a tensor, which is data where an operator's output size depends on data."""
_OF_SHAPE = (
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
)
"""Operators that take a tensor's shape and type, not its data."""
_OF_META = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous", "size", "stride", "dim")
_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent


@dataclass
class Followed:
    """Distinct places in the model's code, such as ``model.py:12: if x.sum() > 0:``."""

    reads: list[str]
    """Places where data reach Python."""
    printed: list[str]
    """Those of them where data become text. Exporters print a stand-in without a word, so that their guards miss these."""
    draws: list[str]
    """Places that draw random numbers."""


def follow(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Followed:
    """Run the model once as if it were traced, and follow its data.

    Only values computed from ``inputs`` count: a model may read its parameters. Models that branch on tracing, such as
    one that skips the check of a mask then, take that branch here too.
    """
    follower = _Follower(inputs)
    traced = patch.object(torch.jit, "is_tracing", lambda: True)
    with torch.no_grad(), traced, _threads_seen(follower), follower, _Watch(follower):
        module(*inputs)
    return Followed(*(list(dict.fromkeys(places)) for places in (follower.reads, follower.printed, follower.draws)))


class _Follower(TorchDispatchMode):  # type: ignore[misc]
    """Follows data between operators by the memory that holds them."""

    def __init__(self, sources: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.printed: list[str] = []
        self.draws: list[str] = []
        self._marked = {memory(tensor) for tensor in sources}
        self._sized: set[int] = set()
        """Memory of tensors that are as large as the data have it."""

    def sizes(self, tensor: torch.Tensor) -> bool:
        """True if the shape of a tensor depends on the sources."""
        return memory(tensor) in self._sized

    def holds(self, tensor: torch.Tensor) -> bool:
        """True if a tensor depends on the sources."""
        return memory(tensor) in self._marked

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        depends = any(map(self.holds, given))
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")  # noqa: SLF001 - no public name for it
        leaves = tree_leaves(result)
        if depends and name not in _OF_META and any(isinstance(leaf, bool | int | float | complex) for leaf in leaves):
            self.reads.append(_place())
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.draws.append(_place())
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        sized = any(map(self.sizes, given)) or (depends and _decides_sizes(function, name, given))
        self._mark(results, given, function, depends, name)
        for tensor in results:
            (self._sized.add if sized and tensor.ndim else self._sized.discard)(memory(tensor))
        return result

    def _mark(
        self, results: list[torch.Tensor], given: list[torch.Tensor], function: Any, depends: bool, name: str
    ) -> None:
        known = {memory(tensor) for tensor in given}
        for tensor in results:
            place = memory(tensor)
            if depends and name not in _OF_SHAPE:
                self._marked.add(place)
            elif place not in known:
                self._marked.discard(place)  # memory that was freed, and holds something else now
        if depends and function._schema.is_mutable:  # noqa: SLF001 - no public name for it
            # What an operator writes to is among what it is given; to mark too much errs on the safe side.
            self._marked.update(known)


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Intercepts tensor methods that are no operators."""

    def __init__(self, follower: _Follower) -> None:
        super().__init__()
        self._follower = follower

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (function in _TO_PYTHON and args and self._follower.holds(args[0])) or (
            function in _SIZES and args and self._follower.sizes(args[0])
        ):
            self._follower.reads.append(_place())
            if function is _TENSOR.__repr__:
                self._follower.printed.append(self._follower.reads[-1])
        return function(*args, **(kwargs or {}))


@contextmanager
def _threads_seen(follower: _Follower) -> Iterator[None]:
    """Count work of another thread as a read of the data: interception is limited to one thread."""

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            follower.reads.append(_place())
            return function(*args, **kwargs)

        return called

    with patch.object(Thread, "start", seen(Thread.start)), patch.object(Pool, "submit", seen(Pool.submit)):
        yield


def _decides_sizes(function: Any, name: str, given: Sequence[torch.Tensor]) -> bool:
    """True if an operator's input data decide the size of its output."""
    if name == "index":  # by position it gives as many as there are positions, by a mask as many as are true
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
    return torch.Tag.dynamic_output_shape in function.tags


def memory(tensor: torch.Tensor) -> int:
    """Identity of the memory that holds a tensor; views of it have the same."""
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - no public name for it
            return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no public name for it
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors have none
        return id(tensor)


def _place() -> str:
    """Innermost line that is neither torch's nor of this package."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename).resolve()
        if path.parent.name == module_of(CONVERTER):
            return "a node of the ONNX graph whose shape or index depends on the data"
        if not path.is_relative_to(_OURS) and not path.is_relative_to(_TORCH) and not frame.filename.startswith("<"):
            return f"{path.name}:{frame.lineno}: {frame.line or ''}".rstrip(": ")
    return "a layer of PyTorch"
