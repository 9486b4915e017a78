"""Run a PyTorch model in other arithmetic than its own: with every operation a little off, or across rounding steps.

Modes intercept a model's operations (``TorchDispatchMode``), so that neither its weights nor its code has to be changed:
wrapped, scripted and hooked modules run unchanged. Imports torch: for child processes only.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mlflow_ngraph.workloads.data_reads import memory
from mlflow_ngraph.workloads.operations import (
    COMPARISONS,
    COUNTING,
    FLOORED,
    INNER,
    JUMPS,
    LEVELLED,
    ORDERS,
    PRODUCTS,
    QUANTISING,
    SCALING,
    SUMS,
    UNSTABLE,
    axis_of,
    has_ends,
    product_terms,
    rounds_nothing,
)

_ATEN = torch.ops.aten
OF_STEPS = 4.0
"""The same for what falls to the other side of a step: all of it does at once, so an engine may be off by twice that."""
TIMES = 8.0
"""Error of a disturbed operation in roundings: enough to stand out from those that it makes itself, and few enough for the effect
to be in proportion."""
_ROUND_OFF = {kind: torch.finfo(kind).eps / 2 for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
_SMALLEST = {**dict.fromkeys(_ROUND_OFF, 0.0), torch.float32: torch.finfo(torch.float32).tiny}
"""Sizes below which many kernels give zero."""


@contextmanager
def plain_operations(*, recurrent: bool) -> Iterator[None]:
    """Replace fused operators by plain ones within the block; ``recurrent`` models have layers that oneDNN fuses."""
    with ExitStack() as stack:
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # PyTorch compiles torch.cond and its kin in eager execution too, and does not within a mode.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if recurrent:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


def is_recurrent(module: torch.nn.Module) -> bool:
    """True if a model has layers that oneDNN fuses."""
    return any(isinstance(part, torch.nn.RNNBase) for part in module.modules())


class Intercepting(TorchDispatchMode):  # type: ignore[misc]
    """Pass every operation within the block to ``computed``, those of the branches and loops of a graph too."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(function, HigherOrderOperator):
            args, kwargs = tree_map(self._entered, (args, kwargs or {}))
            return function(*args, **kwargs)
        return self.computed(function, args, kwargs or {})

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Result of an operation, in this mode's arithmetic."""
        raise NotImplementedError

    def _entered(self, value: Any) -> Any:
        """A function of a graph that runs within this mode, which is left while ``__torch_dispatch__`` runs."""
        if not callable(value):
            return value

        def entered(*args: Any) -> Any:
            with self:
                return value(*args)

        return entered


class Disturbed(Intercepting):
    """Disturb the result of every operation within the block by a few roundings of its own type.

    With ``coherent`` every channel has one factor for all places and samples, as when all run through the same kernel;
    else each number has its own. ``own`` are the model's parameters and buffers, which stay as they are: some models write to them.
    """

    def __init__(self, seed: int, *, coherent: bool = False, own: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._own = {memory(tensor) for tensor in own}
        self._generator = torch.Generator().manual_seed(seed)
        self._coherent = coherent
        self.steps = 0
        """Operations that round to steps, or compare."""
        self.orders = 0
        """Operations that say where a number is."""
        self.equal: dict[int, torch.Tensor] = {}
        """Places where compared numbers are equal, or a number is the end of a step, by the operation's number among ``steps``."""

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_ends(function):
            ends = _on_ends(function, *args[:2])
            if ends is not None:
                self.equal[self.steps] = ends
            self.steps += 1
        if function in ORDERS and args[0].dtype in _ROUND_OFF:
            # Which of several equal numbers comes first is left to each compiler.
            self.orders += 1
            return _chosen(function, args, kwargs, function(self.disturb(args[0]), *args[1:], **kwargs))
        if function in UNSTABLE and args[0].dim():
            self.orders += 1
            return self._in_other_order(function, args, kwargs)
        result = function(*args, **kwargs)
        if rounds_nothing(function) or _is_exact(function, args, kwargs, result):
            return result  # what was off by chance could be put back to the side where it is
        leaves, structure = tree_flatten(result)
        moved = [self._moved(leaf, _inner(function, args, kwargs, leaf)) for leaf in leaves]
        return tree_unflatten(
            [new if new is not None else old for new, old in zip(moved, leaves, strict=True)], structure
        )

    def disturb(self, tensor: torch.Tensor) -> torch.Tensor:
        """Disturb an input by as much; zeros by a share of its usual size."""
        if tensor.dtype not in _ROUND_OFF:
            return tensor
        if not tensor.numel():
            return tensor
        size = _finite(tensor)
        usual = float(size.mean())
        return tensor + (size + (1e-2 * usual if usual > 0 else 1.0)) * self._factors(tensor)

    def disturb_input(self, tensor: torch.Tensor) -> torch.Tensor:
        """Disturb an input, unless it is a mask of zeros and ones."""
        if tensor.dtype in _ROUND_OFF and bool(tensor.any()) and bool(((tensor == 0) | (tensor == 1)).all()):
            return tensor
        return self.disturb(tensor)

    def _in_other_order(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Result of an operation that says where a whole number is, with another one of those that are equal."""
        numbers, axis = args[0], axis_of(function, args, kwargs)
        order = torch.randperm(numbers.shape[axis], generator=self._generator)
        found, places = function(numbers.index_select(axis, order), *args[1:], **kwargs)
        return found, order[places]

    def _moved(self, leaf: Any, inner: torch.Tensor | float) -> Any:
        if (
            not isinstance(leaf, torch.Tensor)
            or leaf.dtype not in _ROUND_OFF
            or not leaf.numel()
            or leaf.layout != torch.strided
            or memory(leaf) in self._own
        ):
            return None
        size = leaf.abs()
        if isinstance(inner, torch.Tensor) or inner:
            size += torch.as_tensor(inner, dtype=leaf.dtype).nan_to_num(0.0, 0.0, 0.0)
        # In place: an operation may have written into a tensor that others hold.
        leaf.addcmul_(size.nan_to_num_(0.0, 0.0, 0.0), self._factors(leaf))
        return leaf.masked_fill_(leaf.abs() < _SMALLEST[leaf.dtype], 0.0)

    def _factors(self, tensor: torch.Tensor) -> torch.Tensor:
        most = TIMES * _ROUND_OFF[tensor.dtype]
        if self._coherent:
            channel = _channel(tensor)
            shape = torch.Size(size if axis == channel else 1 for axis, size in enumerate(tensor.shape))
            drawn = torch.randint(0, 2, shape, generator=self._generator, dtype=torch.int8).mul_(2).sub_(1)
            return drawn.to(tensor.dtype) * most
        drawn = torch.empty(tensor.shape, dtype=torch.float32).uniform_(-most, most, generator=self._generator)
        return drawn.to(tensor.dtype)


class AcrossSteps(Intercepting):
    """Move values near the end of a rounding step to its other side within the block.

    ``only`` restricts it to some of the operations with such steps, counted from 0. Numbers at ``same`` places of an
    operation are one and the same, such as the largest one beside all others, or exact, and stay where they are.
    """

    def __init__(self, only: Container[int] | None = None, same: Mapping[int, torch.Tensor] | None = None) -> None:
        super().__init__()
        self._only = only
        self._same = same or {}
        self._met = 0
        self.beside: list[int] = []
        """The operations in which something lay beside an end."""

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_ends(function):
            moved = _across(function, args, kwargs, self._same.get(self._met))
            if moved is not args[0]:
                self.beside.append(self._met)
            if self._only is None or self._met in self._only:
                args = (moved, *args[1:])
            self._met += 1
        return function(*args, **kwargs)


def _on_ends(function: Any, given: torch.Tensor, other: Any = None) -> torch.Tensor | None:
    """Places where a number is the end of a step itself, or equal to another; None where that is not known."""
    if given.dtype not in _ROUND_OFF:
        return None
    if function in COMPARISONS:
        return torch.eq(given, other)
    if function in JUMPS:
        return torch.eq(torch.remainder(given, other), 0)
    return torch.eq(given, given.trunc()) if function in (_ATEN.floor.default, _ATEN.ceil.default) else None


def _is_exact(function: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> bool:
    """True if an operation rounds nothing here: it counts, divides to whole numbers, or scales by a power of two."""
    if function in FLOORED:
        return kwargs.get("rounding_mode", "floor") is not None
    if function in SCALING and isinstance(args[1], int | float) and abs(math.frexp(args[1])[0]) == 1 / 2:
        return True
    return function in COUNTING and all(map(_is_whole, tree_leaves((args, kwargs, result))))


def _is_whole(value: Any) -> bool:
    """True if all numbers are whole, and small enough not to be so for lack of digits."""
    if isinstance(value, float):
        return value.is_integer()
    if not isinstance(value, torch.Tensor):
        return True
    if value.dtype not in _ROUND_OFF or value.layout != torch.strided or value.is_nested:
        return not (value.is_floating_point() or value.is_complex())
    if value.numel() and not float(value[(0,) * value.dim()]).is_integer():
        return False  # as of most tensors
    return bool(((value == value.trunc()) & (value.abs() <= 1 / (16 * _ROUND_OFF[value.dtype]))).all())


def _chosen(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Places that were ``found``, and the numbers there: the same ones, so that they compare as equal to themselves."""
    if isinstance(found, torch.Tensor):
        return found
    numbers, (_, places) = args[0], found
    axis = axis_of(function, args, kwargs)
    if places.dim() == numbers.dim():
        return numbers.gather(axis, places), places
    return numbers.gather(axis, places.unsqueeze(axis)).squeeze(axis), places


def _across(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], same: torch.Tensor | None = None
) -> torch.Tensor:
    """Move values near the end of a step to its other side; the same object where there are none."""
    given: torch.Tensor = args[0]
    rest = args[1:]
    if given.dtype not in _ROUND_OFF or not given.numel():
        return given
    roundings = BESIDE * _ROUND_OFF[given.dtype]
    size = _finite(given)
    if function in JUMPS:
        # A zero is one, unless something comes near it.
        near = roundings * (size + _finite(torch.as_tensor(rest[0]))).to(given.dtype)
    else:
        # What large numbers cancel each other to has their roundings.
        near = roundings * (size + size.amax())
        if function is _ATEN.round.default:
            near = near.clamp(min=FIXED_POINT)
        near = near.clamp(max=_step(function, given, rest) / 4).to(given.dtype)
    low, here, high = (_plain(function(value, *rest, **kwargs)) for value in (given - near, given, given + near))
    # Where it does not jump, the remainder of a division moves as far as what is divided.
    slope = 2 * near if here.is_floating_point() and function in JUMPS else 0.0
    down, up = ((other != here) & ((other - here).abs() > slope) for other in (low, high))
    if same is not None and same.shape == up.shape:
        ends = _on_ends(function, *args[:2])
        if ends is not None:
            up, down = up & ~(same & ends), down & ~(same & ends)
    if not (up | down).any():
        return given
    return torch.where(up, given + near, torch.where(down, given - near, given))


FIXED_POINT = 1 / 128
"""Share of a step within which a number is beside its end, where it is rounded to the nearest: kernels of integers have biases and
factors that are rounded themselves."""


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Sizes of numbers; an infinity, which no rounding moves, has none."""
    return tensor.abs().nan_to_num(0.0, 0.0, 0.0)


def _step(function: Any, given: torch.Tensor, rest: Sequence[Any]) -> torch.Tensor:
    """Size of a step, for each channel where it has several."""
    if function not in QUANTISING:
        return torch.ones(())
    scale = torch.as_tensor(rest[0])
    axis = rest[2] if scale.numel() > 1 else None
    return scale.reshape([-1 if place == axis else 1 for place in range(given.dim())])


def _plain(result: Any) -> torch.Tensor:
    """Convert a result to numbers that can be subtracted; a mask behind it does not count."""
    if isinstance(result, tuple):
        result = result[0]
    if result.dtype is torch.bool:
        return result.to(torch.int8)
    return result.dequantize() if result.is_quantized else result


def _inner(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> torch.Tensor | float:
    """Size of the numbers that a result is made of, where they may be much larger than itself; else 0."""
    if not isinstance(result, torch.Tensor) or result.dtype not in _ROUND_OFF or not result.numel():
        return 0.0
    if function in INNER:
        return INNER[function](args)
    if function in LEVELLED:
        axes = list(range(1, result.dim()))
        return result.nan_to_num(0.0, 0.0, 0.0).abs().amax(axes, keepdim=True) if axes else 0.0
    if function not in PRODUCTS and function not in SUMS:
        return 0.0
    terms = product_terms(function, args) if function in PRODUCTS else args[0].numel() / result.numel()
    # Terms of either sign add up to about this, and where they cancel each other, their roundings do not.
    without_signs = (value.abs() if isinstance(value, torch.Tensor) else value for value in args)
    return cast(torch.Tensor, function(*without_signs, **kwargs)) / math.sqrt(max(1.0, terms))


BESIDE = 32.0
"""Largest distance in roundings of a number near the end of a step."""


def _channel(tensor: torch.Tensor) -> int:
    """Channel axis: the second of images, the last of anything else."""
    return 1 if tensor.dim() in (4, 5) else tensor.dim() - 1
