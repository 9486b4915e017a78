"""Take torch.compile, DataParallel and inference mode off a user's model, and give lazy layers their values.

Accelerating or distributing wrappers are no part of the model: lanes bring their own. Imports torch: for child processes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import TensorSpec, fixed_batch
from mlflow_ngraph.workloads.calling import ExportedGraph, tensors
from mlflow_ngraph.workloads.samples import drawn
from mlflow_ngraph.workloads.specs import running

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMPILED = "_torchdynamo_orig_callable"
"""Attribute by which a result of `torch.compile` refers to the original function."""
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_BATCH = 2


def unwrapped(model: nn.Module) -> nn.Module:
    """Remove the wrappers of `torch.compile` and `nn.DataParallel` from a model and its parts, and move it to the CPU.

    Exported programs among its parts, which torch refuses to put into evaluation mode, are wrapped.
    """
    model = _inner(model)
    seen: set[nn.Module] = set()
    pending = [model]
    while pending:
        part = pending.pop()
        if part in seen or isinstance(part, torch.jit.ScriptModule | ExportedGraph):
            continue
        seen.add(part)
        _call_eagerly(part)
        for name, child in part._modules.items():
            if child is not None:
                part._modules[name] = inner = _inner(child)
                pending.append(inner)
    _leave_inference_mode(seen)
    # What has no values cannot be moved; whoever wants values says so.
    return model if any(tensor.is_meta or is_lazy(tensor) for _, tensor in _tensors(model)) else model.cpu()


def require_values(model: nn.Module, workload: str) -> None:
    """Check that every parameter and buffer has values.

    Raises `WorkloadError` if one is on the device ``meta``, or waits for a first call.
    """
    for name, tensor in _tensors(model):
        if is_lazy(tensor):
            raise WorkloadError(f"workload {workload}: {name} is still lazy after a call of the model: give it a size")
        if tensor.is_meta:
            raise WorkloadError(
                f"workload {workload}: {name} is on the device meta and has no values: build the model on the CPU, or load "
                "weights into it with load_state_dict(..., assign=True)"
            )


def materialise(
    model: nn.Module, inputs: Sequence[TensorSpec], workload: str, samples: Sequence[NDArray[Any]] | None
) -> None:
    """Initialise lazy layers by one call of the model on its own inputs.

    Raises `WorkloadError` if the model fails on its inputs.
    """
    if not any(is_lazy(tensor) for _, tensor in _tensors(model)):
        return
    batch = fixed_batch(tuple(inputs)) or _BATCH
    with torch.no_grad(), running(workload, inputs, batch):
        model(*tensors(drawn(inputs, samples, batch, np.random.default_rng(0))))


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _inner(module: nn.Module) -> nn.Module:
    """Content of a wrapper module, with the wrapper's hooks."""
    while (inner := _wrapped(module)) is not None:
        for hooks in _HOOKS:
            getattr(inner, hooks).update(getattr(module, hooks))
        module = inner
    return ExportedGraph(module) if _has_no_modes(module) else module


def _wrapped(module: nn.Module) -> nn.Module | None:
    if type(module).__module__.startswith(
        "torch._dynamo."
    ):  # which takes long to import, and whoever needs it has done so
        return module._modules.get("_orig_mod")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner: nn.Module = module.module
        return inner
    return None


def _has_no_modes(module: nn.Module) -> bool:
    """True if a module is an exported program."""
    if not isinstance(module, torch.fx.GraphModule):
        return False
    try:
        module.train(module.training)
    except NotImplementedError:
        return True
    return False


def _call_eagerly(part: nn.Module) -> None:
    """Undo `module.compile()`, and a `torch.compile` of ``forward`` on the object or its class."""
    vars(part).pop("_compiled_call_impl", None)
    if not hasattr(part.forward, _COMPILED):
        return
    original: Callable[..., Any] = getattr(part.forward, _COMPILED)
    vars(part).pop("forward", None)
    of_class = type(part).forward
    if of_class is not original:
        part.forward = MethodType(original, part) if getattr(of_class, _COMPILED, None) is original else original


def _leave_inference_mode(parts: set[nn.Module]) -> None:
    """Replace inference-mode tensors, which are read-only outside that mode."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    for part in parts:
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None and not is_lazy(tensor) and tensor.is_inference():
                    held[name] = made.setdefault(tensor, _outside(tensor))


def _outside(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        copy = tensor.detach().clone()
        return nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy
