"""Seed or skip the drawing of parameters, and adjust random ones so that every branch of a network matters.

Published initialisations switch residual branches off: the last normalisation of a ResNet branch and the LayerScale of
a transformer start at (almost) zero, so an engine could drop the branch unnoticed. `calibrate` replaces constants by
random values, lifts weights that are too small to carry a signal, and fits the running statistics of batch
normalisation to random inputs. The other danger is a chaotic network: with batch normalisation around zero in front of
every rectifier, a rounding error in the first layer of a deep network grows a thousandfold, and a correct engine looks
wrong. So signals are shifted towards the linear side, and branches are damped where they end. Imports torch: for child
processes only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.calling import tensors
from mlflow_ngraph.workloads.samples import drawn
from mlflow_ngraph.workloads.specs import running

_DRAWS = (
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.erfinv_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_normal_,
    nn.init.kaiming_uniform_,
)
"""Functions that fill a tensor with random numbers, as far as torch lets them be intercepted."""
_BATCH = 4
_BATCHES = 2
_NORMALISATIONS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_WEIGHT_DIMENSIONS = 2
_SHIFT = 0.5
"""Mean bias of a batch normalisation; at 0 EfficientNet-B5 amplifies a perturbation of its input 2000 times."""
_BRANCH_SCALE = 0.3
"""Mean weight of the batch normalisation that ends a residual branch."""
_BARE_STD = 0.5
"""Standard deviation of position embeddings, class tokens and attention bias tables: about that of the signal."""
_GATE_LIMIT = 1e-2
"""A constant vector up to this size switches a branch off; a larger one is left as it is."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and Python within the block, and restore their generators after it."""
    python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # what those who name no generator draw from
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(of_numpy)


class Uninitialised(TorchFunctionMode):  # type: ignore[misc]
    """Skip drawing parameters within the block: several times faster when saved ones follow."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def calibrate(
    model: nn.Module,
    inputs: Sequence[TensorSpec],
    seed: int,
    workload: str,
    samples: Sequence[NDArray[Any]] | None = None,
) -> None:
    """Make every parameter of a randomly initialised ``model`` matter, in place; reproducible by seed.

    Raises `WorkloadError` if the model fails on its inputs.
    """
    with torch.no_grad():
        _enliven_all(model, torch.Generator().manual_seed(seed))
        with running(workload, inputs, _BATCH):
            _fit_statistics(model, inputs, seed, samples)


def _enliven_all(model: nn.Module, generator: torch.Generator) -> None:
    ends = set(_branch_ends(model))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, _BatchNorm):
                weight, bias = (_BRANCH_SCALE, 0.0) if module in ends else (1.0, _SHIFT)
                parameter.normal_(weight if name == "weight" else bias, 0.1, generator=generator)
            elif parameter.is_floating_point():
                _enliven(module, name, parameter, generator)


def _branch_ends(model: nn.Module) -> Iterator[nn.Module]:
    """Last of several batch normalisations of a block, which by convention ends the block's branch."""
    for module in model.modules():
        normalisations = [child for child in module.children() if isinstance(child, _BatchNorm)]
        if len(normalisations) > 1 and module is not model:
            yield normalisations[-1]


def _enliven(module: nn.Module, name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    constant = bool((parameter == parameter.flatten()[0]).all())
    if isinstance(module, _NORMALISATIONS):
        parameter.normal_(1.0 if name == "weight" else 0.0, 0.1, generator=generator)
    elif constant:
        _replace_constant(name, parameter, generator)
    elif name.endswith("weight") and parameter.ndim >= _WEIGHT_DIMENSIONS:
        _lift(parameter, 1 / math.sqrt(parameter[0].numel()))
    elif not name.endswith("bias"):
        _lift(parameter, _BARE_STD)


def _replace_constant(name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    value = float(parameter.flatten()[0])
    if abs(value) > _GATE_LIMIT:
        return
    if parameter.numel() == 1:
        parameter.fill_(1.0)  # a scalar gate, such as the skip gain of a normaliser-free network
    elif name.endswith("bias"):
        parameter.normal_(0.0, 0.1, generator=generator)
    elif name.endswith("weight") and parameter.ndim >= _WEIGHT_DIMENSIONS:
        parameter.normal_(0.0, 1 / math.sqrt(parameter[0].numel()), generator=generator)
    elif parameter.ndim == 1:
        parameter.normal_(1.0, 0.2, generator=generator)  # LayerScale
    else:
        parameter.normal_(0.0, _BARE_STD, generator=generator)


def _lift(parameter: nn.Parameter, target: float) -> None:
    """Scale up to a standard deviation that preserves the size of a signal; larger parameters stay."""
    spread = float(parameter.std())
    if 0 < spread < target:
        parameter.mul_(target / spread)


def _fit_statistics(
    model: nn.Module, inputs: Sequence[TensorSpec], seed: int, samples: Sequence[NDArray[Any]] | None
) -> None:
    """Set the running statistics of batch normalisation to averages over a few batches."""
    normalisations = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not normalisations:
        return
    momenta = [module.momentum for module in normalisations]
    for module in normalisations:
        module.reset_running_stats()
        module.momentum = None  # a plain average instead of a moving one
        module.train()
    rng = np.random.default_rng(seed)
    for _ in range(_BATCHES):
        model(*tensors(drawn(inputs, samples, _BATCH, rng)))
    for module, momentum in zip(normalisations, momenta, strict=True):
        module.momentum = momentum
        module.eval()
