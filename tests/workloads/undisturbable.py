"""Modules that run as they are, and not in another arithmetic: each in a way of its own.

All take ``[batch, 8]`` in float32. What keeps them from being watched is what people write: checks of types and values,
NumPy in the middle, operators without a kernel for doubles, buffers of one type, wrappers, threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

WAYS: dict[str, Callable[[], nn.Module]] = {}
_WIDTH = 8


class _Way(nn.Module):
    """A layer around which something is done."""

    def __init__(self, code: Callable[[torch.Tensor, nn.Module], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.code = code

    def forward(self, given: torch.Tensor) -> Any:
        return self.code(given, self.layer)


def _way(code: Callable[[torch.Tensor, nn.Module], Any]) -> Callable[[torch.Tensor, nn.Module], Any]:
    WAYS[code.__name__] = lambda: _Way(code)
    return code


def _module(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    WAYS[make.__name__] = make
    return make


def _watched() -> bool:
    return _get_current_dispatch_mode() is not None


def _plain() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(_WIDTH, _WIDTH)


@_way
def refuses_to_be_watched(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    if _watched():
        raise RuntimeError("not here")
    return layer(given)


@_way
def exits_when_watched(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    if _watched():
        raise SystemExit(3)
    return layer(given)


@_way
def asserts_that_nobody_watches(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    assert not _watched()
    return layer(given)


@_way
def runs_out_of_depth_when_watched(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    if _watched():
        raise RecursionError("maximum recursion depth exceeded")
    return layer(given)


@_way
def insists_on_float(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    hidden = layer(given)
    if hidden.dtype != torch.float32:
        raise TypeError(f"expected float32, got {hidden.dtype}")
    return hidden


@_way
def insists_on_a_plain_tensor(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    if type(given) is not torch.Tensor or given.dtype is not torch.float32:
        raise TypeError("expected a plain tensor")
    return layer(given)


@_way
def squares_in_numpy(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.from_numpy(np.square(layer(given).numpy()))


@_way
def fills_a_float_buffer(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    buffer = np.zeros(tuple(given.shape), np.float32)
    torch.from_numpy(buffer).copy_(layer(given))
    return torch.from_numpy(buffer * 2)


@_way
def reads_its_bits(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return layer(given).view(torch.int32).bitwise_and(-2).view(torch.float32)


@_way
def puts_into_floats(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    kept = torch.zeros(given.shape, dtype=torch.float32)
    kept.index_put_((torch.arange(given.shape[0]),), layer(given))
    return kept


@_way
def adds_into_floats(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    kept = torch.zeros(given.shape, dtype=torch.float32)
    return kept.scatter_add_(1, torch.zeros(given.shape, dtype=torch.int64), layer(given))


@_way
def writes_where_it_is_told(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    kept = torch.empty(given.shape, dtype=torch.float32)
    torch.mul(layer(given), 3, out=kept)
    return kept


@_way
def multiplies_by_a_list(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return layer(given) @ torch.tensor([[0.5] * _WIDTH] * _WIDTH)


@_way
def decides_by_an_exact_number(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    hidden = layer(given)
    if float(hidden.sum()) != float(layer(given).sum()):
        raise ValueError("the same is not the same")
    return hidden


@_way
def insists_on_whole_sums(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    hidden = torch.softmax(layer(given), -1)
    torch.testing.assert_close(hidden.sum(-1), torch.ones(given.shape[0]), atol=1e-6, rtol=0)
    return hidden


@_way
def caches_by_value(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    known: dict[bytes, torch.Tensor] = {}
    known[layer(given).numpy().tobytes()] = layer(given)
    return known[layer(given).numpy().tobytes()] * 2


@_way
def works_in_a_thread(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    found = []

    def work() -> None:
        with torch.no_grad():
            found.append(torch.tanh(layer(given)) * 3)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


@_way
def quantises(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.quantize_per_tensor(layer(given), 0.05, 0, torch.qint8).dequantize()


@_way
def fakes_quantisation(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(layer(given), 0.05, 0, -128, 127)


@_way
def multiplies_sparsely(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.sparse.mm(torch.eye(given.shape[0]).to_sparse(), layer(given))


@_way
def transforms_by_frequency(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(layer(given)) * 0.5, n=_WIDTH)


@_way
def splits_numbers(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    mantissa, exponent = torch.frexp(layer(given))
    return torch.ldexp(mantissa, exponent)


@_way
def takes_the_next_number(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    hidden = layer(given)
    return torch.nextafter(hidden, torch.full_like(hidden, math.inf, dtype=torch.float32))


@_way
def nests(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    nested = torch.nested.nested_tensor(list(layer(given)))
    return torch.nested.to_padded_tensor(nested, 0.0) * 2


@_way
def computes_in_bfloat16(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(given).float()


@_way
def infers_inside(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return layer(given) * 2


@_way
def maps_samples(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.vmap(layer)(given)


@_way
def calls_functionally(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    halved = {name: value / 2 for name, value in layer.named_parameters()}
    return torch.func.functional_call(layer, halved, given)


@_way
def sets_the_default_type(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return layer(given) * torch.tensor(0.5).float()
    finally:
        torch.set_default_dtype(before)


@_way
def flushes_small_numbers(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    torch.set_flush_denormal(True)
    try:
        return layer(given)
    finally:
        torch.set_flush_denormal(False)


class _Halving(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
        if given.dtype != torch.float32:
            raise TypeError("only floats are halved")
        return given / 2


@_way
def has_a_function_of_its_own(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return _Halving.apply(layer(given))


@torch.library.custom_op("undisturbable::doubled", mutates_args=())
def _doubled(given: torch.Tensor) -> torch.Tensor:
    if given.dtype != torch.float32:
        raise NotImplementedError(f'"doubled" not implemented for {given.dtype}')
    return given * 2


@_way
def has_an_operator_of_its_own(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return _doubled(layer(given))


@torch.library.custom_op("undisturbable::rounded", mutates_args=())
def _rounded(given: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(given.numpy(), np.float32) * np.float32(2))


@_way
def has_an_operator_in_numpy(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return _rounded(layer(given))


@_module
def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(_plain(), nn.GELU()))


@_module
def traced() -> nn.Module:
    return torch.jit.trace(nn.Sequential(_plain(), nn.Softmax(-1)), torch.zeros(2, _WIDTH))


@_module
def in_parallel() -> nn.Module:
    return nn.DataParallel(_plain())


@_module
def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(_plain(), nn.ReLU()), {nn.Linear}, torch.qint8)


@_module
def normalised() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(_plain())


@_module
def checked_before() -> nn.Module:
    layer = _plain()

    def check(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if _watched() or given[0].dtype != torch.float32:
            raise TypeError("a hook that looks before")

    layer.register_forward_pre_hook(check)
    return layer


@_module
def checked_after() -> nn.Module:
    layer = _plain()

    def check(_: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(output.detach().numpy().astype(np.float32)) * 2

    layer.register_forward_hook(check)
    return layer


class _Weight(torch.Tensor):
    def detach(self) -> torch.Tensor:
        return super().detach().as_subclass(_Weight)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _watched():
            raise TypeError("a weight of a class of its own")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


@_module
def has_weights_of_a_class() -> nn.Module:
    layer = _plain()
    layer.weight = nn.Parameter(layer.weight.data.as_subclass(_Weight), requires_grad=False)
    return layer


@_module
def recomputes() -> nn.Module:
    return _Way(lambda given, layer: torch.utils.checkpoint.checkpoint(layer, given, use_reentrant=True))


@_module
def remembers_where_it_was() -> nn.Module:
    seen: set[int] = set()

    def code(given: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        if _watched() and id(given) not in seen:
            raise LookupError("nobody has seen this tensor")
        seen.add(id(given))
        return layer(given)

    return _Way(code)
