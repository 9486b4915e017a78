"""Make timm importable where torchvision's compiled operators do not fit the installed torch."""

from __future__ import annotations

import sys
from typing import Any

_KEPT: list[Any] = []  # a torch library lives as long as its handle


def install() -> None:
    """Declare the operators that torchvision registers fake kernels for. Call before the first import of timm.

    The torchvision wheel of PyPI is built for CUDA. Beside a CPU build of torch its compiled operators do not load,
    and importing it, which timm does unconditionally, fails on their missing schemas. The models need none of them.
    """
    import torch

    if _KEPT or "torchvision" in sys.modules or torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
