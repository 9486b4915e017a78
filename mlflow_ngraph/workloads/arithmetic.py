"""Run a PyTorch model in other arithmetic than its own: in double precision, or with every operation a little off.

Both watch the operations that a model comes down to (``TorchDispatchMode``), so that neither its weights nor its code has
to be changed: wrapped, scripted and hooked modules run as they are. Imports torch: for child processes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

_ATEN = torch.ops.aten
_WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
TIMES = 8.0
"""How many roundings an operation is off: enough to stand out from those that it makes itself, and few enough for the effect
to be in proportion."""
_ROUND_OFF = {kind: torch.finfo(kind).eps / 2 for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
_PRODUCTS: Mapping[Any, tuple[int, int, int | None]] = {
    _ATEN.mm.default: (0, 1, None),
    _ATEN.bmm.default: (0, 1, None),
    _ATEN.mv.default: (0, 1, None),
    _ATEN.dot.default: (0, 1, None),
    _ATEN.addmm.default: (1, 2, 0),
    _ATEN.baddbmm.default: (1, 2, 0),
    _ATEN.addmv.default: (1, 2, 0),
    _ATEN.convolution.default: (0, 1, 2),
}
"""Sums of products: the positions of their factors, and of what is added to them."""
_SUMS = (_ATEN.sum.dim_IntList, _ATEN.sum.default, _ATEN.mean.dim, _ATEN.mean.default)
_STEPS = frozenset(
    getattr(_ATEN, name).default
    for name in ("round", "floor", "ceil", "trunc", "fake_quantize_per_tensor_affine", "quantize_per_tensor")
) | {_ATEN.round.decimals}
"""Operations that give the same for all of a range: beside its ends a rounding error decides."""
_ORDERS = frozenset(
    getattr(getattr(_ATEN, name), overload)
    for name, overload in (
        *(("topk", "default"), ("sort", "default"), ("sort", "stable"), ("argsort", "default"), ("argmax", "default")),
        *(("argmin", "default"), ("max", "dim"), ("min", "dim"), ("kthvalue", "default"), ("median", "dim")),
    )
    if hasattr(getattr(_ATEN, name), overload)
)
"""Operations that say where a number is."""
_LONG = 64
"""Terms from which on the order of a sum is worth a run of its own."""
_MOST_TERMS = 2**24
"""Terms that are added one by one, at most: more would take too long."""


@contextmanager
def plain_operations(*, recurrent: bool) -> Iterator[None]:
    """Within the block no fused operator hides what a model computes.

    Parameters
    ----------
    recurrent : bool
        Whether the model has layers that oneDNN runs whole.
    """
    with ExitStack() as stack:
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if recurrent:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


def is_recurrent(module: torch.nn.Module) -> bool:
    """Whether a model has layers that oneDNN runs whole."""
    return any(isinstance(part, torch.nn.RNNBase) for part in module.modules())


class Wide(TorchDispatchMode):  # type: ignore[misc]
    """Within the block everything is computed in double precision, also what the model itself would round.

    Tensors of a narrower type are never written to: an operation that changes one changes its wide copy, which takes its
    place until the block ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._calls = _WideCalls(self)

    def __enter__(self) -> Wide:
        super().__enter__()
        self._calls.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.__exit__(*error)
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self.widened, (args, kwargs or {}))
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
    """Widens what functions are called with: some see that all they are given is of one type before they do anything."""

    def __init__(self, wide: Wide) -> None:
        super().__init__()
        self._wide = wide

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _ABOUT:
            return function(*args, **(kwargs or {}))
        args, kwargs = tree_map(self._wide.widened, (args, kwargs or {}))
        return function(*args, **kwargs)


_ABOUT = frozenset((torch.Tensor.__repr__, torch.Tensor.data_ptr, torch.Tensor.untyped_storage))
"""What asks about a tensor itself."""


class Disturbed(TorchDispatchMode):  # type: ignore[misc]
    """Within the block the result of every operation is off by a few roundings of its own element type.

    Parameters
    ----------
    coherent : bool
        Every channel is off by a factor of its own, the same at all places and in all samples, as where all of them run
        through the same kernel; else each number is.
    at_steps : bool
        What lies beside the end of a range that is rounded to one number falls to its other side, always.
    """

    def __init__(self, seed: int, *, coherent: bool = False, at_steps: bool = False) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._coherent = coherent
        self._at_steps = at_steps
        self.steps = 0
        """Operations that have such ends."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _STEPS:
            self.steps += 1
            if self._at_steps:
                step = partial(function, **kwargs) if kwargs else function
                args = (self._across(step, *args), *args[1:])
        if function in _ORDERS and args[0].dtype in _ROUND_OFF:
            # Which of several equal numbers comes first is left to each compiler.
            args = (self.disturb(args[0]), *args[1:])
        result = function(*args, **kwargs)
        if _is_view(function):
            return result
        leaves, structure = tree_flatten(result)
        moved = [self._moved(leaf) for leaf in leaves]
        return tree_unflatten(
            [new if new is not None else old for new, old in zip(moved, leaves, strict=True)], structure
        )

    def disturb(self, tensor: torch.Tensor) -> torch.Tensor:
        """An input that is off by as much; zeros are, too, by a share of what is usual in it."""
        if tensor.dtype not in _ROUND_OFF:
            return tensor
        if not tensor.numel():
            return tensor
        usual = float(tensor.abs().nan_to_num(0.0, 0.0).mean())
        return tensor + (tensor.abs() + (1e-2 * usual if usual > 0 else 1.0)) * self._factors(tensor)

    def _moved(self, leaf: Any) -> Any:
        if (
            not isinstance(leaf, torch.Tensor)
            or leaf.dtype not in _ROUND_OFF
            or not leaf.numel()
            or leaf.layout != torch.strided
        ):
            return None
        # In place: an operation may have written into a tensor that others hold.
        return leaf.add_(torch.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0) * self._factors(leaf))

    def _factors(self, tensor: torch.Tensor) -> torch.Tensor:
        shape = tensor.shape
        if self._coherent:
            channel = _channel(tensor)
            shape = torch.Size(size if axis == channel else 1 for axis, size in enumerate(shape))
            drawn = torch.randint(0, 2, shape, generator=self._generator, dtype=torch.int8).mul_(2).sub_(1)
        else:
            drawn = torch.rand(shape, generator=self._generator, dtype=torch.float32).mul_(2).sub_(1)
        return drawn.to(tensor.dtype) * (TIMES * _ROUND_OFF[tensor.dtype])

    def _across(self, function: Any, given: torch.Tensor, *rest: Any) -> torch.Tensor:
        """What lies beside the end of a range, put to its other side."""
        if given.dtype not in _ROUND_OFF:
            return given
        near = _BESIDE * _ROUND_OFF[given.dtype] * (given.abs() + given.abs().mean())
        if function in (_ATEN.fake_quantize_per_tensor_affine.default, _ATEN.quantize_per_tensor.default):
            near = torch.clamp(near, max=float(rest[0]) / 4)
        else:
            near = torch.clamp(near, max=0.25)
        low, high = function(given - near, *rest), function(given + near, *rest)
        if low.is_quantized:
            low, high = low.dequantize(), high.dequantize()
        beside = low != high
        here = function(given, *rest)
        here = here.dequantize() if here.is_quantized else here
        return torch.where(beside, torch.where(here == low, given + near, given - near), given)


_BESIDE = 32.0
"""How many roundings lie between a number and the end of a range that it is beside."""


class Naive(TorchDispatchMode):  # type: ignore[misc]
    """Within the block long sums are taken term by term, in the precision of the terms."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        """Terms of the longest sum that was met, of any kind."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in _PRODUCTS:
            return self._product(function, args, result)
        if function not in _SUMS or args[0].dtype is not torch.float32 or not args[0].numel():
            return result
        axes = [axis % args[0].dim() for axis in args[1] or range(args[0].dim())] if len(args) > 1 else None
        axes = list(range(args[0].dim())) if axes is None else axes
        terms = math.prod(args[0].shape[axis] for axis in axes)
        self.longest = max(self.longest, terms)
        if terms < _LONG or args[0].numel() > _MOST_TERMS or kwargs.get("dtype") not in (None, torch.float32):
            return result
        kept = [axis for axis in range(args[0].dim()) if axis not in axes]
        rows = args[0].detach().permute(*axes, *kept).reshape(terms, -1).numpy()
        summed = torch.from_numpy(np.add.accumulate(rows, axis=0, dtype=np.float32)[-1].copy())
        if function in (_ATEN.mean.dim, _ATEN.mean.default):
            summed = summed / terms
        return summed.reshape(result.shape)

    def _product(self, function: Any, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
        terms = _terms(function, args)
        self.longest = max(self.longest, terms)
        if function is not _ATEN.mm.default and function is not _ATEN.addmm.default:
            return result
        first, second, added = _PRODUCTS[function]
        left, right = args[first], args[second]
        if (
            left.dtype is not torch.float32
            or terms < _LONG
            or left.shape[0] * left.shape[1] * right.shape[1] > _MOST_TERMS
        ):
            return result
        products = left.detach().t()[:, :, None].numpy() * right.detach()[:, None, :].numpy()
        summed = torch.from_numpy(np.add.accumulate(products, axis=0, dtype=np.float32)[-1].copy())
        return summed if added is None else summed + args[added]


def _terms(function: Any, args: Sequence[Any]) -> int:
    """How many products are added to one number."""
    first, second, _ = _PRODUCTS[function]
    if function is _ATEN.convolution.default:
        weight = args[second]
        return int(weight[0].numel()) if not args[6] else int(weight[:, 0].numel() // max(1, args[8]))
    return int(args[first].shape[-1])


def _channel(tensor: torch.Tensor) -> int:
    """The axis of the channels: the second of images, the last of anything else."""
    return 1 if tensor.dim() in (4, 5) else tensor.dim() - 1


def _is_view(function: Any) -> bool:
    """Whether an operation gives what it was given, in another form or at another place."""
    returns = function._schema.returns  # noqa: SLF001 - torch says it nowhere else
    if returns and all(value.alias_info is not None and not value.alias_info.is_write for value in returns):
        return True
    return function in _COPIES


_COPIES = frozenset(
    getattr(_ATEN, name).default
    for name in (
        *("clone", "lift_fresh", "lift_fresh_copy", "detach", "contiguous", "cat", "stack", "gather", "repeat"),
        *(
            "index_select",
            "constant_pad_nd",
            "embedding",
            "copy_",
            "zeros",
            "ones",
            "relu",
            "relu_",
            "neg",
            "abs",
            "flip",
        ),
        *("max_pool2d_with_indices", "where", "masked_fill", "roll", "tril", "triu", "empty", "fill_", "zero_"),
        *("zeros_like", "ones_like", "full", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "eye"),
        *("round", "floor", "ceil", "trunc", "sign", "isnan", "constant_pad_nd", "dropout", "empty_like", "new_empty"),
    )
    if hasattr(getattr(_ATEN, name, None), "default")
) | frozenset(
    getattr(getattr(_ATEN, name), overload)
    for name, overload in (
        *(("where", "self"), ("where", "ScalarOther"), ("masked_fill", "Scalar"), ("masked_fill", "Tensor")),
        *(
            ("index", "Tensor"),
            ("fill_", "Scalar"),
            ("maximum", "default"),
            ("minimum", "default"),
            ("sort", "default"),
        ),
        *(("amax", "default"), ("amin", "default"), ("max", "dim"), ("min", "dim"), ("topk", "default")),
        *(
            ("empty", "memory_format"),
            ("clamp", "default"),
            ("clamp_min", "default"),
            ("max", "default"),
            ("min", "default"),
        ),
    )
    if hasattr(getattr(_ATEN, name, None), overload)
)
"""Operations that round nothing: they choose among numbers, or are exact."""
