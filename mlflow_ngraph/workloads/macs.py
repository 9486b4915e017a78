"""Count parameters and multiply-accumulates. Imports torch: for child processes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlflow_ngraph.workloads.calling import Graph
from mlflow_ngraph.workloads.evaluation import modes_restored


def count(module: nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[int, int | None, int]:
    """Parameters, the paper's MACs and true MACs of one inference with ``inputs``.

    With inputs of batch size 1 the MACs are those of one sample. The paper's MACs are those of torchinfo: a linear
    layer counts once a sample, attention products and functional layers not at all; None for a model without layers.
    True MACs count every executed matrix product and convolution. A module and inputs on the device ``meta`` are
    counted without computing anything.
    """
    parameters = sum(parameter.numel() for parameter in module.parameters())
    layered = not any(isinstance(part, Graph | torch.jit.ScriptModule) for part in module.modules())
    with modes_restored(module):
        paper_macs = _torchinfo_macs(module, inputs) if layered else None
        with _countable_attention(), torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(*inputs)
    return parameters, paper_macs, counter.get_total_flops() // 2


def _torchinfo_macs(module: nn.Module, inputs: Sequence[torch.Tensor]) -> int:
    import torchinfo

    summary = torchinfo.summary(module, input_data=list(inputs), device=inputs[0].device, mode="eval", verbose=0)
    return int(summary.total_mult_adds)


@contextmanager
def _countable_attention() -> Iterator[None]:
    """Run attention as plain matrix products: the counter does not know the fused kernels of a CPU."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
