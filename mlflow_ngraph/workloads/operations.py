"""Operations of PyTorch by what they do with rounding errors. Imports torch: for child processes only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_ATEN = torch.ops.aten
PRODUCTS: Mapping[Any, tuple[int, int, int | None]] = {
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
SUMS = (_ATEN.sum.dim_IntList, _ATEN.sum.default, _ATEN.mean.dim, _ATEN.mean.default)
LEVELLED = frozenset(
    getattr(_ATEN, name).default
    for name in (
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "avg_pool3d"),
        *("cumsum", "grid_sampler_2d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
    )
)
"""Operations whose small results are what is left of larger numbers of the same sample."""
QUANTISING = frozenset(
    getattr(_ATEN, name).default
    for name in (
        *("quantize_per_tensor", "fake_quantize_per_tensor_affine_cachemask"),
        *("fake_quantize_per_channel_affine_cachemask", "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"),
    )
)
"""Operations that round to steps of a size that they are given."""
_STEPS = frozenset(getattr(_ATEN, name).default for name in ("round", "floor", "ceil", "trunc")) | {
    _ATEN.round.decimals,
    *QUANTISING,
}
"""Operations that give the same for all of a range: beside its ends a rounding error decides."""
COMPARISONS = frozenset(
    getattr(getattr(_ATEN, name), overload) for name in ("gt", "ge", "lt", "le") for overload in ("Tensor", "Scalar")
)
FLOORED = frozenset((_ATEN.floor_divide.default, _ATEN.div.Tensor_mode, _ATEN.div.Scalar_mode))
"""Divisions to whole numbers."""
_REMAINDERS = frozenset((_ATEN.fmod.Tensor, _ATEN.fmod.Scalar, _ATEN.remainder.Tensor, _ATEN.remainder.Scalar))
JUMPS = COMPARISONS | FLOORED | _REMAINDERS
"""Operations of two numbers that change by a jump where these, or the first one and a multiple of the second, are equal."""
SCALING = frozenset((_ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.mul_.Tensor, _ATEN.div.Tensor, _ATEN.div_.Tensor))
COUNTING = _REMAINDERS | {
    _ATEN._to_copy.default,  # noqa: SLF001 - no public name for it
    *(_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.cumsum.default),
    *(_ATEN.arange.default, _ATEN.arange.start, _ATEN.arange.start_step, _ATEN.mul.Tensor, _ATEN.mul.Scalar),
    *(_ATEN.add.Tensor, _ATEN.add.Scalar, _ATEN.add_.Tensor, _ATEN.mul_.Tensor, _ATEN.sub_.Tensor),
    *(_ATEN.sub.Tensor, _ATEN.sub.Scalar, _ATEN.rsub.Tensor, _ATEN.rsub.Scalar),
}
"""Operations that are exact for whole numbers, such as those of masks, lengths and indices."""
INNER: Mapping[Any, Callable[[Sequence[Any]], torch.Tensor | float]] = {
    _ATEN.sigmoid.default: lambda args: 1.0,
    _ATEN.elu.default: lambda args: float(math.prod(args[1:3])),
    _ATEN.celu.default: lambda args: float(args[1]) if len(args) > 1 else 1.0,
    _ATEN.expm1.default: lambda args: 1.0,
    _ATEN.tanh.default: lambda args: 0.5,
    _ATEN.erf.default: lambda args: 2.0,
    # Where it is x + log(1 + e^-x) it is off by roundings of x; below -100 it is zero to all.
    _ATEN.softplus.default: lambda args: 4.0 + args[0].abs().clamp(max=100.0),
    _ATEN.mish.default: lambda args: args[0].abs(),
    _ATEN.silu.default: lambda args: args[0].abs(),
    _ATEN.gelu.default: lambda args: args[0].abs(),
}
"""Intermediate values of the usual kernels of a function, such as e^x before e^x - 1: they are off by roundings of that,
however small the result is. A few have polynomials that are worse."""
ORDERS = frozenset(
    getattr(getattr(_ATEN, name), overload)
    for name, overload in (
        *(("topk", "default"), ("sort", "default"), ("sort", "stable"), ("argsort", "default"), ("argmax", "default")),
        *(("argmin", "default"), ("max", "dim"), ("min", "dim"), ("kthvalue", "default"), ("median", "dim")),
    )
    if hasattr(getattr(_ATEN, name), overload)
)
"""Operations that say where a number is."""
UNSTABLE = frozenset((_ATEN.topk.default, _ATEN.sort.default, _ATEN.kthvalue.default, _ATEN.median.dim))
"""Those that promise nothing of equal numbers; `argmax` and its kin name the first."""


def has_ends(function: Any) -> bool:
    """True if an operation rounds to steps, or jumps."""
    return function in _STEPS or function in JUMPS


def axis_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Axis along which an operation says where a number is."""
    names = [argument.name for argument in function._schema.arguments]  # noqa: SLF001 - no public name for it
    position = names.index("dim")
    return int(args[position] if position < len(args) else kwargs.get("dim", -1))


def product_terms(function: Any, args: Sequence[Any]) -> int:
    """Number of products that are added to one number."""
    first, second, _ = PRODUCTS[function]
    if function is _ATEN.convolution.default:
        weight = args[second]
        return int(weight[0].numel()) if not args[6] else int(weight[:, 0].numel() // max(1, args[8]))
    return int(args[first].shape[-1])


def rounds_nothing(function: Any) -> bool:
    """True if an operation rounds nothing: it changes shape or place, or chooses among numbers."""
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
        *("round", "floor", "ceil", "trunc", "sign", "isnan", "dropout", "empty_like", "new_empty"),
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
