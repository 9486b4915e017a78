"""Elementary functions of PyTorch on the CPU, as exact in a process's first call as in every other.

PyTorch leaves them to MKL, which chooses the code of a function when it is called for the first time. Where several threads
do that at once, MKL before 2025 may give one of them code of low accuracy, for this one call: wrong from the fourth digit on
(https://github.com/pytorch/pytorch/issues/188792). Seeded weights then are others than in the process before, and a reference
is not what a model computes. Imports torch: for child processes only.
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
def settle() -> None:
    """Call each function once, in one thread. Before anything else is computed; calling it again does nothing."""
    for kind in (torch.float32, torch.float64):
        numbers = torch.full((_FEW,), 0.5, dtype=kind)
        for name in FUNCTIONS:
            getattr(torch, name)(numbers)
