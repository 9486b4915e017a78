"""What rounding does to outputs, and what a missing part does: the margins of docs/explanation/parity.md.

``python benchmarks/parity_margins.py [--study compiler-matrix] [--batch 4] [--workloads TEXT,...] [--parts]``

For each model: the error of eager execution in fp32 with other kernels (PyTorch's own instead of oneDNN's), with the
operands of every product rounded to tf32 and to bf16 (sums stay in fp32, as tensor cores do it), wholly in bf16, and
wholly in fp16. With ``--parts`` instead, the smallest effect of leaving out one residual block, attention or
perceptron. Imports torch.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from mlflow_ngraph.parity import Parity, compare
from mlflow_ngraph.study import load
from mlflow_ngraph.workloads.base import Init
from mlflow_ngraph.workloads.registry import create

_ATEN = torch.ops.aten
_OPERANDS = {
    _ATEN.convolution.default: (0, 1),
    _ATEN.mm.default: (0, 1),
    _ATEN.bmm.default: (0, 1),
    _ATEN.addmm.default: (1, 2),
    _ATEN.baddbmm.default: (1, 2),
}
"""Every product that eager execution comes down to, with the positions of its factors."""
_FRACTION = 23
_BRANCHES = ("attention", "mlp")
_BLOCKS = ("block", "bottleneck", "layer", "residual")


class Rounded(TorchDispatchMode):  # type: ignore[misc]
    """Within the block the factors of every product have ``bits`` bits of fraction."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._drop = _FRACTION - bits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = list(args)
        for place in _OPERANDS.get(function, ()):
            values[place] = self._round(values[place])
        return function(*values, **(kwargs or {}))

    def _round(self, factor: torch.Tensor) -> torch.Tensor:
        """To nearest, ties to even."""
        whole = factor.contiguous().view(torch.int32)
        up = (1 << (self._drop - 1)) - 1 + ((whole >> self._drop) & 1)
        return ((whole + up) & ~((1 << self._drop) - 1)).view(torch.float32)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="compiler-matrix")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workloads", default="", help="only those whose reference contains one of these texts")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    # Its fast path is one operator, which hides the products within.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_grad_enabled(False)
    print("model, then for each row: 1 - cosine, relative error, share of equal largest outputs")
    for choice in load(options.study).workloads:
        if not any(text in choice.ref for text in options.workloads.split(",")):
            continue
        workload = create(choice.parsed(), Init())
        model = workload.module()
        rng = np.random.default_rng(0)
        inputs = [torch.from_numpy(spec.random(options.batch, rng)) for spec in workload.inputs()]
        print(workload.label, flush=True)
        for name, found in parts(model, inputs) if options.parts else rounding(model, inputs):
            print(f"  {name:10} {1 - found.cosine:9.1e} {found.max_rel:9.1e} {found.top1:5.2f}", flush=True)


def rounding(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Iterator[tuple[str, Parity]]:
    """The error of each way to compute the model."""
    reference = outputs(model, inputs)
    with torch.backends.mkldnn.flags(enabled=False):
        yield "fp32", compare(outputs(model, inputs), reference)
    for name, bits in (("tf32", 10), ("bf16 only in products", 7)):
        with sdpa_kernel(SDPBackend.MATH), Rounded(bits):
            yield name, compare(outputs(model, inputs), reference)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        short = copy.deepcopy(model).to(dtype)
        cast = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
        yield name, compare(outputs(short, cast), reference)


def parts(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Iterator[tuple[str, Parity]]:
    """The part that is missed least, if the model has parts that can be left out."""
    reference = outputs(model, inputs)
    effects = []
    for name in removable(model, inputs):
        branch = type(model.get_submodule(name)).__name__.lower() in _BRANCHES
        with replaced(model.get_submodule(name), torch.zeros_like if branch else None):
            effects.append((name, compare(outputs(model, inputs), reference)))
    if effects:
        yield max(effects, key=lambda effect: effect[1].cosine)


def removable(model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[str]:
    """Blocks and branches whose output has the shape of their input."""
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, made: Any) -> None:
            if given and isinstance(made, torch.Tensor) and made.shape == given[0].shape:
                found.append(name)

        return hook

    kinds = {name: type(module).__name__.lower() for name, module in model.named_modules() if name}
    hooks = [
        model.get_submodule(name).register_forward_hook(look(name))
        for name, kind in kinds.items()
        if kind in _BRANCHES or (kind not in ("sequential", "batchnorm2d") and kind.endswith(_BLOCKS))
    ]
    outputs(model, inputs)
    for hook in hooks:
        hook.remove()
    return found


@contextmanager
def replaced(module: nn.Module, by: Callable[[torch.Tensor], torch.Tensor] | None) -> Iterator[None]:
    """Within the block ``module`` gives ``by`` of its output, or its own input where that is None."""
    hook = module.register_forward_hook(lambda _, given, made: given[0] if by is None else by(made))
    try:
        yield
    finally:
        hook.remove()


def outputs(model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """All outputs in fp32."""
    made = model(*inputs)
    return [tensor.float().numpy() for tensor in ([made] if isinstance(made, torch.Tensor) else made)]


if __name__ == "__main__":
    main()
