"""Warm up MKL, so that PyTorch's elementary functions are exact from the first call of a process.

MKL chooses the code of a function at its first call. Where several threads do that at once, MKL before 2025 may give
one of them code of low accuracy, for this one call: wrong from the fourth digit on
(https://github.com/pytorch/pytorch/issues/188792). Seeded weights then differ between processes, and a reference is not
the model's output. Imports torch: for child processes only.
"""

from __future__ import annotations

from functools import cache

import torch

FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10",
    "log1p", "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
"""Those that MKL has, as far as PyTorch has them too."""
_FEW = 64
"""Numbers that one thread takes alone."""


@cache
def warm_up() -> None:
    """Call each function once, in one thread, before any other computation. Calling it again does nothing."""
    for kind in (torch.float32, torch.float64):
        numbers = torch.full((_FEW,), 0.5, dtype=kind)
        for name in FUNCTIONS:
            getattr(torch, name)(numbers)
