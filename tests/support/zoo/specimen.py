"""What is known of a module of the zoo: its inputs, what it is, and on which inputs a wrong engine shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = list[Array]
Change = Callable[[Arrays], Arrays]
"""Makes revealing inputs out of ordinary ones."""
Truth = Literal["function", "mixes samples", "stateful", "random", "constant"]
"""``function``: of each sample alone. ``mixes samples``: a function of the whole batch. Of the others no engine can be
verified: they depend on earlier calls or on chance, or do not depend on the input."""
Kind = Literal["eager", "script", "export"]

KINDS: Mapping[str, Kind] = {
    "identity": "eager",
    "torchscript": "script",
    "torch-compile": "export",
    "onnxruntime": "export",
    "openvino": "export",
    "tvm": "export",
}
"""What each compiler starts from: the live module, a script of its code or a trace of it, or an exported program."""
UNVERIFIABLE: tuple[Truth, ...] = ("stateful", "random", "constant")

M = TypeVar("M", bound=type)


@dataclass(frozen=True)
class Specimen:
    """One module of the zoo."""

    name: str
    target: str
    """For the ``torch:`` scheme: the class, which is called without arguments."""
    inputs: list[dict[str, Any]] | dict[str, dict[str, Any]]
    truth: Truth
    batch_sizes: tuple[int, ...]
    verdicts: Mapping[Kind, frozenset[str]]
    """The verdicts that are right."""
    changes: Sequence[Change] = field(repr=False)
    looks: bool
    """Whether Python looks at the data on ordinary inputs."""

    @property
    def verifiable(self) -> bool:
        """Whether an engine can be right at all."""
        return self.truth not in UNVERIFIABLE

    def revealing(self, ordinary: Arrays) -> list[Arrays]:
        """The inputs themselves, and those on which a wrong engine differs from eager execution."""
        return [ordinary, *(change([array.copy() for array in ordinary]) for change in self.changes)]


SPECIMENS: dict[str, Specimen] = {}
"""By name; a module of the zoo adds its own when it is imported."""

OK = frozenset({"ok"})
OWN_LIMITS = frozenset({"ok", "unsupported"})
"""Of compilers that need not be able to express a module."""
_NOTHING = frozenset({"unverified", "unsupported"})


def vectors(*sizes: int, dtype: str = "float32", **options: Any) -> list[dict[str, Any]]:
    """One input of a batch of vectors, or of what has more axes; eight numbers by default."""
    return [{"shape": ["batch", *(sizes or (8,))], "dtype": dtype, **options}]


def specimen(
    inputs: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = None,
    truth: Truth = "function",
    *,
    on: Sequence[Change] = (),
    batch_sizes: Sequence[int] = (1, 3),
    python: bool = False,
    **verdicts: AbstractSet[str],
) -> Callable[[M], M]:
    """Add a class of modules to the zoo.

    Parameters
    ----------
    on: what makes the inputs revealing, beside inputs that are ten times as large.
    python: whether the module decides in Python by its data, which graphs need not be able to express.
    verdicts: those that are right for ``eager``, ``script`` or ``export``, where the truth does not say it.
    """

    def add(kind: M) -> M:
        expected: dict[Kind, frozenset[str]] = {"eager": OK, "script": OK, "export": OK}
        if truth in UNVERIFIABLE:
            expected = dict.fromkeys(expected, _NOTHING)
        elif python:
            expected |= {"script": OWN_LIMITS, "export": OWN_LIMITS}
        expected |= {name: frozenset(given) for name, given in verdicts.items()}  # type: ignore[misc]
        SPECIMENS[kind.__name__] = Specimen(
            kind.__name__,
            f"{kind.__module__}:{kind.__name__}",
            inputs if inputs is not None else vectors(),
            truth,
            tuple(batch_sizes),
            expected,
            (times(10.0), *on),
            python,
        )
        return kind

    return add


def times(factor: float) -> Change:
    """All floating-point inputs, larger or smaller."""
    return lambda arrays: [_floating(array, lambda one: one * factor) for array in arrays]


def plus(shift: float) -> Change:
    """All floating-point inputs, moved."""
    return lambda arrays: [_floating(array, lambda one: one + shift) for array in arrays]


def fill(value: float, of: int = 0) -> Change:
    """One input, the same number everywhere."""
    return lambda arrays: [np.full_like(array, value) if index == of else array for index, array in enumerate(arrays)]


def put(value: float, *, sample: int = -1, at: int = 0, of: int = 0) -> Change:
    """One number of one sample replaced."""

    def change(arrays: Arrays) -> Arrays:
        arrays[of].reshape(len(arrays[of]), -1)[sample, at] = value
        return arrays

    return change


def row(*values: float, of: int = 0) -> Change:
    """The same numbers at the beginning of every sample."""

    def change(arrays: Arrays) -> Arrays:
        flat = arrays[of].reshape(len(arrays[of]), -1)
        flat[:, : len(values)] = values
        return arrays

    return change


def _floating(array: Array, change: Callable[[Array], Array]) -> Array:
    return change(array).astype(array.dtype) if array.dtype.kind == "f" else array
