"""Snapshot, compare and vary state that a model keeps between calls. Imports torch: for child processes only."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from mlflow_ngraph.workloads.weights import octets, parts

_DEPTH = 4
"""Depth to which containers are searched; deeper state is detected by its effect on outputs."""
_STEPS = (1, 2, 3, 100, 10_000, 1_000_000, -10_000)
"""By how much numbers that a model keeps are moved, to see whether its outputs depend on them."""
_GENERATORS = "the generator of random numbers of "
_TORCH_ONLY = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def snapshot(module: nn.Module) -> dict[str, int]:
    """Checksums of mutable state by name: tensors, Python attributes, random generators."""
    return dict(_entries(module))


def draws(changed: Mapping[str, object]) -> list[str]:
    """Random generators among `changes`."""
    return [name.removeprefix(_GENERATORS) for name in changed if name.startswith(_GENERATORS)]


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Names of states that differ, or are new."""
    return {name: value for name, value in after.items() if before.get(name) != value}


def moved(module: nn.Module, names: Iterable[str]) -> Generator[None]:
    """Repeatedly set numeric state to other values, and restore it in the end.

    Raises `TypeError` for state that is neither number nor tensor.
    """
    places = [_Place.of(module, name) for name in names]
    try:
        for step in _STEPS:
            for place in places:
                place.move(step)
            yield
    finally:
        for place in places:
            place.restore()


@dataclass
class _Place:
    """A number or tensor attribute of a module."""

    owner: nn.Module
    name: str
    value: Any
    """As it was found; of a tensor, a copy."""

    @classmethod
    def of(cls, module: nn.Module, name: str) -> _Place:
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        value = getattr(owner, last)
        if isinstance(value, bool) or not isinstance(value, torch.Tensor | int | float):
            raise TypeError(f"{name!r} is {type(value).__name__}")
        return cls(owner, last, value.clone() if isinstance(value, torch.Tensor) else value)

    def move(self, step: int) -> None:
        self._set(self.value + torch.tensor(step).to(self.value.dtype) if self._is_tensor else self.value + step)

    def restore(self) -> None:
        self._set(self.value)

    @property
    def _is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)

    def _set(self, value: Any) -> None:
        current = getattr(self.owner, self.name)
        if self._is_tensor and isinstance(current, torch.Tensor) and current.shape == value.shape:
            with torch.no_grad():
                current.copy_(value)
        else:
            setattr(self.owner, self.name, value.clone() if self._is_tensor else value)


def _entries(module: nn.Module) -> Iterator[tuple[str, int]]:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        yield name, _checksum(tensor)
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in _TORCH_ONLY:
                yield f"{name}.{key}".lstrip("."), _checksum(value)
    yield f"{_GENERATORS}torch", _checksum(torch.get_rng_state())
    yield f"{_GENERATORS}Python", _checksum(repr(random.getstate()))
    yield f"{_GENERATORS}NumPy", _checksum(repr(np.random.get_state(legacy=True)))


def _checksum(value: Any, depth: int = 0) -> int:
    for kinds, read in _READERS:
        if isinstance(value, kinds):
            return zlib.crc32(read(value))
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if depth >= _DEPTH or isinstance(value, nn.Module):
        return 0
    if isinstance(value, set | frozenset):
        return hash(frozenset(_checksum(part, depth + 1) for part in value))
    parts = _parts(value)
    return hash(tuple(_checksum(part, depth + 1) for part in parts)) if parts else 0


def _parts(value: Any) -> list[Any]:
    """Members of a container or an object, in order."""
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return list(value)
    return _parts(vars(value)) if hasattr(value, "__dict__") and not callable(value) else []


_READERS: tuple[tuple[Any, Callable[[Any], bytes]], ...] = (
    ((bool, int, float, complex, str, bytes, type(None)), lambda value: repr(value).encode()),
    (np.ndarray, lambda value: np.ascontiguousarray(value).tobytes()),
    (torch.Generator, lambda value: value.get_state().numpy().tobytes()),
    (np.random.Generator, lambda value: repr(value.bit_generator.state).encode()),
    (random.Random, lambda value: repr(value.getstate()).encode()),
)
"""Conversions of values to bytes by type."""


def _of_tensor(tensor: torch.Tensor) -> int:
    """Checksum of a tensor in memory order: a sum would miss swapped numbers."""
    if tensor.is_meta or tensor.device.type != "cpu":
        return 0
    return hash(tuple((name, tuple(part.shape), _of_memory(part)) for name, part in parts(tensor).items()))


def _of_memory(tensor: torch.Tensor) -> int:
    return zlib.crc32(octets(tensor).numpy())
